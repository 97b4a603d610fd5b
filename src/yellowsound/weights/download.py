"""Fetching a published checkpoint through huggingface_hub: asked first, room checked, resumed, verified. No torch.

The same command continues where it stopped: files that arrived whole are kept, and of large ones the pieces that did;
within a run a cut connection is taken up at the byte where it broke.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from yellowsound.weights.catalog import Published, caches, problem, snapshot
from yellowsound.weights.pieces import LARGE_BYTES, DamagedDownload, LargeFile, fetch

SLACK_BYTES = 64 * 1024**2
_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")


class DownloadError(RuntimeError):
    """A download that cannot start or go on: one sentence on what happened and what to do."""


@dataclass(frozen=True, slots=True)
class Download:
    """What a download came to: the folder to use, its commit, and how many bytes had to be fetched."""

    folder: Path
    revision: str
    total_bytes: int
    fetched_bytes: int


@dataclass(frozen=True, slots=True)
class _Listing:
    revision: str
    total_bytes: int
    missing_bytes: int
    large: tuple[LargeFile, ...]  # not in the cache yet


def is_offline() -> bool:
    """Whether the environment forbids the network."""
    return any(os.environ.get(name, "").upper() in ("1", "ON", "YES", "TRUE") for name in _OFFLINE)


def download(entry: Published, *, revision: str | None = None, quiet: bool = False) -> Download:
    """Fetch ``entry`` (branch main, or what ``revision`` names) into the first cache. Raises DownloadError.

    Nothing is written before the hub has answered and the disk has room. Offline, a complete snapshot is returned and
    anything else refused.
    """
    if is_offline():
        return _offline(entry)
    cache = caches()[0]
    with _explained(entry):
        listing = _ask(entry, revision or "main", cache)
        check_room(entry, cache, listing.missing_bytes)
        for file in listing.large:
            fetch(file, _endpoint(), None if quiet else _Progress(file))
        folder = _fetch(entry, revision or "main", cache, quiet)
    trouble = problem(entry, folder)
    if trouble is not None:
        raise DownloadError(f"{entry.name} arrived but is not usable: {trouble}")
    return Download(folder, folder.name, listing.total_bytes, listing.missing_bytes)


def check_room(entry: Published, cache: Path, needed_bytes: int) -> None:
    """Refuse, before the first byte, a disk without room for ``needed_bytes`` and slack. Raises DownloadError."""
    place = next(p for p in [cache.absolute(), *cache.absolute().parents] if p.exists())
    free = shutil.disk_usage(place).free
    if needed_bytes and free < needed_bytes + SLACK_BYTES:
        raise DownloadError(
            f"{entry.name} needs {_gigabytes(needed_bytes + SLACK_BYTES)} more on the disk of {place}, where "
            f"{_gigabytes(free)} are free: make room, or set KANDINSKY_HOME or HF_HOME to another disk"
        )


def _ask(entry: Published, revision: str, cache: Path) -> _Listing:
    """The commit behind ``revision``, its bytes, and those not yet in ``cache``."""
    from huggingface_hub import HfApi, hf_hub_url
    from huggingface_hub.hf_api import RepoFile

    api = HfApi(endpoint=_endpoint())
    commit = str(api.model_info(entry.repository, revision=revision).sha)
    blobs = cache / entry.folder_name / "blobs"
    total, missing, large = 0, 0, []
    for file in api.list_repo_tree(entry.repository, recursive=True, revision=commit):
        if not isinstance(file, RepoFile):
            continue
        total += file.size
        blob = blobs / (file.lfs.sha256 if file.lfs is not None else str(file.blob_id))
        if blob.exists():
            continue
        if file.lfs is None or file.size < LARGE_BYTES:
            missing += file.size
            continue
        url = hf_hub_url(entry.repository, file.path, revision=commit, endpoint=_endpoint())
        large.append(LargeFile(url, blob, file.size, file.lfs.sha256))
    missing += sum(file.missing_bytes() for file in large)
    return _Listing(commit, total, missing, tuple(large))


def _fetch(entry: Published, revision: str, cache: Path, quiet: bool) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils import disable_progress_bars

    if quiet:
        disable_progress_bars()
    folder: Any = snapshot_download(entry.repository, revision=revision, cache_dir=cache, endpoint=_endpoint())
    return Path(folder)


def _offline(entry: Published) -> Download:
    folder = snapshot(entry)
    if folder is None or problem(entry, folder) is not None:
        state = "no download" if folder is None else "an unfinished download"
        raise DownloadError(
            f"{entry.name}: {state} here and the network is switched off: unset {' and '.join(_OFFLINE)} to fetch it"
        )
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    return Download(folder, folder.name, size, 0)


@contextmanager
def _explained(entry: Published) -> Iterator[None]:
    """Turn what huggingface_hub and the system raise into one sentence with what to do."""
    import httpx
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    again = f"run `yellowsound weights download {entry.name}` again: what arrived is kept"
    try:
        yield
    except DamagedDownload as error:
        raise DownloadError(f"{error}: {again}") from error
    except HfHubHTTPError as error:
        raise DownloadError(_refused(entry, error)) from error
    except LocalEntryNotFoundError as error:
        cause = error.__cause__
        if isinstance(cause, HfHubHTTPError):
            raise DownloadError(_refused(entry, cause)) from error
        raise DownloadError(f"the hub cannot be reached ({_short(error)}): check the connection and {again}") from error
    except httpx.HTTPError as error:
        raise DownloadError(f"the connection to the hub broke ({_short(error)}): {again}") from error
    except OSError as error:
        raise DownloadError(f"the download stopped ({_short(error)}): {again}") from error
    except ValueError as error:
        raise DownloadError(f"huggingface_hub refused: {_short(error)}") from error


def _refused(entry: Published, error: Any) -> str:
    """One sentence for an HTTP error: gated access by whether a token was sent, then anything else."""
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    status = getattr(error.response, "status_code", None)
    page = f"the page of {entry.repository} on the Hugging Face hub"
    if status == 401 and not _has_token():
        return (
            f"{entry.name} is given only to people who are logged in (401): accept the terms on {page}, then run "
            "`hf auth login` or set HF_TOKEN, and try again"
        )
    if status == 401:
        return "the hub does not know your token (401): make a new one, run `hf auth login` or set HF_TOKEN, try again"
    if status == 403 or isinstance(error, GatedRepoError):
        return (
            f"your account has no access to {entry.name} yet (403): accept the terms on {page} with the account of "
            "your token (a fine-grained token also needs the right to read gated repositories), and try again"
        )
    if isinstance(error, RevisionNotFoundError):
        return f"{entry.repository} has no such revision: leave --revision out for the newest"
    if isinstance(error, RepositoryNotFoundError):
        return f"the hub has no {entry.repository}: it was renamed or withdrawn"
    return f"the hub answered {status}: {_short(error)}: try again later"


class _Progress:
    """A line on stderr every few seconds while a large file arrives."""

    def __init__(self, file: LargeFile) -> None:
        self._began = self._told = time.perf_counter()
        self._first = file.size_bytes - file.missing_bytes()

    def __call__(self, there: int, total: int) -> None:
        now = time.perf_counter()
        if now - self._told >= 2.0 or there == total:
            self._told = now
            speed = (there - self._first) / max(now - self._began, 1e-9)
            line = f"{_gigabytes(there)} of {_gigabytes(total)}, {speed / 1e6:.0f} MB/s"
            print(line, file=sys.stderr, flush=True)


def _has_token() -> bool:
    from huggingface_hub import get_token

    return get_token() is not None


def _endpoint() -> str | None:
    return os.environ.get("HF_ENDPOINT") or None


def _short(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:200]


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:.2f} GB"

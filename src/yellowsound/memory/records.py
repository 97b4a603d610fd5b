"""Records: small JSON files of what this machine measured, in the user's cache.

A damaged one is as good as none, and where none can be written the next plan computes again: no clip is lost for it.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

Records = dict[str, dict[str, Any]]


def record_file(name: str, folder: Path | None) -> Path:
    """The file ``name`` under ``folder``, by default the user's cache of yellowsound."""
    if folder is None:
        import platformdirs

        folder = platformdirs.user_cache_path("yellowsound")
    return folder / name


def read_records(path: Path) -> Records:
    """Rows by key; empty where the file is missing, unreadable or of another form."""
    try:
        loaded = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return loaded if isinstance(loaded, dict) and all(isinstance(row, dict) for row in loaded.values()) else {}


def write_records(path: Path, records: Records) -> None:
    """Replace the file at once, so that a reader never sees half of it; leave it where the folder cannot be written."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(records, indent=1, sort_keys=True))
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)

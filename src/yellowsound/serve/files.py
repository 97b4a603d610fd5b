"""Files of jobs: clips, frames, previews and uploaded pictures, named by job id below one root.

A file is written whole under ``work/``, synced, and then renamed. Only names made from an id are ever touched.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from yellowsound.serve.job import is_job_id

KINDS = {"clip": ".mp4", "first_frame": ".first.webp", "last_frame": ".last.png", "preview": ".preview.webp"}
_FOLDERS = {"clip": "videos", "first_frame": "frames", "last_frame": "frames", "preview": "previews"}


class JobFiles:
    """The folder of one server's files."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.work = root / "work"
        for folder in {*_FOLDERS.values(), "work", "pictures"}:
            (root / folder).mkdir(parents=True, exist_ok=True)

    def path(self, kind: str, job_id: str) -> Path:
        """Where the file of ``kind`` lies. Raises ValueError on what is no id."""
        if not is_job_id(job_id):
            raise ValueError("not a job id")
        return self.root / _FOLDERS[kind] / f"{job_id}{KINDS[kind]}"

    def picture(self, job_id: str) -> Path:
        """Where the uploaded picture of a job lies."""
        if not is_job_id(job_id):
            raise ValueError("not a job id")
        return self.root / "pictures" / job_id

    def draft(self, job_id: str, attempt: int) -> Path:
        """Where a worker writes the clip of one attempt: in a folder of its own, which is made here."""
        if not is_job_id(job_id):
            raise ValueError("not a job id")
        folder = self.work / f"{job_id}-{attempt}"
        folder.mkdir(exist_ok=True)
        return folder / "clip.mp4"

    def write(self, path: Path, data: bytes, durable: bool = True) -> None:
        """Put ``data`` at ``path`` so that it is either whole or not there. Raises OSError.

        ``durable`` waits for the disk; a preview, which the next step replaces, need not.
        """
        draft = self.work / f"{path.parent.name}-{path.name}.part"
        try:
            with draft.open("wb") as file:
                file.write(data)
                file.flush()
                if durable:
                    os.fsync(file.fileno())
            os.replace(draft, path)
            if durable:
                _sync(path.parent)
        except OSError:
            draft.unlink(missing_ok=True)
            raise

    def adopt(self, draft: Path, job_id: str) -> int:
        """Sync a worker's clip and give it its final name; returns its size in bytes. Raises OSError."""
        with draft.open("rb") as file:
            os.fsync(file.fileno())
            size = os.fstat(file.fileno()).st_size
        path = self.path("clip", job_id)
        os.replace(draft, path)
        _sync(path.parent)
        self.remove_drafts(job_id)
        return size

    def remove(self, job_id: str) -> None:
        """Remove everything of a job; readers that have a file open keep it."""
        for kind in KINDS:
            self.path(kind, job_id).unlink(missing_ok=True)
        self.picture(job_id).unlink(missing_ok=True)
        self.remove_drafts(job_id)

    def remove_drafts(self, job_id: str) -> None:
        """Remove what attempts of a job left half done."""
        for draft in self.work.glob(f"*{job_id}*"):
            _remove(draft)

    def sweep(self, known: set[str], completed: set[str]) -> int:
        """At start: remove drafts, files of unknown jobs and clips of jobs that are not completed."""
        removed = 0
        for path in self.work.iterdir():
            _remove(path)
            removed += 1
        for folder in {*_FOLDERS.values(), "pictures"}:
            for path in (self.root / folder).iterdir():
                job_id = path.name.partition(".")[0]
                keep = completed if folder in ("videos", "frames") else known
                if is_job_id(job_id) and job_id not in keep:
                    path.unlink(missing_ok=True)
                    removed += 1
        return removed

    def free_bytes(self) -> int:
        """Free space on the disk that holds the files."""
        return shutil.disk_usage(self.root).free


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)  # a worker that is being stopped may still write here
    else:
        path.unlink(missing_ok=True)


def _sync(folder: Path) -> None:
    """Make names in ``folder`` durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

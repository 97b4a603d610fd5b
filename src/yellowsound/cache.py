"""Where yellowsound keeps what it can make again: one folder a user, absent where nothing may be written."""

from __future__ import annotations

import os
from pathlib import Path

from platformdirs import user_cache_path


def cache_folder(name: str) -> Path | None:
    """The folder for one kind of thing, made if need be; None where the home is read-only."""
    folder = user_cache_path("yellowsound") / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    return folder if os.access(folder, os.W_OK) else None


def write_whole(path: Path, data: bytes) -> bool:
    """Write a file under its name only when it is whole; False where the disk refuses."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(data)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        return False
    return True


def keep_newest(folder: Path, count: int) -> None:
    """Delete all but the ``count`` files used last."""
    try:
        files = sorted((f for f in folder.iterdir() if f.is_file()), key=lambda f: f.stat().st_mtime)
        for file in files[: max(0, len(files) - count)]:
            file.unlink(missing_ok=True)
    except OSError:
        return

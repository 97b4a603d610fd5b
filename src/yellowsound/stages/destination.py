"""Where a clip goes: what may be written there, the temporary name it grows under, and the moment it gets its own.

Knows file systems and the outer shape of an MP4. Knows nothing of codecs.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import struct
import time
from pathlib import Path

from yellowsound.request import RequestError

HIDDEN = ".yellowsound-"
ABANDONED_SECONDS = 60
NO_HARD_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


def check_destination(path: Path, overwrite: bool = False) -> None:
    """Refuse a path that no clip can be written to, before any work is done for it.

    Raises RequestError("out", ...) for another ending than .mp4, FileExistsError unless ``overwrite``,
    FileNotFoundError for a missing folder, IsADirectoryError, or the OSError of a name that is too long.
    """
    if path.suffix.lower() != ".mp4":
        raise RequestError("out", str(path), "must end in .mp4", f"{path.name or 'clip'}.mp4")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path}: the folder {path.parent} does not exist")
    with contextlib.suppress(FileNotFoundError):
        os.lstat(path)
        if path.is_dir():
            raise IsADirectoryError(f"{path} is a folder: name a file in it")
        if not overwrite:
            raise FileExistsError(_taken(path))


def _taken(path: Path) -> str:
    return f"{path} exists already: choose another name, or allow it to be overwritten"


def create_temporary(folder: Path) -> tuple[Path, int]:
    """A new, empty, hidden file in ``folder``, with the permissions any new file gets there, and a descriptor.

    While the descriptor is open the file counts as being written. Those of writers that were killed are removed here.
    """
    _sweep(folder)
    path = folder / f"{HIDDEN}{secrets.token_hex(8)}.part"
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
    with contextlib.suppress(OSError):  # a file system without locks: then nothing is swept there either
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    return path, descriptor


def _sweep(folder: Path) -> None:
    for path in folder.glob(f"{HIDDEN}*.part"):
        with contextlib.suppress(OSError), path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if time.time() - path.stat().st_mtime > ABANDONED_SECONDS:  # a younger one may be about to be locked
                path.unlink()


def check_whole(path: Path) -> None:
    """Refuse a file whose boxes do not fill it: FFmpeg does not report a last write that failed while closing."""
    size, position, names = path.stat().st_size, 0, []
    with path.open("rb") as file:
        while position < size:
            file.seek(position)
            length, name = struct.unpack(">I4s", file.read(8).ljust(8, b"\0"))
            if length == 1:
                (length,) = struct.unpack(">Q", file.read(8).ljust(8, b"\0"))
            if length < 8:
                break
            names.append(name)
            position += length
        os.fsync(file.fileno())
    if position != size or names.count(b"moov") != 1 or b"mdat" not in names:
        raise OSError(errno.EIO, "the file did not reach the disk whole")


def publish(temporary: Path, path: Path, overwrite: bool) -> None:
    """Give the finished file its name; without ``overwrite`` never over a file that appeared meanwhile."""
    if overwrite:
        os.replace(temporary, path)
        return
    try:
        os.link(temporary, path)
    except FileExistsError as error:
        raise FileExistsError(_taken(path)) from error
    except OSError as error:
        if error.errno not in NO_HARD_LINKS:
            raise
        _reserve(path)
        os.replace(temporary, path)
    else:
        temporary.unlink()


def _reserve(path: Path) -> None:
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    except FileExistsError as error:
        raise FileExistsError(_taken(path)) from error

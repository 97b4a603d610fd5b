"""FileIdentity: proof that a weights file is still the one whose header was read."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path


class ReadError(RuntimeError):
    """Weights could not be read as they were verified: one line naming file, place and reason."""


@dataclass(frozen=True, slots=True)
class FileIdentity:
    """A file by inode, size, time of change and the hash of its safetensors header."""

    file: Path
    inode: int
    size_bytes: int
    mtime_ns: int
    header_sha256: str

    @classmethod
    def of(cls, file: Path) -> FileIdentity:
        """Take the identity of ``file`` as it is now. Raises ReadError if it cannot be read."""
        try:
            found = os.stat(file)
            return cls(file, found.st_ino, found.st_size, found.st_mtime_ns, _header_sha256(file))
        except OSError as error:
            raise ReadError(f"{file}: cannot read it: {error.strerror}") from error

    def check(self, *, with_header: bool = False) -> None:
        """Raise ReadError if the path now leads to something else. The header costs a read, the rest does not."""
        try:
            found = os.stat(self.file)
        except OSError as error:
            raise ReadError(f"{self.file}: gone while in use: {error.strerror}") from error
        if found.st_size != self.size_bytes:
            raise self._replaced(f"{found.st_size} bytes now, {self.size_bytes} before")
        if (found.st_ino, found.st_mtime_ns) != (self.inode, self.mtime_ns):
            raise self._replaced("another inode or time of change")
        if with_header and _header_sha256(self.file) != self.header_sha256:
            raise self._replaced("another header")

    def _replaced(self, how: str) -> ReadError:
        return ReadError(f"{self.file}: replaced while in use ({how}); start again with the new file")


def _header_sha256(file: Path) -> str:
    """The hash of the length field and the JSON it announces (at most the file)."""
    with open(file, "rb") as stream:
        length = stream.read(8)
        return hashlib.sha256(length + stream.read(min(int.from_bytes(length, "little"), 1 << 28))).hexdigest()

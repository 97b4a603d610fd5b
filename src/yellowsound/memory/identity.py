"""Holding every loading to the very files whose headers were verified when the checkpoint was opened."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from yellowsound.checkpoint_identity import FileIdentity, ReadError

__all__ = ["FileIdentity", "ReadError", "unreplaced"]


@contextmanager
def unreplaced(files: Sequence[FileIdentity]) -> Iterator[None]:
    """For loaders that open ``files`` by themselves: each is what it was, before and after. Raises ReadError.

    A loader that fails because its file was replaced says so in these words, not in its own.
    """
    for file in files:
        file.check(with_header=True)
    try:
        yield
    finally:
        for file in files:
            file.check(with_header=True)

"""Wakes waiting answers (event streams, the sync route) when the store has something new."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator


class Broadcast:
    """Lives in the event loop; ``tell`` may be called from any thread."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: set[tuple[str | None, asyncio.Event]] = set()
        self.stopping = False

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def tell(self, job_id: str, _kind: str = "") -> None:
        """Something of ``job_id`` was stored."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                self._loop.call_soon_threadsafe(self._wake, job_id)

    def stop(self) -> None:
        """Let every waiting answer end."""
        self.stopping = True
        for _, event in self._waiting:
            event.set()

    @contextlib.contextmanager
    def waiting(self, job_id: str | None = None) -> Iterator[asyncio.Event]:
        """An event that is set whenever something of ``job_id`` (or of any job) is stored."""
        entry = (job_id, asyncio.Event())
        if self.stopping:
            entry[1].set()
        self._waiting.add(entry)
        try:
            yield entry[1]
        finally:
            self._waiting.discard(entry)

    def _wake(self, job_id: str) -> None:
        for wanted, event in self._waiting:
            if wanted is None or wanted == job_id:
                event.set()

"""Reader: brings spans of files into host memory with a few threads, past the page cache where the system lets it.

It knows files, offsets and buffers; it does not know units. A way that is refused (O_DIRECT, then RWF_DONTCACHE) is
given up for that file and reported once. A file that is not the one that was verified is an error, never a picture.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Protocol

from yellowsound.memory.identity import FileIdentity, ReadError
from yellowsound.memory.pinned import HostBlock
from yellowsound.memory.units import PAGE_BYTES

CHUNK_BYTES = 8 * 1024 * 1024
_RWF_DONTCACHE = 0x80  # Linux 6.14; os has no name for it
_RETRIES = 16
_REFUSALS = {errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS, errno.EPERM}

Open = Callable[[Path, int], int]
Preadv = Callable[[int, Sequence[memoryview], int, int], int]
Report = Callable[[str], None]


class Way(Enum):
    """How a file is read, best first."""

    DIRECT = "O_DIRECT"
    DONTCACHE = "RWF_DONTCACHE"
    BUFFERED = "the page cache, dropped chunk by chunk"


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """Read ``size_bytes`` at ``file_offset`` into ``block`` at ``start``; ``needed_bytes`` of them must exist.

    ``before`` runs in the reading thread first: it waits until the buffer may be overwritten. ``after`` runs there
    once the bytes are in.
    """

    file: Path
    file_offset: int
    size_bytes: int
    needed_bytes: int
    block: HostBlock
    start: int
    before: Callable[[], None] | None = None
    after: Callable[[], None] | None = None


@dataclass(frozen=True, slots=True)
class HostCopy:
    """Copy inside host memory by a reading thread: a pageable home on its way to a page-locked ring."""

    source: HostBlock
    source_start: int
    size_bytes: int
    block: HostBlock
    start: int
    before: Callable[[], None] | None = None


@dataclass(slots=True)
class Ticket:
    """A request on its way. ``is_done`` with ``error`` set means it failed; ``error`` is for the waiting thread."""

    request: ReadRequest | HostCopy
    error: BaseException | None = None
    _done: threading.Event = field(default_factory=threading.Event)

    @property
    def is_done(self) -> bool:
        return self._done.is_set()

    def wait(self, timeout_seconds: float | None = None) -> bool:
        """Whether it was done in time; raises what the read raised."""
        done = self._done.wait(timeout_seconds)
        if done and self.error is not None:
            raise self.error
        return done

    def finish(self, error: BaseException | None = None) -> None:
        self.error = error
        self._done.set()


class Reading(Protocol):
    """What the conveyor asks of a reader."""

    def submit(self, request: ReadRequest | HostCopy) -> Ticket: ...

    def cancel(self, tickets: Sequence[Ticket]) -> None: ...

    def close(self) -> None: ...


class Reader:
    """``threads`` threads serving requests in the order they were submitted."""

    def __init__(
        self,
        identities: Sequence[FileIdentity] = (),
        *,
        threads: int = 4,
        report: Report = lambda message: None,
        on_done: Callable[[], None] = lambda: None,
        open_file: Open = os.open,
        preadv: Preadv = os.preadv,
    ) -> None:
        self.bytes_read = 0
        self.on_done = on_done
        self._identities = {identity.file: identity for identity in identities}
        self._files: dict[Path, _OpenFile] = {}
        self._report, self._open_file, self._preadv = report, open_file, preadv
        self._queue: deque[Ticket] = deque()
        self._changed = threading.Condition()
        self._is_closed = False
        self._threads = [
            threading.Thread(target=self._work, name=f"reader-{index}", daemon=True) for index in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def ways(self) -> dict[Path, Way]:
        """How each file opened so far is being read."""
        return {path: file.way for path, file in self._files.items()}

    def submit(self, request: ReadRequest | HostCopy) -> Ticket:
        """Queue a request. Errors arrive at the ticket."""
        ticket = Ticket(request)
        with self._changed:
            if self._is_closed:
                raise ValueError("this reader is closed")
            self._queue.append(ticket)
            self._changed.notify()
        return ticket

    def cancel(self, tickets: Sequence[Ticket]) -> None:
        """Forget what has not begun and wait for what has: afterwards no buffer of ``tickets`` is written."""
        wanted = {id(ticket) for ticket in tickets}
        with self._changed:
            dropped = [ticket for ticket in self._queue if id(ticket) in wanted]
            self._queue = deque(ticket for ticket in self._queue if id(ticket) not in wanted)
        for ticket in dropped:
            ticket.finish(ReadError("the read was cancelled"))
        for ticket in tickets:
            ticket._done.wait()

    def close(self) -> None:
        """Stop the threads and close every file. Waits for the reads under way."""
        with self._changed:
            self._is_closed = True
            dropped, self._queue = self._queue, deque()
            self._changed.notify_all()
        for ticket in dropped:
            ticket.finish(ReadError("the reader was closed"))
        for thread in self._threads:
            thread.join()
        for file in self._files.values():
            file.close()
        self._files.clear()

    def _work(self) -> None:
        while (ticket := self._next()) is not None:
            try:
                self._serve(ticket.request)
                ticket.finish()
            except BaseException as error:
                ticket.finish(error)
            self.on_done()

    def _next(self) -> Ticket | None:
        with self._changed:
            while not self._queue and not self._is_closed:
                self._changed.wait()
            return self._queue.popleft() if self._queue else None

    def _serve(self, request: ReadRequest | HostCopy) -> None:
        if request.before is not None:
            request.before()
        if isinstance(request, HostCopy):
            source = request.source.bytes[request.source_start : request.source_start + request.size_bytes]
            request.block.bytes[request.start : request.start + request.size_bytes].copy_(source)
            return
        with self._changed:
            file = self._files.get(request.file)
            if file is None:
                file = self._files[request.file] = self._open(request.file)
        with request.block.window(request.start, request.size_bytes) as window:
            file.read_into(window, request.file_offset, request.needed_bytes)
        self.bytes_read += request.needed_bytes
        if request.after is not None:
            request.after()

    def _open(self, path: Path) -> _OpenFile:
        identity = self._identities.get(path) or FileIdentity.of(path)
        return _OpenFile(identity, self._open_file, self._preadv, self._report)


class _OpenFile:
    """One file, the way it is read, and the proof that it is still the same file."""

    def __init__(self, identity: FileIdentity, open_file: Open, preadv: Preadv, report: Report) -> None:
        self.identity = identity
        self.way = Way.DIRECT
        self._open_file, self._preadv, self._report = open_file, preadv, report
        self._lock = threading.Lock()
        self._old: list[int] = []  # descriptors that another thread may still be reading from
        identity.check(with_header=True)
        try:
            self._fd = self._open(os.O_DIRECT)
        except OSError as error:
            if error.errno not in _REFUSALS:
                raise ReadError(f"{identity.file}: cannot open it: {error.strerror}") from error
            self._fd = self._open(0)
            self._step_down(error)

    def read_into(self, window: memoryview, offset: int, needed_bytes: int) -> None:
        """Fill ``window`` from ``offset``; at the end of the file ``needed_bytes`` are enough."""
        got = stuck = 0
        while got < needed_bytes:
            way, fd = self.way, self._fd
            try:
                count = self._pread(fd, window[got:], offset + got, way)
            except InterruptedError:
                continue
            except OSError as error:
                if error.errno not in _REFUSALS or way is Way.BUFFERED:
                    raise self._failed(error, offset + got) from error
                self._give_up(way, error)
                continue
            if count == 0 or stuck > _RETRIES:
                raise self._cut(offset + got, offset + needed_bytes)
            before, got = got, self._advance(got, count, needed_bytes, way)
            stuck = stuck + 1 if got == before else 0
        self.identity.check()

    def close(self) -> None:
        for fd in {*self._old, self._fd}:
            os.close(fd)

    @staticmethod
    def _advance(got: int, count: int, needed_bytes: int, way: Way) -> int:
        """A direct read has to begin at a sector, so after a short one the broken sector is read again."""
        if got + count >= needed_bytes or way is not Way.DIRECT:
            return got + count
        return (got + count) // PAGE_BYTES * PAGE_BYTES

    def _pread(self, fd: int, window: memoryview, offset: int, way: Way) -> int:
        with window:
            count: int = self._preadv(fd, [window], offset, _RWF_DONTCACHE if way is Way.DONTCACHE else 0)
        if way is Way.BUFFERED:
            with contextlib.suppress(OSError):  # advice only
                os.posix_fadvise(fd, offset, count, os.POSIX_FADV_DONTNEED)
        return count

    def _open(self, flag: int) -> int:
        return self._open_file(self.identity.file, os.O_RDONLY | os.O_CLOEXEC | flag)

    def _give_up(self, way: Way, error: OSError) -> None:
        """Take the next best way, once, however many threads were refused."""
        with self._lock:
            if self.way is not way:
                return
            if way is Way.DIRECT:
                self._old.append(self._fd)
                self._fd = self._open(0)
            self._step_down(error)

    def _step_down(self, error: OSError) -> None:
        refused, self.way = self.way, Way.DONTCACHE if self.way is Way.DIRECT else Way.BUFFERED
        self._report(f"{self.identity.file}: {refused.value} was refused ({error.strerror}); using {self.way.value}")

    def _failed(self, error: OSError, offset: int) -> ReadError:
        return ReadError(f"{self.identity.file}: reading at byte {offset}: {error.strerror}")

    def _cut(self, end: int, expected: int) -> ReadError:
        return ReadError(
            f"{self.identity.file}: ends at byte {end}, expected {expected} or more; it was cut: download it again"
        )

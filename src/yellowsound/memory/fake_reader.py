"""FakeReader: reads without threads, when a seed says and in an order that several threads could have taken."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from dataclasses import dataclass

from yellowsound.memory.device import Fence
from yellowsound.memory.reader import HostCopy, ReadRequest, Ticket


class FakeReader:
    """Serves a request when its ticket is waited for, or by chance earlier; up to ``threads`` may overtake each other.

    With ``Fence.READ`` in ``omit`` a ticket says it is done before its bytes are there.
    """

    def __init__(self, seed: int = 0, *, threads: int = 3, omit: frozenset[Fence] = frozenset()) -> None:
        self.served: list[ReadRequest | HostCopy] = []
        self._random = random.Random(seed)
        self._threads, self._lies = threads, Fence.READ in omit
        self._pending: list[FakeTicket] = []

    def submit(self, request: ReadRequest | HostCopy) -> Ticket:
        ticket = FakeTicket(request, reader=self)
        self._pending.append(ticket)
        if self._lies:
            ticket.finish()
        for _ in range(self._random.choice([0, 0, 1, 3])):
            self.serve_one()
        return ticket

    def cancel(self, tickets: Sequence[Ticket]) -> None:
        """What an unlucky thread had begun is served, the rest forgotten."""
        wanted = {id(ticket) for ticket in tickets}
        begun = [t for t in self._pending[: self._threads] if id(t) in wanted and self._random.random() < 0.5]
        for ticket in begun:
            self._serve(ticket)
        self._pending = [ticket for ticket in self._pending if id(ticket) not in wanted]

    def close(self) -> None:
        self._pending.clear()

    def serve_one(self) -> None:
        """One of the oldest requests, whichever thread is quickest."""
        if self._pending:
            self._serve(self._random.choice(self._pending[: self._threads]))

    def serve_all(self) -> None:
        while self._pending:
            self.serve_one()

    def _serve(self, ticket: FakeTicket) -> None:
        self._pending.remove(ticket)
        request = ticket.request
        if request.before is not None:
            request.before()
        if isinstance(request, HostCopy):
            source = request.source.bytes[request.source_start : request.source_start + request.size_bytes]
            request.block.bytes[request.start : request.start + request.size_bytes].copy_(source)
        else:
            self._read(request)
        self.served.append(request)
        ticket.finish()

    def _read(self, request: ReadRequest) -> None:
        fd = os.open(request.file, os.O_RDONLY)
        try:
            with request.block.window(request.start, request.size_bytes) as window:
                count = os.preadv(fd, [window], request.file_offset)
        finally:
            os.close(fd)
        assert count >= request.needed_bytes, f"{count} of {request.needed_bytes} bytes"
        if request.after is not None:
            request.after()


@dataclass(slots=True, kw_only=True)
class FakeTicket(Ticket):
    """A ticket whose wait does the reading."""

    reader: FakeReader

    def wait(self, timeout_seconds: float | None = None) -> bool:
        while not self.is_done:
            self.reader.serve_one()
        return True

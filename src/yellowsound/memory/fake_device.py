"""FakeDevice: streams as queues that run as late, as early or as oddly as a seed says.

It makes a missing wait visible without a GPU. An operation reads its source when it runs, not when it is queued;
whatever is dead is overwritten with 0xCD at once. So every order that CUDA would allow, some seed produces, and a
fence that is missing shows as wrong bytes.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, cast

import torch

from yellowsound.memory.device import CACHE_LINE_BYTES, Fence, Stream
from yellowsound.memory.pinned import HostBlock

T = TypeVar("T")
Order = Literal["early", "late", "copies_first", "blocks_first", "random"]
POISON = 0xCD


@dataclass(slots=True, eq=False)
class Mark:
    """A place in a stream; ``is_passed`` once everything before it ran."""

    stream: Stream
    is_passed: bool = False


@dataclass(slots=True)
class _Operation:
    action: Callable[[], object] | None = None
    passes: Mark | None = None
    waits: Mark | None = None


class FakeDevice:
    """A device of host memory whose two queues run in the order ``order`` and ``seed`` give.

    ``omit`` names fences whose waits are dropped, ``unrecorded`` those whose records are. With ``prompt_blocks`` a
    block runs when it is queued (with only the copies it waits for), so that a real forward can use the result.
    """

    def __init__(
        self,
        order: Order = "random",
        seed: int = 0,
        *,
        omit: frozenset[Fence] = frozenset(),
        unrecorded: frozenset[Fence] = frozenset(),
        prompt_blocks: bool = False,
        pins: bool = True,
    ) -> None:
        self.torch_device = torch.device("cpu")
        self.line_bytes = CACHE_LINE_BYTES
        self.uses_host_memory = False
        self.allocated: list[int] = []
        self.copied_bytes = 0
        self._order = order
        self._random = random.Random(seed)
        self._omit, self._unrecorded = omit, unrecorded
        self._prompt_blocks, self._pins = prompt_blocks, pins
        self._queues: dict[Stream, deque[_Operation]] = {stream: deque() for stream in Stream}
        self._lock = threading.RLock()  # reading threads synchronize, too

    def alloc(self, size_bytes: int) -> torch.Tensor:
        self.allocated.append(size_bytes)
        with torch.inference_mode(False):
            return torch.full((size_bytes,), POISON, dtype=torch.uint8)

    def alloc_host(self, size_bytes: int) -> HostBlock:
        self.allocated.append(size_bytes)
        block = HostBlock(size_bytes)
        block.bytes.fill_(POISON)
        return block

    def can_copy_from(self, block: HostBlock) -> bool:
        return self._pins

    def copy(self, target: torch.Tensor, source: torch.Tensor, stream: Stream) -> None:
        self.copied_bytes += source.numel()
        self._queue(stream, _Operation(action=lambda: target.copy_(source)))

    def run(self, work: Callable[[], T], stream: Stream) -> T:
        result: list[T] = []
        done = Mark(stream)
        with self._lock:
            self._queues[stream].append(_Operation(action=lambda: result.append(work()), passes=done))
            if stream is Stream.COMPUTE and self._prompt_blocks:
                self._reach(done)
            else:
                self._perhaps_run()
        return result[0] if result else cast(T, None)

    def record(self, stream: Stream, fence: Fence) -> Mark:
        if fence in self._unrecorded:
            return Mark(stream, is_passed=True)
        mark = Mark(stream)
        self._queue(stream, _Operation(passes=mark))
        return mark

    def wait(self, stream: Stream, mark: Any, fence: Fence) -> None:
        if mark is not None and fence not in self._omit:
            self._queue(stream, _Operation(waits=mark))

    def synchronize(self, mark: Any, fence: Fence) -> None:
        if mark is not None and fence not in self._omit:
            with self._lock:
                self._reach(mark)

    def retire(self, buffer: torch.Tensor, stream: Stream) -> None:
        self._queue(stream, _Operation(action=lambda: buffer.fill_(POISON)))

    def free(self, buffer: torch.Tensor | HostBlock) -> None:
        if isinstance(buffer, HostBlock):
            buffer.bytes.fill_(POISON)
            buffer.close()
        else:
            buffer.fill_(POISON)

    def close(self) -> None:
        self.drain()

    def drain(self) -> None:
        """Run all that is queued: one stream as far as it goes, or both in turns, as the order says."""
        with self._lock:
            while any(self._queues.values()):
                self._step(self._pick())

    def _pick(self) -> Stream:
        waiting = [stream for stream in Stream if self._queues[stream]]
        if self._order == "copies_first":
            return waiting[0]
        if self._order == "blocks_first":
            return waiting[-1]
        return self._random.choice(waiting)

    def _queue(self, stream: Stream, operation: _Operation) -> None:
        with self._lock:
            self._queues[stream].append(operation)
            self._perhaps_run()

    def _perhaps_run(self) -> None:
        """Run ahead without being forced: all of it, one stream only, some of it, or nothing."""
        eager = {"early": list(Stream), "copies_first": [Stream.COPY], "blocks_first": [Stream.COMPUTE]}
        if self._order == "random":
            for _ in range(self._random.choice([0, 0, 1, 2, 5])):
                self._step_if_free(self._random.choice(list(Stream)))
        for _ in range(2):
            for stream in eager.get(self._order, []):
                while self._step_if_free(stream):
                    pass

    def _step_if_free(self, stream: Stream) -> bool:
        queue = self._queues[stream]
        if not queue or (queue[0].waits is not None and not queue[0].waits.is_passed):
            return False
        self._step(stream)
        return True

    def _step(self, stream: Stream) -> None:
        operation = self._queues[stream].popleft()
        if operation.waits is not None:
            self._reach(operation.waits)
        if operation.action is not None:
            operation.action()
        if operation.passes is not None:
            operation.passes.is_passed = True

    def _reach(self, mark: Mark) -> None:
        while not mark.is_passed:
            self._step(mark.stream)

"""Workers as Ray actors: one for each GPU on any node, spoken to with the same messages as a local process.

The store stays the truth: an actor is handed a job only when it is free, its messages come back as a stream, and when
its node is lost the slot is told ``Gone`` and the job waits again. Needs the extra ``ray``.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections.abc import Iterator
from typing import Any

from yellowsound.serve.logging import logger
from yellowsound.serve.worker_protocol import Command, Gone, Inbox, Message, WorkerLink, WorkerOptions

_THREADS = 4  # the stream, commands while it runs, and one to spare
_JOIN_SECONDS = 10.0


class ActorBody:
    """What runs inside the actor: the worker loop in a thread, messages in a queue."""

    def __init__(self, options: WorkerOptions) -> None:
        from yellowsound.serve.worker import WorkerLoop

        self._messages: queue.Queue[Message | None] = queue.Queue()
        self._loop = WorkerLoop(options, self._messages.put)
        threading.Thread(target=self._run, name="jobs", daemon=True).start()

    def take(self, command: Command) -> None:
        """Accept a command; returns at once."""
        self._loop.take(command)

    def listen(self) -> Iterator[Message]:
        """Messages as they come, until the loop ends."""
        while (message := self._messages.get()) is not None:
            yield message

    def _run(self) -> None:
        try:
            self._loop.run()
        finally:
            self._messages.put(None)


class RayPool:
    """Actors on an existing cluster, or on a cluster of this machine alone with the address ``auto``."""

    def __init__(self, address: str, options: WorkerOptions, gpus_per_worker: float) -> None:
        self._ray = _import_ray()
        self._options, self._gpus = options, gpus_per_worker
        self._owns = not self._ray.is_initialized()
        if self._owns:
            self._connect(address)

    def spawn(self, slot: int, inbox: Inbox) -> WorkerLink:
        cpus = 0 if self._gpus else 1
        actor_class = self._ray.remote(ActorBody).options(
            num_gpus=self._gpus, num_cpus=cpus, max_concurrency=_THREADS, max_restarts=0, max_task_retries=0
        )
        return RayLink(self._ray, actor_class.remote(self._options), slot, inbox)

    def close(self) -> None:
        if self._owns:
            self._ray.shutdown()

    def _connect(self, address: str) -> None:
        quiet = {"log_to_driver": False, "logging_level": "warning"}
        if address != "auto":
            self._ray.init(address=address, **quiet)
            return
        try:
            self._ray.init(address="auto", **quiet)
        except ConnectionError:
            logger().info("no Ray cluster is running: starting one on this machine")
            self._ray.init(include_dashboard=False, **quiet)


class RayLink:
    """One actor as a slot sees it."""

    def __init__(self, ray: Any, actor: Any, slot: int, inbox: Inbox) -> None:
        self._ray, self._actor, self._inbox = ray, actor, inbox
        self._stream = actor.listen.options(num_returns="streaming").remote()
        self._thread = threading.Thread(target=self._listen, name=f"ray-{slot}", daemon=True)
        self._thread.start()

    def send(self, command: Command) -> None:
        with contextlib.suppress(Exception):  # a dead actor is told by the stream
            self._actor.take.remote(command)

    def kill(self) -> None:
        with contextlib.suppress(Exception):
            self._ray.kill(self._actor, no_restart=True)
        self._thread.join(_JOIN_SECONDS)

    def _listen(self) -> None:
        reason = "ended"
        try:
            for reference in self._stream:
                self._inbox(self._ray.get(reference))
        except Exception as error:  # Ray has many ways to say that an actor is gone
            reason = f"was lost ({type(error).__name__})"
        self._inbox(Gone(reason=reason))


def _import_ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ModuleNotFoundError:
        raise RuntimeError("--ray needs the package ray: pip install 'yellowsound[ray]'") from None
    return ray

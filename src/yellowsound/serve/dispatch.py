"""Dispatcher: the slots of this server, and the housekeeping beside them."""

from __future__ import annotations

import threading
import time
from typing import Any

from yellowsound.serve.files import JobFiles
from yellowsound.serve.jobs import JobStore
from yellowsound.serve.logging import logger
from yellowsound.serve.run_desk import RunDesk
from yellowsound.serve.settings import Settings
from yellowsound.serve.slot import Slot
from yellowsound.serve.worker_protocol import WorkerPool

_STOP_SECONDS = 15.0
_OWN_DOING = ("in_progress", "progress", "preview", "warning", "completed")  # events that slots bring about themselves


class Dispatcher:
    """Starts and stops slots and the sweeper. ``recover`` comes first: it makes the store true again."""

    def __init__(
        self, settings: Settings, store: JobStore, files: JobFiles, pool: WorkerPool, desk: RunDesk, slots: int
    ) -> None:
        self._settings, self._store, self._files, self._pool = settings, store, files, pool
        self.slots = [Slot(number, pool, desk) for number in range(slots)]
        self._stopping = threading.Event()
        self._sweeper = threading.Thread(target=self._sweep_often, name="sweeper", daemon=True)
        store.listen(self._on_stored)

    def recover(self) -> None:
        """After a start: runs of the last server wait again or fail, completed jobs without a file fail, left-over
        files go."""
        for job in self._store.lost(everything=True):
            message = "The server ended while the job ran."
            self._store.requeue(
                job.id, job.attempt, "server_restarted", message, attempts=self._settings.limits.attempts
            )
        for job_id in self._store.ids("completed"):
            if not self._files.path("clip", job_id).exists():
                logger(job_id=job_id).error("clip is missing")
                self._store.mark_missing(job_id)
        removed = self._files.sweep(self._store.ids(), self._store.ids("completed"))
        if removed:
            logger().info("left-over files removed", files=removed)

    def start(self) -> None:
        for slot in self.slots:
            slot.start()
        self._sweeper.start()

    def stop(self) -> None:
        """Stop handing out jobs; running ones wait again. Blocks until workers are gone."""
        self._stopping.set()
        for slot in self.slots:
            slot.stop()
        for slot in self.slots:
            slot.join(_STOP_SECONDS)
        self._sweeper.join(_STOP_SECONDS)
        self._pool.close()

    def nudge(self) -> None:
        """Something changed in the store."""
        for slot in self.slots:
            slot.nudge()

    def _on_stored(self, _job_id: str, kind: str) -> None:
        if kind not in _OWN_DOING:
            self.nudge()

    @property
    def can_serve(self) -> bool:
        return any(slot.can_serve for slot in self.slots)

    @property
    def is_hopeless(self) -> bool:
        """Whether no worker starts any more: jobs would wait for ever."""
        return all(slot.cannot_start for slot in self.slots)

    def states(self) -> list[dict[str, Any]]:
        return [slot.state() for slot in self.slots]

    def sweep(self) -> None:
        """Expire jobs whose time is over, and forget keys and tombstones that are old enough."""
        for job in self._store.lost(everything=False):
            message = "Its worker was not heard of until the lease ended."
            self._store.requeue(job.id, job.attempt, "worker_crashed", message, attempts=self._settings.limits.attempts)
        for job_id in self._store.due():
            self._store.delete(job_id, "expired")
            self._files.remove(job_id)
        self._store.forget(time.time() - self._settings.tombstone_seconds)

    def _sweep_often(self) -> None:
        while not self._stopping.wait(self._settings.sweep_seconds):
            try:
                self.sweep()
            except Exception as error:  # the next round may succeed
                logger().error("sweep failed", exc_info=error)

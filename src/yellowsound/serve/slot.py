"""Slot: one worker's place in the server. A thread keeps a worker alive in it and takes jobs through it.

Everything the slot waits for arrives in one inbox: messages of the worker and nudges of the dispatcher. A worker that
is silent, stuck, over time or does not let go of a cancelled job is killed and replaced; what becomes of its job is
decided by the store's rules, never by the worker.
"""

from __future__ import annotations

import errno
import queue
import sqlite3
import threading
import time
from dataclasses import dataclass
from typing import Any

from yellowsound.serve.job import Job
from yellowsound.serve.logging import logger
from yellowsound.serve.run_desk import RunDesk
from yellowsound.serve.worker_protocol import (
    Beat,
    Cancel,
    Failed,
    Finished,
    Gone,
    Hello,
    Load,
    Loaded,
    LoadFailed,
    Message,
    Stop,
    Told,
    WorkerLink,
    WorkerPool,
)

_TICK_SECONDS = 1.0
_BACKOFF_SECONDS = (0.0, 0.5, 2.0, 5.0, 15.0, 30.0)


@dataclass(frozen=True, slots=True)
class Nudge:
    """Something changed in the store: look again."""


@dataclass(slots=True)
class Running:
    """The run in a slot: when it began and last spoke, and since when its cancel waits for an answer."""

    job: Job
    began: float
    spoke: float
    cancelled: float | None = None
    looked_ahead: bool = False


@dataclass(frozen=True, slots=True)
class Owed:
    """A lost run that the store has not been told of yet: a full disk may refuse the record for a while."""

    job: Job
    reason: str
    is_disk_full: bool


class Slot(threading.Thread):
    """One worker's place. ``desk`` does everything a run means for the store and the files."""

    def __init__(self, number: int, pool: WorkerPool, desk: RunDesk) -> None:
        super().__init__(name=f"slot-{number}", daemon=True)
        self.number, self._pool, self._desk = number, pool, desk
        self._limits = desk.settings.limits
        self._inbox: queue.Queue[tuple[int, Message] | Nudge] = queue.Queue()
        self._nudged = threading.Event()
        self._stopping = threading.Event()
        self._link: WorkerLink | None = None
        self._generation = 0
        self._failed_starts = 0
        self._last_beat = 0.0
        self._ready = False
        self._greeted = False
        self._trouble: str | None = "starting"
        self._loaded: tuple[str, str] | None = None  # (model, recipe) that the worker ran last
        self._same_model_runs = 0
        self._running: Running | None = None
        self._owed: list[Owed] = []
        self.worker: dict[str, Any] = {}

    # -- what others ask ----------------------------------------------------------------------------------------------

    @property
    def can_serve(self) -> bool:
        """Whether a model is loaded and the worker was heard of lately."""
        fresh = time.monotonic() - self._last_beat < self._limits.heartbeat_seconds
        return self._ready and self._link is not None and fresh

    @property
    def cannot_start(self) -> bool:
        """Whether the worker failed to start several times in a row."""
        return self._failed_starts >= 3

    def state(self) -> dict[str, Any]:
        """For status pages: worker facts, the job it runs, what is wrong."""
        running = self._running
        return {
            "slot": self.number,
            "ready": self.can_serve,
            "job": running.job.id if running else None,
            "model": self._loaded[0] if self._loaded else None,
            "trouble": None if self.can_serve else self._trouble,
            **self.worker,
        }

    def nudge(self) -> None:
        """Look at the store again; many nudges in a row count as one."""
        if not self._nudged.is_set():
            self._nudged.set()
            self._inbox.put(Nudge())

    def stop(self) -> None:
        """Give up the running job (it waits again), end the worker and the thread."""
        self._stopping.set()
        self.nudge()

    # -- the thread ---------------------------------------------------------------------------------------------------

    def run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._turn()
            except Exception as error:  # a slot must outlive any single fault
                logger().error("slot failed", slot=self.number, exc_info=error)
                self._replace("the server met an unexpected fault", _is_disk_full(error))
                self._stopping.wait(_TICK_SECONDS)
        self._leave()

    def _turn(self) -> None:
        if not self._pay():
            self._stopping.wait(_TICK_SECONDS)
            return
        if self._link is None:
            self._start_worker()
            return
        if self._greeted and self._running is None:
            self._take_job()
        self._wait()

    def _start_worker(self) -> None:
        pause = _BACKOFF_SECONDS[min(self._failed_starts, len(_BACKOFF_SECONDS) - 1)]
        if pause and self._stopping.wait(pause):
            return
        self._generation += 1
        generation = self._generation
        self._ready = self._greeted = False
        self._loaded, self._last_beat = None, time.monotonic()
        self._failed_starts += 1  # taken back when a model is loaded
        self._link = self._pool.spawn(self.number, lambda message: self._inbox.put((generation, message)))

    def _take_job(self) -> None:
        prefer = self._loaded if self._same_model_runs < self._desk.settings.fair_runs else None
        job = self._desk.claim(f"slot-{self.number}", prefer)
        if job is None or self._link is None:
            return
        key = (job.model, job.recipe)
        self._same_model_runs = self._same_model_runs + 1 if key == self._loaded else 1
        self._loaded = key
        now = time.monotonic()
        command = self._desk.command(job)
        if command is None:
            return
        self._running = Running(job, now, now)
        self._link.send(command)

    def _wait(self) -> None:
        """Take one item of the inbox, or find out that a time limit passed."""
        try:
            item = self._inbox.get(timeout=_TICK_SECONDS)
        except queue.Empty:
            item = None
        if isinstance(item, Nudge):
            self._nudged.clear()
            self._check_cancelled()
        elif item is not None and item[0] == self._generation:
            self._take(item[1])
        self._check_limits()

    def _take(self, message: Message) -> None:
        self._last_beat = time.monotonic()
        match message:
            case Hello():
                self._greeted = True
                self._trouble = "loading"
                self.worker = {"pid": message.pid, "host": message.host}
                self._preload()
            case Loaded():
                self._ready, self._failed_starts, self._trouble = True, 0, None
            case LoadFailed():
                self._trouble = message.message
                logger().error("checkpoint cannot be loaded", slot=self.number, reason=message.message)
            case Beat():
                self._beat(message)
            case Told():
                self._told(message)
            case Finished() | Failed():
                self._ended(message)
            case Gone():
                self._replace(f"the worker {message.reason}")

    def _preload(self) -> None:
        source, recipe = self._desk.first_model()
        if self._link is not None:
            self._link.send(Load(source=source, recipe=recipe))

    def _beat(self, beat: Beat) -> None:
        self.worker |= {
            "rss_bytes": beat.rss_bytes,
            "rss_peak_bytes": beat.rss_peak_bytes,
            "vram_peak_bytes": beat.vram_peak_bytes,
        }
        if self._running is not None:
            self._desk.renew(self._running.job)

    def _told(self, message: Told) -> None:
        running = self._running
        if running is None or (message.job_id, message.attempt) != (running.job.id, running.job.attempt):
            return
        running.spoke = time.monotonic()
        if running.cancelled is None:
            self._desk.told(running.job, message)
            if not running.looked_ahead and message.event["type"] == "StepDone" and self._link is not None:
                running.looked_ahead = True
                self._desk.look_ahead(running.job, self._link)

    def _ended(self, message: Finished | Failed) -> None:
        running = self._running
        if running is None or (message.job_id, message.attempt) != (running.job.id, running.job.attempt):
            return
        self._running = None
        if isinstance(message, Finished):
            self._ready, self._failed_starts, self._trouble = True, 0, None
            self._desk.finished(running.job, message)
            return
        self._desk.failed(running.job, message)
        if message.fatal:
            self._replace(f"{message.code}: {message.message}")

    def _check_cancelled(self) -> None:
        running = self._running
        if running is not None and running.cancelled is None and not self._desk.still_wanted(running.job):
            running.cancelled = time.monotonic()
            if self._link is not None:
                self._link.send(Cancel(job_id=running.job.id))

    def _check_limits(self) -> None:
        if self._link is None:
            return
        now, limits = time.monotonic(), self._limits
        if now - self._last_beat > (limits.heartbeat_seconds if self._greeted else limits.start_seconds):
            self._replace("the worker is silent")
            return
        running = self._running
        if running is None:
            return
        if running.cancelled is not None and now - running.cancelled > limits.cancel_seconds:
            self._replace("the worker did not let go of a cancelled job")
        elif now - running.began > limits.run_seconds:
            self._overrun(running, f"The job ran longer than {limits.run_seconds:g} s, the limit of one run.")
        elif now - running.spoke > limits.stall_seconds:
            self._overrun(running, f"Nothing was heard of the job for {limits.stall_seconds:g} s, the limit.")

    def _overrun(self, running: Running, message: str) -> None:
        self._running = None
        self._desk.overrun(running.job, message)
        self._replace(message)

    def _replace(self, reason: str, is_disk_full: bool = False) -> None:
        """Kill the worker; its job, if any still runs, waits again or fails."""
        running, self._running = self._running, None
        self._ready, self._trouble = False, reason
        if self._link is not None:
            logger().warning("worker replaced", slot=self.number, reason=reason)
            self._link.kill()
            self._link = None
            self._desk.worker_replaced()
        if running is not None:
            self._owed.append(Owed(running.job, reason, is_disk_full))
            self._pay()

    def _pay(self) -> bool:
        """Tell the store of lost runs; False while it cannot be written, so that it is tried again."""
        while self._owed:
            owed = self._owed[0]
            try:
                if owed.is_disk_full:
                    self._desk.out_of_disk(owed.job)
                else:
                    self._desk.lost(owed.job, owed.reason)
            except (sqlite3.Error, OSError) as error:
                logger(job_id=owed.job.id).error("lost run not recorded yet", slot=self.number, reason=str(error))
                return False
            self._owed.pop(0)
        return True

    def _leave(self) -> None:
        running, self._running = self._running, None
        if self._link is not None:
            if running is None:
                self._link.send(Stop())
            self._link.kill()
            self._link = None
        if running is not None:
            self._desk.given_up(running.job)


def _is_disk_full(error: Exception) -> bool:
    """Whether the store or a file could not be written for want of space."""
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    return isinstance(error, sqlite3.OperationalError) and "full" in str(error)

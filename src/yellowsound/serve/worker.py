"""The worker process: owns the device and the engines, runs one job at a time, tells what happens.

``python -m yellowsound.serve.worker FD`` is started by the pool with one end of a socket pair. The main thread runs
jobs, a second reads commands (so that a cancel arrives in mid-step), a third beats. When the server's end closes, the
worker leaves at once: nobody could take its result.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection

from yellowsound.serve.job_runner import JobRunner
from yellowsound.serve.worker_memory import memory_beat
from yellowsound.serve.worker_protocol import (
    Beat,
    Cancel,
    Command,
    EncodeAhead,
    Failed,
    Hello,
    Load,
    Message,
    Run,
    Stop,
    WorkerOptions,
)


class WorkerLoop:
    """Commands in, messages out; ``tell`` must be safe to call from several threads."""

    def __init__(self, options: WorkerOptions, tell: Callable[[Message], None]) -> None:
        self._tell = tell
        self._options = options
        self._work: queue.Queue[Load | Run | Stop] = queue.Queue()
        self._runner = JobRunner(options, tell)
        self._stopped = threading.Event()

    def take(self, command: Command) -> None:
        """Accept a command from the reading thread; cancels and look-ahead take effect while a job runs."""
        if isinstance(command, Cancel):
            self._runner.cancel(command.job_id)
        elif isinstance(command, EncodeAhead):
            self._runner.encode_ahead(command)
        else:
            self._work.put(command)

    def run(self) -> None:
        """Run jobs until told to stop or until a job left the process unusable."""
        self._tell(Hello(pid=os.getpid(), host=os.uname().nodename))
        threading.Thread(target=self._beat, name="beat", daemon=True).start()
        try:
            while not isinstance(command := self._work.get(), Stop):
                if isinstance(command, Load):
                    self._runner.load(command)
                    continue
                outcome = self._runner.run(command)
                self._tell(outcome)
                if isinstance(outcome, Failed) and outcome.fatal:
                    break
        finally:
            self._stopped.set()
            self._runner.close()

    def _beat(self) -> None:
        while not self._stopped.wait(self._options.beat_seconds):
            try:
                beat = memory_beat()
            except Exception:  # a figure that cannot be read must not look like a dead worker
                beat = Beat(rss_bytes=0, rss_peak_bytes=0, vram_peak_bytes=0)
            self._tell(beat)


def main() -> None:
    """Speak the protocol over the inherited socket whose number is the first argument."""
    connection = Connection(int(sys.argv[1]))
    options = connection.recv()
    lock = threading.Lock()

    def tell(message: Message) -> None:
        try:
            with lock:
                connection.send(message)
        except OSError:
            os._exit(0)

    loop = WorkerLoop(options, tell)

    def read() -> None:
        try:
            while True:
                loop.take(connection.recv())
        except (EOFError, OSError):
            os._exit(0)

    threading.Thread(target=read, name="commands", daemon=True).start()
    loop.run()


if __name__ == "__main__":
    main()

"""Workers on this machine: one process each, spoken to over a socket pair with pickled messages of our own.

The socket's end is the life line: a worker whose server died reads the end and leaves, and a dead worker is noticed at
once. What a library prints goes to stderr and cannot disturb the messages.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from multiprocessing.connection import Connection

from yellowsound.serve.logging import logger
from yellowsound.serve.worker_protocol import Command, Gone, Inbox, WorkerLink, WorkerOptions

_KILL_SECONDS = 10.0


class LocalPool:
    """Starts a worker process per slot; on CUDA each slot sees one card."""

    def __init__(self, options: WorkerOptions, workers: int) -> None:
        self._options, self._workers = options, workers

    def spawn(self, slot: int, inbox: Inbox) -> WorkerLink:
        return ProcessLink(self._options, self._environment(slot), inbox)

    def close(self) -> None:
        pass

    def _environment(self, slot: int) -> dict[str, str]:
        # every clip has encoder threads of its own; glibc would give each an arena and never take it back
        environment = {"MALLOC_ARENA_MAX": "2", **os.environ}
        if self._workers > 1 and self._options.device in ("auto", "cuda"):
            visible = environment.get("CUDA_VISIBLE_DEVICES")
            cards = [card for card in visible.split(",") if card] if visible is not None else None
            if cards is None:
                environment["CUDA_VISIBLE_DEVICES"] = str(slot)
            elif cards:
                environment["CUDA_VISIBLE_DEVICES"] = cards[slot % len(cards)]
        return environment


class ProcessLink:
    """One worker process."""

    def __init__(self, options: WorkerOptions, environment: dict[str, str], inbox: Inbox) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", "yellowsound.serve.worker", str(theirs.fileno())]
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=sys.stderr.fileno() if _has_fileno() else None,
                pass_fds=(theirs.fileno(),), env=environment, start_new_session=True,
            )  # fmt: skip
        self._connection = Connection(ours.detach())
        self._send_lock = threading.Lock()
        self._inbox = inbox
        self._thread = threading.Thread(target=self._listen, name=f"worker-{self.pid}", daemon=True)
        self._thread.start()
        self.send_options(options)

    @property
    def pid(self) -> int:
        return self._process.pid

    def send_options(self, options: WorkerOptions) -> None:
        with contextlib.suppress(OSError), self._send_lock:
            self._connection.send(options)

    def send(self, command: Command) -> None:
        with contextlib.suppress(OSError), self._send_lock:  # the listening thread tells Gone
            self._connection.send(command)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        self._thread.join(_KILL_SECONDS)
        self._process.wait(_KILL_SECONDS)

    def _listen(self) -> None:
        try:
            while True:
                self._inbox(self._connection.recv())
        except (EOFError, OSError):
            pass
        except Exception as error:  # a broken message must not leave the slot waiting for ever
            logger().error("worker message cannot be read", pid=self.pid, error=repr(error))
            self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_KILL_SECONDS)
        with self._send_lock:
            self._connection.close()
        self._inbox(Gone(reason=_ending(self._process.returncode)))


def _ending(code: int | None) -> str:
    if code is None:
        return "closed its connection but did not end"
    if code < 0:
        name = signal.Signals(-code).name
        hint = ", perhaps by the system for want of memory" if name == "SIGKILL" else ""
        return f"was killed ({name}{hint})"
    return f"ended with code {code}"


def _has_fileno() -> bool:
    try:
        sys.stderr.fileno()
    except (OSError, ValueError, AttributeError):
        return False
    return True

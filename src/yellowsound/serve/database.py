"""The SQLite file behind the job store: connections, transactions, and who is told after a commit.

Two writing connections share one lock: ``durable`` waits for the disk (an answer depends on it), ``relaxed`` does not
(progress may be lost with the power). Readers come from a small pool and never wait for a writer (WAL).
"""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from yellowsound.serve.job import Job, job_of_row
from yellowsound.serve.migrations import migrate

_READER_CACHE_KIB = 256  # there may be as many readers as threads
OnStored = Callable[[str, str], None]


class Database:
    """One open database. Thread-safe. Listeners get job id and kind of each stored event."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.RLock()
        self._idle: list[sqlite3.Connection] = []
        self._durable = self._connect("FULL")
        migrate(self._durable)
        self._relaxed = self._connect("NORMAL")
        self._listeners: list[OnStored] = []
        self._told: list[tuple[str, str]] = []

    def listen(self, on_stored: OnStored) -> None:
        self._listeners.append(on_stored)

    def close(self) -> None:
        """Close every connection; no thread may use the database afterwards."""
        with self._lock:
            for connection in (self._durable, self._relaxed, *self._idle):
                connection.close()
            self._idle.clear()

    def _connect(self, synchronous: str) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, timeout=30, isolation_level=None, check_same_thread=False)
        connection.row_factory = sqlite3.Row
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(f"PRAGMA synchronous = {synchronous}")
        return connection

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """A connection for reading, returned to the pool afterwards."""
        try:
            connection = self._idle.pop()  # list.pop and append are atomic
        except IndexError:
            connection = self._connect("NORMAL")
            connection.execute(f"PRAGMA cache_size = -{_READER_CACHE_KIB}")
        try:
            yield connection
        finally:
            self._idle.append(connection)

    @contextmanager
    def writing(self, durable: bool = True) -> Iterator[sqlite3.Connection]:
        """One transaction; events told inside reach the listeners after it is committed."""
        with self._lock:
            db = self._durable if durable else self._relaxed
            self._told = []
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
                db.execute("COMMIT")
            except BaseException:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                raise
            told = dict.fromkeys(self._told)
        for job_id, kind in told:
            for listener in self._listeners:
                listener(job_id, kind)

    def tell(self, db: sqlite3.Connection, job_id: str, kind: str, data: dict[str, Any]) -> None:
        """Append an event inside a transaction."""
        db.execute(
            "INSERT INTO events (job_id, time, type, data) VALUES (?, ?, ?, ?)",
            (job_id, time.time(), kind, json.dumps({"id": job_id, **data})),
        )
        self._told.append((job_id, kind))


def find(db: sqlite3.Connection, job_id: str) -> Job | None:
    row = db.execute("SELECT * FROM jobs WHERE id = ?", (job_id,)).fetchone()
    return job_of_row(row) if row else None

"""The tables of the job store, one list of statements for each ``user_version``."""

from __future__ import annotations

import sqlite3

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE jobs (
            seq INTEGER PRIMARY KEY AUTOINCREMENT,
            id TEXT NOT NULL UNIQUE,
            owner TEXT NOT NULL,
            model TEXT NOT NULL,
            recipe TEXT NOT NULL,
            kind TEXT NOT NULL,
            status TEXT NOT NULL CHECK (status IN ('queued', 'in_progress', 'completed', 'failed')),
            position REAL NOT NULL,
            request TEXT NOT NULL,
            warnings TEXT NOT NULL DEFAULT '[]',
            created_at REAL NOT NULL,
            started_at REAL,
            completed_at REAL,
            expires_at REAL,
            attempt INTEGER NOT NULL DEFAULT 0,
            worker TEXT,
            lease_until REAL,
            progress INTEGER NOT NULL DEFAULT 0,
            stage TEXT,
            step INTEGER,
            steps INTEGER,
            previews INTEGER NOT NULL DEFAULT 0,
            error_code TEXT,
            error_message TEXT,
            facts TEXT NOT NULL DEFAULT '{}'
        )""",
        "CREATE INDEX jobs_by_status ON jobs (status, position, seq, kind)",
        "CREATE INDEX jobs_by_end ON jobs (expires_at) WHERE expires_at IS NOT NULL",
        """CREATE TABLE events (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            job_id TEXT NOT NULL,
            time REAL NOT NULL,
            type TEXT NOT NULL,
            data TEXT NOT NULL
        )""",
        "CREATE INDEX events_by_job ON events (job_id, id)",
        """CREATE TABLE idempotency (
            owner TEXT NOT NULL,
            key TEXT NOT NULL,
            body_hash TEXT NOT NULL,
            job_id TEXT NOT NULL,
            created_at REAL NOT NULL,
            PRIMARY KEY (owner, key)
        )""",
        """CREATE TABLE tombstones (
            id TEXT PRIMARY KEY,
            owner TEXT NOT NULL,
            reason TEXT NOT NULL CHECK (reason IN ('expired', 'deleted')),
            time REAL NOT NULL
        )""",
        """CREATE TABLE timings (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            kind TEXT NOT NULL,
            seconds REAL NOT NULL
        )""",
        "CREATE INDEX timings_by_kind ON timings (kind, id)",
        "CREATE TABLE settings (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
    ),
)


def migrate(connection: sqlite3.Connection) -> None:
    """Bring the tables to the newest version. Raises RuntimeError on tables of a newer program."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > len(MIGRATIONS):
        raise RuntimeError(f"the job store is of version {version}, this program knows {len(MIGRATIONS)}: update it")
    for number, statements in enumerate(MIGRATIONS[version:], version + 1):
        connection.execute("BEGIN IMMEDIATE")
        for statement in statements:
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {number}")
        connection.execute("COMMIT")

"""JobStore: the life of jobs in SQLite. Accepted means on disk; every change of state is one transaction.

Each change that belongs to a run names its attempt: a late word of an earlier attempt, or of a job that was cancelled
meanwhile, changes nothing and returns False.
"""

from __future__ import annotations

import json
import sqlite3
import time
from typing import Any

from yellowsound.serve.database import find
from yellowsound.serve.job import Job, NewJob, job_of_row
from yellowsound.serve.job_reader import JobReader

KEPT_TIMINGS = 20
_OURS = "id = ? AND status = 'in_progress' AND attempt = ?"


class QueueFull(Exception):
    """No room: ``scope`` is "queue" or "key", ``limit`` its number."""

    def __init__(self, scope: str, limit: int) -> None:
        super().__init__(f"{scope}: {limit}")
        self.scope, self.limit = scope, limit


class IdempotencyConflict(Exception):
    """The key was used for another body."""


class JobStore(JobReader):
    """The job table of one server. Thread-safe. ``retention_seconds`` 0 keeps ended jobs for ever."""

    retention_seconds: float = 0.0

    def submit(
        self,
        new: NewJob,
        *,
        queue_limit: int,
        owner_limit: int | None = None,
        idempotency: tuple[str, str] | None = None,
    ) -> tuple[Job, bool]:
        """Store ``new``; returns the job and whether it is new. ``idempotency`` is (key, body hash).

        Raises QueueFull, IdempotencyConflict.
        """
        with self.writing() as db:
            if idempotency is not None:
                known = _known(db, new.owner, *idempotency)
                if known is not None:
                    return known, False
            _check_room(db, new.owner, queue_limit, owner_limit)
            _insert(db, new)
            if idempotency is not None:
                values = (new.owner, *idempotency, new.id, time.time())
                db.execute("INSERT OR REPLACE INTO idempotency VALUES (?, ?, ?, ?, ?)", values)
            self.tell(db, new.id, "queued", {"status": "queued", "progress": 0})
            return _found(db, new.id), True

    def replay(self, owner: str, key: str, body_hash: str) -> Job | None:
        """The job an idempotency key already stands for. Raises IdempotencyConflict."""
        with self.reading() as db:
            return _known(db, owner, key, body_hash)

    def claim(self, worker: str, lease_seconds: float, prefer: tuple[str, str] | None = None) -> Job | None:
        """Give the next queued job to ``worker``: the first of model and recipe ``prefer``, else the first of all.

        None when nothing waits or the queue is paused.
        """
        if self.setting("paused") == "yes" or not self.queued(limit=1):
            return None
        with self.writing() as db:
            row = _next(db, prefer) if prefer else None
            row = row or _next(db, None)
            if row is None:
                return None
            now = time.time()
            db.execute(
                "UPDATE jobs SET status = 'in_progress', attempt = attempt + 1, worker = ?, lease_until = ?,"
                " started_at = ?, progress = 0, stage = NULL, step = NULL, steps = NULL WHERE id = ?",
                (worker, now + lease_seconds, now, row["id"]),
            )
            self.tell(db, row["id"], "in_progress", {"status": "in_progress", "progress": 0})
            return _found(db, row["id"])

    def renew(self, job_id: str, attempt: int, lease_seconds: float) -> bool:
        """Prolong the lease of a running attempt."""
        with self.writing(durable=False) as db:
            until = time.time() + lease_seconds
            changed = db.execute(f"UPDATE jobs SET lease_until = ? WHERE {_OURS}", (until, job_id, attempt))
            return changed.rowcount == 1

    def advance(self, job_id: str, attempt: int, kind: str, data: dict[str, Any]) -> bool:
        """Note progress of a running attempt. ``data`` may set progress, stage, step, steps, previews, warning."""
        columns = {k: data[k] for k in ("stage", "step", "steps", "previews") if k in data}
        sets = ["progress = max(progress, ?)", *(f"{name} = ?" for name in columns)]
        values = (data.get("progress", 0), *columns.values(), job_id, attempt)
        with self.writing(durable=False) as db:
            changed = db.execute(f"UPDATE jobs SET {', '.join(sets)} WHERE {_OURS}", values).rowcount
            if not changed:
                return False
            if "warning" in data:
                _warn(db, job_id, data["warning"])
            row = db.execute("SELECT progress FROM jobs WHERE id = ?", (job_id,)).fetchone()
            self.tell(db, job_id, kind, {"status": "in_progress", **data, "progress": row["progress"]})
            return True

    def finish(self, job_id: str, attempt: int, facts: dict[str, Any], kind: str, seconds: float) -> bool:
        """The clip lies under its final name: the job is completed. ``seconds`` of ``kind`` feed the estimates."""
        with self.writing() as db:
            now = time.time()
            changed = db.execute(
                f"UPDATE jobs SET status = 'completed', progress = 100, stage = NULL, completed_at = ?,"
                f" expires_at = ?, facts = ?, worker = NULL, lease_until = NULL WHERE {_OURS}",
                (now, self._expiry(now), json.dumps(facts), job_id, attempt),
            )
            if changed.rowcount != 1:
                return False
            _keep_timing(db, kind, seconds)
            self.tell(db, job_id, "completed", {"status": "completed", "progress": 100})
            return True

    def fail(self, job_id: str, code: str, message: str, attempt: int | None = None) -> bool:
        """End a live job as failed; with ``attempt`` only if that attempt still runs."""
        with self.writing() as db:
            return self._fail(db, job_id, code, message, attempt)

    def requeue(self, job_id: str, attempt: int, code: str, message: str, attempts: int, refund: bool = False) -> bool:
        """Put a lost run back in its place, once: after ``attempts`` runs it fails with ``code``.

        ``refund`` does not count the run, for a server that stops in order. True when it waits again.
        """
        with self.writing() as db:
            if attempt >= attempts and not refund:
                self._fail(db, job_id, code, message, attempt)
                return False
            changed = db.execute(
                f"UPDATE jobs SET status = 'queued', attempt = attempt - ?, worker = NULL, lease_until = NULL,"
                f" progress = 0, stage = NULL, step = NULL, steps = NULL, started_at = NULL WHERE {_OURS}",
                (int(refund), job_id, attempt),
            )
            if changed.rowcount == 1:
                _warn(db, job_id, f"attempt {attempt} ended early ({message}); run again")
                self.tell(db, job_id, "requeued", {"status": "queued", "progress": 0, "reason": code})
            return changed.rowcount == 1

    def cancel(self, job_id: str) -> Job | None:
        """End a live job as failed with code ``cancelled``; an ended one stays as it is. None: unknown."""
        with self.writing() as db:
            self._fail(db, job_id, "cancelled", "The job was cancelled.", None)
            return find(db, job_id)

    def delete(self, job_id: str, reason: str = "deleted") -> bool:
        """Remove the record in any state and leave a tombstone. Files are the caller's next step."""
        with self.writing() as db:
            job = find(db, job_id)
            if job is None:
                return False
            db.execute("DELETE FROM jobs WHERE id = ?", (job_id,))
            db.execute("DELETE FROM events WHERE job_id = ?", (job_id,))
            values = (job_id, job.owner, reason, time.time())
            db.execute("INSERT OR REPLACE INTO tombstones VALUES (?, ?, ?, ?)", values)
            self.tell(db, job_id, reason, {"status": job.status})
            return True

    def move(self, job_id: str, to: int) -> bool:
        """Put a queued job at place ``to`` (0 is next). False when it no longer waits."""
        with self.writing() as db:
            rows = db.execute("SELECT id FROM jobs WHERE status = 'queued' ORDER BY position, seq").fetchall()
            order = [row["id"] for row in rows]
            if job_id not in order:
                return False
            order.remove(job_id)
            order.insert(max(0, to), job_id)
            db.executemany("UPDATE jobs SET position = ? WHERE id = ?", [(i, key) for i, key in enumerate(order)])
            self.tell(db, job_id, "moved", {"status": "queued", "queue_position": order.index(job_id)})
            return True

    def set_setting(self, name: str, value: str) -> None:
        with self.writing() as db:
            db.execute("INSERT OR REPLACE INTO settings VALUES (?, ?)", (name, value))

    def pause(self, paused: bool) -> None:
        """Stop or go on handing out jobs; survives a restart."""
        with self.writing() as db:
            db.execute("INSERT OR REPLACE INTO settings VALUES ('paused', ?)", ("yes" if paused else "no",))
            self.tell(db, "", "paused" if paused else "resumed", {})

    def mark_missing(self, job_id: str) -> None:
        """A completed job whose file is gone is a failed one."""
        with self.writing() as db:
            message = "The clip is no longer on the disk."
            db.execute(
                "UPDATE jobs SET status = 'failed', error_code = 'storage_error', error_message = ?"
                " WHERE id = ? AND status = 'completed'",
                (message, job_id),
            )
            data = {"status": "failed", "error": {"code": "storage_error", "message": message}}
            self.tell(db, job_id, "failed", data)

    def due(self) -> list[str]:
        """Ids whose retention time is over."""
        with self.reading() as db:
            rows = db.execute("SELECT id FROM jobs WHERE expires_at <= ?", (time.time(),)).fetchall()
        return [row["id"] for row in rows]

    def forget(self, before: float) -> None:
        """Drop idempotency keys, tombstones and events of gone jobs older than ``before`` (epoch seconds)."""
        with self.writing() as db:
            db.execute("DELETE FROM idempotency WHERE created_at < ?", (before,))
            db.execute("DELETE FROM tombstones WHERE time < ?", (before,))
            db.execute("DELETE FROM events WHERE time < ? AND job_id NOT IN (SELECT id FROM jobs)", (before,))

    def lost(self, everything: bool) -> list[Job]:
        """Running jobs whose lease is over, or all of them (at start: no worker of this server runs yet)."""
        now = time.time()
        return [job for job in self.running() if everything or (job.lease_until or 0) < now]

    def _expiry(self, now: float) -> float | None:
        return now + self.retention_seconds if self.retention_seconds else None

    def _fail(self, db: sqlite3.Connection, job_id: str, code: str, message: str, attempt: int | None) -> bool:
        live = "id = ? AND status IN ('queued', 'in_progress')"
        where, values = (live, (job_id,)) if attempt is None else (_OURS, (job_id, attempt))
        now = time.time()
        changed = db.execute(
            f"UPDATE jobs SET status = 'failed', error_code = ?, error_message = ?, completed_at = ?, expires_at = ?,"
            f" worker = NULL, lease_until = NULL WHERE {where}",
            (code, message, now, self._expiry(now), *values),
        )
        if changed.rowcount == 1:
            data = {"status": "failed", "error": {"code": code, "message": message}}
            self.tell(db, job_id, "failed", data)
        return changed.rowcount == 1


def _known(db: sqlite3.Connection, owner: str, key: str, body_hash: str) -> Job | None:
    row = db.execute("SELECT * FROM idempotency WHERE owner = ? AND key = ?", (owner, key)).fetchone()
    if row is None:
        return None
    if row["body_hash"] != body_hash:
        raise IdempotencyConflict(key)
    return find(db, row["job_id"])


def _check_room(db: sqlite3.Connection, owner: str, queue_limit: int, owner_limit: int | None) -> None:
    (waiting,) = db.execute("SELECT count(*) FROM jobs WHERE status = 'queued'").fetchone()
    if waiting >= queue_limit:
        raise QueueFull("queue", queue_limit)
    if owner_limit is not None:
        query = "SELECT count(*) FROM jobs WHERE status = 'queued' AND owner = ?"
        (own,) = db.execute(query, (owner,)).fetchone()
        if own >= owner_limit:
            raise QueueFull("key", owner_limit)


def _insert(db: sqlite3.Connection, new: NewJob) -> None:
    (last,) = db.execute("SELECT coalesce(max(position), 0) FROM jobs WHERE status = 'queued'").fetchone()
    request, warnings = json.dumps(new.request), json.dumps(new.warnings)
    db.execute(
        "INSERT INTO jobs (id, owner, model, recipe, kind, status, position, request, warnings, created_at)"
        " VALUES (?, ?, ?, ?, ?, 'queued', ?, ?, ?, ?)",
        (new.id, new.owner, new.model, new.recipe, new.kind, last + 1, request, warnings, time.time()),
    )


def _next(db: sqlite3.Connection, prefer: tuple[str, str] | None) -> sqlite3.Row | None:
    clause = "AND model = ? AND recipe = ?" if prefer else ""
    query = f"SELECT * FROM jobs WHERE status = 'queued' {clause} ORDER BY position, seq LIMIT 1"
    row: sqlite3.Row | None = db.execute(query, prefer or ()).fetchone()
    return row


def _warn(db: sqlite3.Connection, job_id: str, warning: str) -> None:
    row = db.execute("SELECT warnings FROM jobs WHERE id = ?", (job_id,)).fetchone()
    warnings = json.loads(row["warnings"])
    if warning not in warnings:
        db.execute("UPDATE jobs SET warnings = ? WHERE id = ?", (json.dumps([*warnings, warning]), job_id))


def _keep_timing(db: sqlite3.Connection, kind: str, seconds: float) -> None:
    db.execute("INSERT INTO timings (kind, seconds) VALUES (?, ?)", (kind, seconds))
    db.execute(
        "DELETE FROM timings WHERE kind = ? AND id NOT IN"
        " (SELECT id FROM timings WHERE kind = ? ORDER BY id DESC LIMIT ?)",
        (kind, kind, KEPT_TIMINGS),
    )


def _found(db: sqlite3.Connection, job_id: str) -> Job:
    row = db.execute("SELECT * FROM jobs WHERE id = ?", (job_id,)).fetchone()
    return job_of_row(row)

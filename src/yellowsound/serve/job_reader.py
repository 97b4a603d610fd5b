"""Questions to the job store: nothing here changes a row."""

from __future__ import annotations

import json
from typing import Any

from yellowsound.serve.database import Database, find
from yellowsound.serve.job import Job, job_of_row


class JobReader(Database):
    """Reading half of the job store."""

    def get(self, job_id: str) -> Job | None:
        with self.reading() as db:
            return find(db, job_id)

    def tombstone(self, job_id: str) -> str | None:
        """Why a job is no longer there: "expired", "deleted" or None."""
        row = self._row("SELECT reason FROM tombstones WHERE id = ?", job_id)
        return row[0] if row else None

    def page(
        self, *, limit: int, after: str | None = None, ascending: bool = False, owner: str | None = None
    ) -> tuple[list[Job], bool]:
        """Up to ``limit`` jobs by age and whether more follow. An unknown ``after`` gives an empty page."""
        clauses, values = ["1"], []
        if owner is not None:
            clauses.append("owner = ?")
            values.append(owner)
        if after is not None:
            clauses.append(f"seq {'>' if ascending else '<'} (SELECT seq FROM jobs WHERE id = ?)")
            values.append(after)
        query = f"SELECT * FROM jobs WHERE {' AND '.join(clauses)} ORDER BY seq {'ASC' if ascending else 'DESC'}"
        jobs = self._jobs(f"{query} LIMIT ?", *values, limit + 1)
        return jobs[:limit], len(jobs) > limit

    def queued(self, limit: int = 1000) -> list[Job]:
        """The waiting jobs in the order they will be considered."""
        return self._jobs("SELECT * FROM jobs WHERE status = 'queued' ORDER BY position, seq LIMIT ?", limit)

    def running(self) -> list[Job]:
        return self._jobs("SELECT * FROM jobs WHERE status = 'in_progress' ORDER BY started_at")

    def waiting_before(self, job: Job) -> int:
        """How many queued jobs stand before ``job``."""
        return sum(self.ahead(job).values())

    def ahead(self, job: Job) -> dict[str, int]:
        """How many queued jobs of each kind stand before ``job``."""
        query = "SELECT kind, count(*) FROM jobs WHERE status = 'queued' AND (position, seq) < (?, ?) GROUP BY kind"
        with self.reading() as db:
            return {row[0]: row[1] for row in db.execute(query, (job.position, job.seq))}

    def counts(self) -> dict[str, int]:
        """Number of jobs by status."""
        with self.reading() as db:
            rows = db.execute("SELECT status, count(*) FROM jobs GROUP BY status").fetchall()
        return {"queued": 0, "in_progress": 0, "completed": 0, "failed": 0} | {row[0]: row[1] for row in rows}

    def completed_since(self, moment: float) -> int:
        return self._number("SELECT count(*) FROM jobs WHERE status = 'completed' AND completed_at >= ?", moment)

    def last_failures(self, limit: int = 5) -> list[Job]:
        """The newest failed jobs that nobody cancelled."""
        query = "SELECT * FROM jobs WHERE status = 'failed' AND error_code != 'cancelled' ORDER BY completed_at DESC"
        return self._jobs(f"{query} LIMIT ?", limit)

    def ids(self, *statuses: str) -> set[str]:
        """Ids of all jobs, or of those in ``statuses``."""
        query = "SELECT id FROM jobs" + (f" WHERE status IN ({','.join('?' * len(statuses))})" if statuses else "")
        with self.reading() as db:
            return {row[0] for row in db.execute(query, statuses)}

    def snapshot(self, job_id: str) -> tuple[Job | None, int]:
        """The job and the number of the newest event, both of one moment: what follows happened later."""
        with self.reading() as db:
            db.execute("BEGIN")
            try:
                (number,) = db.execute("SELECT coalesce(max(id), 0) FROM events").fetchone()
                return find(db, job_id), int(number)
            finally:
                db.execute("ROLLBACK")

    def last_event_id(self) -> int:
        return self._number("SELECT coalesce(max(id), 0) FROM events")

    def events_after(self, event_id: int, job_id: str | None = None, limit: int = 500) -> list[dict[str, Any]]:
        """Stored events after ``event_id``, oldest first: id, job_id, time, type, data."""
        clause, values = ("AND job_id = ?", (job_id,)) if job_id else ("", ())
        query = f"SELECT * FROM events WHERE id > ? {clause} ORDER BY id LIMIT ?"
        with self.reading() as db:
            rows = db.execute(query, (event_id, *values, limit)).fetchall()
        return [{**dict(row), "data": json.loads(row["data"])} for row in rows]

    def setting(self, name: str, default: str = "") -> str:
        row = self._row("SELECT value FROM settings WHERE name = ?", name)
        return row[0] if row else default

    def timings(self) -> list[tuple[str, float]]:
        """All kept run times, oldest first: (kind of job, seconds)."""
        with self.reading() as db:
            return [(row[0], row[1]) for row in db.execute("SELECT kind, seconds FROM timings ORDER BY id")]

    def _row(self, query: str, *values: object) -> Any:
        with self.reading() as db:
            return db.execute(query, values).fetchone()

    def _number(self, query: str, *values: object) -> int:
        return int(self._row(query, *values)[0])

    def _jobs(self, query: str, *values: object) -> list[Job]:
        with self.reading() as db:
            return [job_of_row(row) for row in db.execute(query, values)]

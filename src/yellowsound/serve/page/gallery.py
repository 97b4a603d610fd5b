"""The gallery is the job table: newest first, filtered by words and state, page by page."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import urlencode

from fastapi import Query

from yellowsound.serve.job import Job, is_job_id
from yellowsound.serve.service import Service

PAGE = 12
_BATCH = 100
STATES = ("completed", "in_progress", "queued", "failed", "cancelled")


@dataclass(frozen=True, slots=True)
class Filter:
    """What of the table is shown: all of ``words`` in prompt, model, recipe or id; ``state`` one of STATES or ""."""

    words: str = ""
    state: str = ""
    after: str = ""

    def takes(self, job: Job) -> bool:
        state = "cancelled" if job.error_code == "cancelled" else job.status
        text = f"{job.request['prompt']} {job.model} {job.recipe} {job.id} {job.request['seed']}".casefold()
        return (not self.state or state == self.state) and all(w in text for w in self.words.casefold().split())

    def query(self, after: str = "") -> str:
        """The filter as a query string, from another place of the table on."""
        named = {"q": self.words, "state": self.state, "after": after}
        return urlencode({name: value for name, value in named.items() if value})


def filter_of(
    q: Annotated[str, Query(max_length=200)] = "",
    state: Annotated[str, Query(max_length=20)] = "",
    after: Annotated[str, Query(max_length=40)] = "",
) -> Filter:
    """The filter of a request; an unknown state or place means none."""
    return Filter(q.strip(), state if state in STATES else "", after if is_job_id(after) else "")


def jobs_of(service: Service, wanted: Filter, owner: str | None) -> tuple[list[Job], bool]:
    """One page of the table, and whether more follows."""
    found: list[Job] = []
    for job in _newest_first(service, wanted.after, owner):
        if wanted.takes(job):
            found.append(job)
        if len(found) > PAGE:
            break
    return found[:PAGE], len(found) > PAGE


def _newest_first(service: Service, after: str, owner: str | None) -> Iterator[Job]:
    last, more = after or None, True
    while more:
        jobs, more = service.store.page(limit=_BATCH, after=last, owner=owner)
        yield from jobs
        last = jobs[-1].id if jobs else last

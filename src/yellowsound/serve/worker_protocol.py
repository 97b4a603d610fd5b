"""What the server and a worker say to each other: small frozen messages, the same for a local process and a Ray actor.

The server sends commands, the worker tells messages. A worker runs one job at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

FAKE = "fake:"  # sources of made-up engines, for tests only


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """How a worker opens its device. ``ram_share``: its part of the host's memory (1/workers)."""

    device: str = "auto"
    ram_share: float = 1.0
    vram_bytes: int | None = None
    ram_bytes: int | None = None
    beat_seconds: float = 1.0
    allow_fake_engines: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Open this checkpoint before a job asks for it."""

    source: str
    recipe: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Make one clip. ``request`` holds ClipRequest fields; ``out`` a path, or None to get the bytes back."""

    job_id: str
    attempt: int
    source: str
    recipe: str
    request: dict[str, Any]
    image: bytes | None
    out: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    job_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodeAhead:
    """Encode the next job's prompts while the present job denoises, if the engine can."""

    source: str
    recipe: str
    prompts: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    pass


Command = Load | Run | Cancel | EncodeAhead | Stop


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    pid: int
    host: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    source: str
    recipe: str
    seconds: float
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadFailed:
    source: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """The worker lives. Memory in bytes; peaks since its start."""

    rss_bytes: int
    rss_peak_bytes: int
    vram_peak_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """An engine event of a job as JSON values; ``strip`` is a WebP picture when it was a preview."""

    job_id: str
    attempt: int
    event: dict[str, Any]
    strip: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The clip is whole. ``clip`` holds the MP4 when no shared path was given; frames are WebP and PNG."""

    job_id: str
    attempt: int
    facts: dict[str, Any]
    first_frame: bytes
    last_frame: bytes
    clip: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The job did not end well. ``fatal``: the worker must be replaced before it runs another."""

    job_id: str
    attempt: int
    code: str
    message: str
    fatal: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Gone:
    """Told by the link itself: the worker died or cannot be reached."""

    reason: str


Message = Hello | Loaded | LoadFailed | Beat | Told | Finished | Failed | Gone
Inbox = Callable[[Message], None]


class WorkerLink(Protocol):
    """One running worker as the dispatcher sees it."""

    def send(self, command: Command) -> None:
        """Hand over a command; a dead worker is told by ``Gone``, never raised here."""

    def kill(self) -> None:
        """End the worker at once and wait until it is gone."""


class WorkerPool(Protocol):
    """Where workers come from."""

    def spawn(self, slot: int, inbox: Inbox) -> WorkerLink:
        """Start the worker of ``slot``; everything it tells goes to ``inbox``, from another thread."""

    def close(self) -> None:
        """End what the pool itself holds."""

"""Settings of the server: what the command line may choose, and the limits that protect the machine."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from yellowsound.recipe import find_recipe
from yellowsound.request import RequestError

MEBIBYTE = 1 << 20
DEFAULT_PORT = 8094
_OPTIONS = {"queue": "queue_limit", "run_seconds": "run_limit_seconds"}  # as the command line calls them


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one request, one queue and one run may take. Bytes and seconds are in the names. Raises RequestError."""

    body_bytes: int = 64 * MEBIBYTE
    picture_bytes: int = 32 * MEBIBYTE
    picture_pixels: int = 64_000_000
    text_part_bytes: int = 24 * MEBIBYTE
    fields: int = 200
    json_depth: int = 20
    queue: int = 64
    queue_per_key: int = 16
    run_seconds: float = 3600.0
    stall_seconds: float = 1200.0  # a step of the largest clip takes about a minute, a first load several
    heartbeat_seconds: float = 60.0
    start_seconds: float = 180.0
    cancel_seconds: float = 60.0
    sync_seconds: float = 3600.0
    attempts: int = 2
    picture_check_seconds: float = 10.0

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if not value > 0:  # nor is "not a number"
                raise RequestError(_OPTIONS.get(name, name), value, "must be more than 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class RemotePictures:
    """Whether a picture may be named by URL, and from where. ``allow_addresses`` admits private ones (for tests)."""

    enabled: bool = False
    allow_addresses: tuple[str, ...] = ()
    seconds: float = 10.0
    redirects: int = 3
    bytes: int = 32 * MEBIBYTE


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One server. ``checkpoints`` are SPEC or NAME=SPEC; ``fair_runs`` jobs of one model run before another's turn.

    Raises RequestError.
    """

    checkpoints: tuple[str, ...] = ("demo",)
    data_dir: Path = Path("yellowsound-data")
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    device: str = "auto"
    recipes: tuple[str, ...] = ("exact",)
    api_keys: tuple[str, ...] = ()
    isolate_keys: bool = False
    open_metrics: bool = True
    workers: int = 1
    ray: str | None = None
    ray_gpus_per_worker: float = 1.0
    shared_folder: bool = True
    vram_bytes: int | None = None
    ram_bytes: int | None = None
    retention_seconds: float = 86_400.0  # 0 keeps for ever
    tombstone_seconds: float = 86_400.0
    disk_floor_bytes: int = 1024 * MEBIBYTE
    fair_runs: int = 4
    sweep_seconds: float = 30.0
    beat_seconds: float = 1.0
    poll_after_ms: int = 2000
    signature_seconds: float = 86_400.0
    public_url: str = ""
    cors_origins: tuple[str, ...] = ()
    model_aliases: tuple[str, ...] = ()
    allow_fps: bool = False
    page: bool = True
    allow_fake_engines: bool = False
    limits: Limits = field(default_factory=Limits)
    remote: RemotePictures = field(default_factory=RemotePictures)

    def __post_init__(self) -> None:
        for name, example in (("checkpoints", "demo"), ("recipes", "exact")):
            if not getattr(self, name):
                raise RequestError(name, (), "at least one is needed", example)
        for name in ("workers", "fair_runs"):
            if getattr(self, name) < 1:
                raise RequestError(name, getattr(self, name), "must be 1 or more", 1)
        for name in self.recipes:
            find_recipe(name)

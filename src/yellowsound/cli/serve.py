"""yellowsound serve: the job server, with its options as settings. Heavy imports wait until it runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from yellowsound.cli.options import Whole, lines_of, not_negative

if TYPE_CHECKING:
    from yellowsound.serve.settings import Settings

GIBIBYTE = 1 << 30


def serve(
    *checkpoints: str,
    host: str = "127.0.0.1",
    port: Whole = 8094,
    device: str = "auto",
    recipe: Annotated[tuple[str, ...], Parameter(negative=())] = ("exact",),
    data_dir: Annotated[Path | None, Parameter(env_var="YELLOWSOUND_DATA_DIR")] = None,
    api_key: Annotated[tuple[str, ...], Parameter(negative=())] = (),
    api_key_file: Path | None = None,
    isolate_keys: bool = False,
    workers: Whole = 1,
    ray: str | None = None,
    ray_gpus: float = 1.0,
    shared_folder: bool = True,
    vram: str | None = None,
    ram: str | None = None,
    retention_hours: float = 24.0,
    disk_floor_gib: float = 1.0,
    queue_limit: Whole = 64,
    run_limit_seconds: float = 3600.0,
    fair_runs: Whole = 4,
    public_url: str = "",
    cors_origin: Annotated[tuple[str, ...], Parameter(negative=())] = (),
    model_alias: Annotated[tuple[str, ...], Parameter(negative=())] = (),
    allow_picture_urls: bool = False,
    allow_fps: bool = False,
    page: bool = True,
    log_level: Literal["debug", "info", "warning", "error"] = "info",
) -> None:
    """Serve clips as jobs over HTTP.

    Parameters
    ----------
    checkpoints
        Folders or names, also NAME=FOLDER; the first is the default model. None: the demo, which runs on a CPU.
    host
        Address to listen on; 0.0.0.0 is every network, for which --api-key is advised.
    port
        Port to listen on.
    device
        auto, cpu, cuda or cuda:N.
    recipe
        Speed recipes that requests may choose; the first is the default.
    data_dir
        Where jobs and clips are kept; by default the user's data folder.
    api_key
        A key that clients must show; may be repeated. YELLOWSOUND_API_KEY holds keys separated by commas.
    api_key_file
        A file with one key a line.
    isolate_keys
        Each key sees its own jobs only.
    workers
        Worker processes, one for each GPU; memory budgets are divided among them.
    ray
        Run workers as Ray actors: auto starts or joins a local cluster, else the cluster's address.
    ray_gpus
        GPUs that each Ray actor reserves; 0 for CPU actors.
    shared_folder
        Ray only: the data folder is the same on every node, so clips need not travel.
    vram
        Most of the card that may be taken, such as 16GiB; all of it when left out.
    ram
        Most of the memory for all workers, such as 48GiB; what is free when left out.
    retention_hours
        How long ended jobs and their files are kept; 0 for ever.
    disk_floor_gib
        Free space below which new jobs are refused.
    queue_limit
        Jobs that may wait.
    run_limit_seconds
        Longest run of one job.
    fair_runs
        Jobs of one model that run in a row while another model waits.
    public_url
        Put before content_url, for clients elsewhere; relative when left out.
    cors_origin
        A web site whose pages may call this server; may be repeated.
    model_alias
        ALIAS=MODEL, another name for a served model; may be repeated.
    allow_picture_urls
        Fetch pictures named by URL, from public addresses only.
    allow_fps
        Take other frame rates than the model's own: they change the speed of playing.
    page
        Serve the web page at / beside the API.
    log_level
        debug, info, warning or error.
    """
    try:
        from yellowsound.serve.settings import Limits, RemotePictures, Settings
    except ModuleNotFoundError as error:
        raise SystemExit(_missing(error)) from None
    from yellowsound.memory.budget import parse_bytes

    limits = Limits(queue=queue_limit, run_seconds=run_limit_seconds)
    settings = Settings(
        checkpoints=checkpoints or ("demo",),
        data_dir=data_dir or _default_data_dir(),
        host=host,
        port=port,
        device=device,
        recipes=recipe,
        api_keys=_keys(api_key, api_key_file),
        isolate_keys=isolate_keys,
        workers=workers,
        ray=ray,
        ray_gpus_per_worker=not_negative("ray_gpus", ray_gpus),
        shared_folder=shared_folder or ray is None,
        vram_bytes=None if vram is None else parse_bytes(vram, "vram"),
        ram_bytes=None if ram is None else parse_bytes(ram, "ram"),
        retention_seconds=not_negative("retention_hours", retention_hours) * 3600,
        disk_floor_bytes=int(not_negative("disk_floor_gib", disk_floor_gib) * GIBIBYTE),
        fair_runs=fair_runs,
        public_url=public_url,
        cors_origins=cors_origin,
        model_aliases=model_alias,
        allow_fps=allow_fps,
        page=page,
        allow_fake_engines=_fakes_allowed(),
        limits=limits,
        remote=RemotePictures(enabled=allow_picture_urls),
    )
    _run(settings, log_level)


def _run(settings: Settings, log_level: str) -> None:
    try:
        from yellowsound.serve.main import run_server
    except ModuleNotFoundError as error:
        raise SystemExit(_missing(error)) from None
    run_server(settings, log_level)


def _keys(given: tuple[str, ...], file: Path | None) -> tuple[str, ...]:
    import os

    from_environment = os.environ.get("YELLOWSOUND_API_KEY", "").split(",")
    from_file = lines_of("api_key_file", file) if file else []
    return tuple(dict.fromkeys(key.strip() for key in (*given, *from_environment, *from_file) if key.strip()))


def _default_data_dir() -> Path:
    from platformdirs import user_data_path

    return user_data_path("yellowsound") / "server"


def _fakes_allowed() -> bool:
    """Fake engines exist for tests and load measurements; no option of the command line reaches them."""
    import os

    return os.environ.get("YELLOWSOUND_TEST_ENGINES") == "yes"


def _missing(error: ModuleNotFoundError) -> str:
    if (error.name or "").startswith("yellowsound"):
        raise error
    return f"yellowsound serve needs the package {error.name}: pip install 'yellowsound[serve]'"

"""yellowsound weights: what is published, fetching it, looking at it, and making up something of its size."""

from __future__ import annotations

import json as json_module
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from yellowsound.cli.options import Whole
from yellowsound.request import RequestError

if TYPE_CHECKING:
    from yellowsound.weights.catalog import Published
    from yellowsound.weights.describe import Description

app = App(
    name="weights",
    help="List, download, check, describe or synthesise checkpoints.",
    help_format="plaintext",
)
_Json = Annotated[bool, Parameter(negative="")]


@app.command(name="list")
def list_checkpoints(*, json: _Json = False) -> None:
    """List the published checkpoints: bytes, steps, guidance, gating, licences, and which are here.

    Parameters
    ----------
    json
        One JSON document instead of a table.
    """
    from dataclasses import asdict

    from yellowsound.weights import catalog

    rows = []
    for entry in catalog.CATALOG:
        folder = catalog.snapshot(entry)
        state = "no" if folder is None else ("unfinished" if catalog.problem(entry, folder) else "yes")
        rows.append({**asdict(entry), "here": state, "folder": None if folder is None else str(folder)})
    if json:
        print(json_module.dumps(rows, indent=2))
        return
    print(f"{'name':14}{'GB':>7}{'steps':>7}{'guidance':>10}{'audio scale':>13}  {'here':11}access")
    for row in rows:
        size = "?" if row["size_bytes"] is None else f"{row['size_bytes'] / 1e9:.1f}"
        scale = "-" if row["audio_latent_scale"] is None else f"{row['audio_latent_scale']}"
        left = f"{row['name']:14}{size:>7}{row['steps']:>7}{row['guidance']:>10}{scale:>13}"
        print(f"{left}  {row['here']:11}{row['gating']}")
    print(f"\nlicences: {catalog.LICENCES}.")
    print(f"licences of vsr and vsr-distill: {catalog.UPSCALER_LICENCES}.")


@app.command
def download(
    name: str,
    *,
    revision: str | None = None,
    json: _Json = False,
    quiet: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Download a published checkpoint into the hub cache, or KANDINSKY_HOME/weights if that is set; resumable.

    Parameters
    ----------
    name
        A name from ``yellowsound weights list``.
    revision
        Branch, tag or commit; the newest of branch main without it.
    json
        One JSON document on stdout, nothing else.
    quiet
        No progress bars.
    """
    from yellowsound.weights.download import download as fetch

    entry = _published("name", name)
    got = fetch(entry, revision=revision, quiet=quiet or json)
    facts = {
        "name": entry.name, "folder": str(got.folder), "revision": got.revision, "total_bytes": got.total_bytes,
        "fetched_bytes": got.fetched_bytes,
    }  # fmt: skip
    if json:
        print(json_module.dumps(facts, indent=2))
        return
    print(f"{entry.name} is in {got.folder}")
    print(f"revision {got.revision}; {got.fetched_bytes / 1e9:.2f} of {got.total_bytes / 1e9:.2f} GB were fetched now")
    print(f"licences: {entry.licences}.")


@app.command
def check(folder: str, *, headers_only: Annotated[bool, Parameter(negative="")] = False, json: _Json = False) -> None:
    """Check a checkpoint without reading a weight: files, indexes, widths, names and shapes of the models.

    Parameters
    ----------
    folder
        A folder, ``demo``, or a published name.
    headers_only
        Leave out the comparison with the models' own names and shapes, which needs torch.
    json
        One JSON document on stdout.
    """
    from yellowsound.checkpoint import Checkpoint
    from yellowsound.weights.catalog import resolve
    from yellowsound.weights.describe import describe as look

    place = resolve(folder)
    facts = look(place)
    compared = not headers_only and facts.task == "generate"
    if compared:
        from yellowsound.weights.verify_shapes import check_against_models

        check_against_models(Checkpoint.open(place))
    if json:
        print(json_module.dumps({**facts.to_json(), "shapes_compared": compared, "ok": True}, indent=2))
        return
    parts = ", ".join(part.name for part in facts.parts)
    print(f"{facts.name}: every file is whole and the parts fit together ({parts})")
    print("names and shapes are the models' own" if compared else "names and shapes were not compared with the models'")
    _print_differences(facts)


@app.command
def describe(folder: str, *, json: _Json = False) -> None:
    """Describe a checkpoint from its headers: variant, parameters, bytes by part and dtype.

    Parameters
    ----------
    folder
        A folder, ``demo``, or a published name (also one that is not downloaded).
    json
        One JSON document instead of a table.
    """
    from yellowsound.weights.catalog import find, resolve, snapshot
    from yellowsound.weights.describe import describe as look
    from yellowsound.weights.describe import describe_published

    entry = find(folder)
    known_only = entry is not None and snapshot(entry) is None
    facts = describe_published(entry) if entry is not None and known_only else look(resolve(folder))
    if json:
        print(json_module.dumps(facts.to_json(), indent=2))
        return
    where = facts.folder or "not downloaded: from the published headers of its transformer"
    print(f"{facts.name} ({facts.task}, {facts.variant}), {where}")
    if facts.revision:
        print(f"revision {facts.revision}")
    print(f"{'part':16}{'class':38}{'parameters':>16}{'bytes':>17}  by dtype")
    for part in facts.parts:
        dtypes = ", ".join(f"{dtype} {size:,}" for dtype, size in sorted(part.bytes_by_dtype.items()))
        print(f"{part.name:16}{part.class_name:38}{part.parameters:>16,}{part.size_bytes:>17,}  {dtypes}")
    print(f"{'together':54}{facts.parameters:>16,}{facts.size_bytes:>17,}")
    print(f"default steps {facts.steps}, guidance {facts.guidance}, audio latent scale {facts.audio_latent_scale}")
    _print_differences(facts)


@app.command
def synth(
    out: Path,
    *,
    like: str = "pro-distill",
    components: str = "transformer,vae,audio",
    blocks: Whole | None = None,
    seed: Whole = 0,
    json: _Json = False,
    quiet: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Write a checkpoint of random weights with the names, shapes, dtypes and sizes of a published one.

    What it makes is noise: it is for measuring a machine before 80 GB are downloaded.

    Parameters
    ----------
    out
        Folder to write; it must not exist.
    like
        Published name to imitate.
    components
        Of transformer, vae, audio and text (Qwen2.5-VL-7B and CLIP-L in shape, with the demo's small tokenizers).
    blocks
        Fewer fused blocks than published.
    seed
        0 or more; the same seed writes the same bytes.
    json
        One JSON document on stdout, nothing else.
    quiet
        No progress on stderr.
    """
    from yellowsound.weights.blueprint import blueprint
    from yellowsound.weights.synth import synthesize

    entry = _published("like", like)
    plan = blueprint(entry, [part.strip() for part in components.split(",")], blocks)
    began = time.perf_counter()
    size = synthesize(plan, out, seed=seed, on_bytes=None if quiet or json else _Progress())
    seconds = time.perf_counter() - began
    facts = {"folder": str(out), "like": entry.name, "bytes": size, "seconds": round(seconds, 3), "seed": seed}
    if json:
        print(json_module.dumps({**facts, "absent": plan.absent}, indent=2))
        return
    print(f"{out}: {size / 1e9:.2f} GB in {seconds:.1f} s ({size / seconds / 1e9:.2f} GB/s)")
    if plan.absent:
        print(f"declared absent: {', '.join(plan.absent)}")


def _published(option: str, name: str) -> Published:
    """The catalog's entry. Raises RequestError."""
    from yellowsound.weights.catalog import CATALOG, find

    entry = find(name)
    if entry is None:
        known = ", ".join(e.name for e in CATALOG)
        raise RequestError(option, name, f"is no published checkpoint; known: {known}")
    return entry


class _Progress:
    """A line on stderr every few seconds."""

    def __init__(self) -> None:
        self._began = self._told = time.perf_counter()

    def __call__(self, done: int, total: int) -> None:
        now = time.perf_counter()
        if now - self._told >= 2.0:
            self._told = now
            speed = done / (now - self._began)
            left = (total - done) / speed
            line = f"{done / 1e9:.1f} of {total / 1e9:.1f} GB, {speed / 1e9:.2f} GB/s, {left:.0f} s left"
            print(line, file=sys.stderr, flush=True)


def _print_differences(facts: Description) -> None:
    """How it stands to the published checkpoints."""
    if facts.like:
        print(f"its transformer has the tensors of {', '.join(facts.like)}")
    for line in facts.notes:
        print(f"differs: {line}")
    if facts.absent:
        print(f"absent: {', '.join(facts.absent)}")
    if facts.licences:
        print(f"licences: {facts.licences}.")

"""Many clips from one load: prompts times seeds into a folder, resumable, all prompts encoded first."""

from __future__ import annotations

import json
from dataclasses import fields as fields_of
from pathlib import Path
from typing import Any

from yellowsound.cli.making import (
    Output,
    cancel_on_interrupt,
    closing_display,
    load_engine,
    make_clip,
    print_result,
)
from yellowsound.cli.options import lines_of
from yellowsound.request import ClipRequest, RequestError

_REQUEST_FIELDS = {f.name for f in fields_of(ClipRequest)} - {"warnings"}


def generate_many(
    file: Path, defaults: dict[str, Any], seeds: int, output: Output, engine_options: dict[str, Any]
) -> None:
    """Make every missing clip of ``file``; a clip's name is its line, prompt and seed, so a second run goes on."""
    if seeds < 1:
        raise RequestError("seeds", seeds, "must be at least 1", 1)
    requests = read_prompts(file, defaults)
    folder = output.out or Path.cwd()
    folder.mkdir(parents=True, exist_ok=True)
    wanted = [(r, path) for r, path in plan_files(requests, seeds, folder) if output.overwrite or not path.exists()]
    skipped = len(requests) * seeds - len(wanted)
    reports = []
    with cancel_on_interrupt() as cancel, closing_display(output.display):
        if wanted:
            engine = load_engine(engine_options)
            engine.encode_ahead([request for request, _ in wanted], cancel=cancel)
        for request, path in wanted:
            reports.append(make_clip(engine, request, path, output, cancel))
            if not output.json:
                print_result(reports[-1], output)
    if output.json:
        print(json.dumps({"clips": reports, "skipped": skipped}, ensure_ascii=False))
    elif not output.quiet:
        print(f"{len(reports)} clips made, {skipped} were there already")


def read_prompts(file: Path, defaults: dict[str, Any]) -> list[ClipRequest]:
    """One request a line: plain text, or a JSON object with ``prompt`` and any field of a request. Blank lines pass.

    Raises RequestError naming the line; nothing is made if one line is wrong.
    """
    requests = []
    for number, line in enumerate(lines_of("prompts", file), start=1):
        if not line.strip():
            continue
        try:
            requests.append(ClipRequest(**{**defaults, **_parse(line)}))
        except RequestError as error:
            raise RequestError(f"{file.name} line {number}: {error.field}", error.value, error.problem) from None
    if not requests:
        raise RequestError("prompts", str(file), "holds no prompt")
    return requests


def plan_files(requests: list[ClipRequest], seeds: int, folder: Path) -> list[tuple[ClipRequest, Path]]:
    """Each request with each of its seeds, and the name of its file: number of the prompt, slug, seed."""
    from dataclasses import replace

    from yellowsound.clip import slug_for

    planned = []
    for number, request in enumerate(requests, start=1):
        first = request.seed if request.seed not in (None, -1) else 0
        for seed in range(first or 0, (first or 0) + seeds):
            name = f"{number:04d}-{slug_for(request.prompt, 80)}-{seed}.mp4"
            planned.append((replace(request, seed=seed), folder / name))
    return planned


def _parse(line: str) -> dict[str, Any]:
    if not line.lstrip().startswith("{"):
        return {"prompt": line.strip()}
    try:
        values = json.loads(line)
    except json.JSONDecodeError as error:
        raise RequestError("JSON", line, f"cannot be read: {error.msg} at column {error.colno}") from None
    except RecursionError:
        raise RequestError("JSON", line, "is nested too deeply") from None
    unknown = sorted(set(values) - _REQUEST_FIELDS)
    if unknown:
        raise RequestError(unknown[0], values[unknown[0]], f"is no field of a request: {sorted(_REQUEST_FIELDS)}")
    if "prompt" not in values:
        raise RequestError("prompt", None, "must be given")
    if not isinstance(values.get("image"), str | None):
        raise RequestError("image", values["image"], "must be the path of a picture")
    return dict(values)

"""Trains the demo checkpoint: ``python train.py all`` or one of ``text vae audio store flow piflow judge``.

Stages read and write WORK, a folder like the package's own; each can be repeated and goes on from its weights. Times
are in seconds of wall clock; ``all`` runs the autoencoders side by side and starts the transformer as soon as it can.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()


def main() -> None:
    arguments = _arguments()
    work: Path = arguments.work
    if not (work / "common").exists():
        import build

        build.build(work, arguments.seed)
    started = time.time()
    if arguments.stage == "all":
        _all(arguments, started)
    else:
        _one(arguments, started)
    if arguments.out:
        pack(work, arguments.out)


def _one(a: argparse.Namespace, started: float) -> None:
    """Run a single stage in this process."""
    import render
    from progress import device_name

    device, until = device_name(a.device), a.until or started + a.seconds
    clips: dict[str, Any] = {"clips": a.clips, "first": a.first, "chunk": a.chunk, "fresh": a.fresh}
    clips["window"] = render.CUTOUT if a.smoke else render.WHOLE
    if a.stage == "text":
        import train_text

        train_text.train(a.work, a.seconds, device, batch=a.batch or 64)
    elif a.stage == "vae":
        import train_vae

        crop: dict[str, Any] = {"crop": (32, 48), "phases": ((1.0, 5),), "whole_from": 2.0} if a.smoke else {}
        if a.no_stills or a.decoder_only:
            crop["phases"] = ()
        if a.decoder_only:
            crop |= {"decoder_only": True, "whole_from": 2.0 if a.smoke else 0.0}
        train_vae.train(a.work, a.seconds, device, batch=a.batch or 4, freeze=a.freeze, **crop)
    elif a.stage == "audio":
        import train_audio

        train_audio.train(a.work, a.seconds, device, batch=a.batch or 64)
    elif a.stage == "store":
        import train_flow

        train_flow.fill(a.work, until, device, **clips)
    elif a.stage == "flow":
        import train_flow

        train_flow.train(a.work, until, device, batch=a.batch or 64, peak=a.peak or 1.5e-3, **clips)
    elif a.stage == "piflow":
        import train_piflow

        scale = a.guidance or best_guidance(a.work)
        train_piflow.train(a.work, until, device, guidance=scale, batch=a.batch or 64, peak=a.peak or 1e-3, **clips)
    else:
        _judge(a, device)


def _judge(a: argparse.Namespace, device: str) -> None:
    """Score ``--flavour``, the flow at several guidance scales unless one is given, and keep the numbers."""
    from evaluate import evaluate, reconstruct

    if not a.prompts:
        return
    scales = [1.0] if a.flavour == "piflow" else [a.guidance] if a.guidance else a.scales
    if a.flavour == "reconstruction":
        result: dict[str, Any] = reconstruct(a.work, device, a.prompts)
    else:
        result = evaluate(a.work, a.flavour, device, scales, a.prompts)
    print(json.dumps({a.flavour: result}), flush=True)
    (a.work / f"numbers_{a.flavour}.json").write_text(json.dumps(result, indent=1))


def best_guidance(work: Path) -> float:
    """The guidance scale at which the judge liked the flow best; 2.5 where it was not asked."""
    file = work / "numbers_flow.json"
    return float(json.loads(file.read_text())["guidance"]) if file.exists() else 2.5


def _all(a: argparse.Namespace, started: float) -> None:
    """Text encoders, both autoencoders beside the transformers' compilation, flow, judge, PiFlow, judge."""
    for part in ("common/vae", "common/audio_vae", "common/vocoder", "flow/transformer", "piflow/transformer"):
        (a.work / part / "READY").unlink(missing_ok=True)
    if a.text_seconds:
        _finish([_start(a, "text", "--seconds", str(a.text_seconds))])
    fresh, guidance = ["--fresh"] if a.fresh else [], str(a.guidance or 2.5)
    running = [
        _start(a, "vae", "--seconds", str(a.vae_seconds)),
        _start(a, "audio", "--seconds", str(a.audio_seconds)),
        _start(a, "flow", "--until", str(started + a.flow_seconds), *fresh),
    ]
    if a.piflow_seconds:  # starts early, to compile; waits for the flow
        end = str(started + a.piflow_seconds)
        late = _start(a, "piflow", "--until", end, "--guidance", guidance, *fresh)
    _finish(running)
    _finish([_start(a, "judge", "--flavour", "reconstruction"), _start(a, "judge", "--flavour", "flow")])
    if a.piflow_seconds:
        _finish([late])
        _finish([_start(a, "judge", "--flavour", "piflow")])


def _finish(running: list[subprocess.Popen[bytes]]) -> None:
    """Wait for all of ``running``; the first that fails ends the others. Raises SystemExit naming it."""
    while any(process.poll() is None for process in running):
        time.sleep(0.2)
        for process in running:
            if process.poll():
                for other in running:
                    other.terminate()
                raise SystemExit(f"stage failed: {' '.join(map(str, process.args))}")  # type: ignore[arg-type]


def _start(a: argparse.Namespace, stage: str, *more: str) -> subprocess.Popen[bytes]:
    given = ["--work", str(a.work), "--device", a.device, "--prompts", str(a.prompts)]
    given += ["--clips", str(a.clips), "--chunk", str(a.chunk), "--first", str(a.first)]
    given += ["--smoke"] if a.smoke else []
    given += ["--batch", str(a.batch)] if a.batch else []
    return subprocess.Popen([sys.executable, str(HERE), stage, *given, *more])


def pack(work: Path, out: Path) -> None:
    """Put weights, logs, numbers, answers and sheets of ``work`` into few files under ``out``."""
    out.mkdir(parents=True, exist_ok=True)
    for name in ("common", "flow", "piflow", "logs"):
        if (work / name).exists():
            with tarfile.open(out / f"{name}.tar", "w") as archive:
                archive.add(work / name, arcname=name)
    with tarfile.open(out / "judged.tar", "w") as archive:
        for path in [p for kind in ("sheet", "numbers", "answers") for p in work.glob(f"{kind}_*")]:
            archive.add(path, arcname=path.name)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=["all", "text", "vae", "audio", "store", "flow", "piflow", "judge"])
    parser.add_argument("--work", type=Path, default=Path("work"), help="folder that is trained in")
    parser.add_argument("--out", type=Path, help="folder for archives of the results")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seed", type=int, default=0, help="of the untrained weights")
    parser.add_argument("--seconds", type=float, default=120.0, help="time for one stage")
    parser.add_argument("--until", type=float, help="time.time() at which flow or piflow ends, instead of --seconds")
    parser.add_argument("--batch", type=int, help="clips a step; by default the stage's own")
    parser.add_argument("--clips", type=int, default=16_384, help="captioned clips")
    parser.add_argument("--first", type=int, default=4096, help="clips encoded before training starts")
    parser.add_argument("--chunk", type=int, default=64, help="clips encoded at once")
    parser.add_argument("--peak", type=float, help="highest learning rate; by default the stage's own")
    parser.add_argument("--fresh", action="store_true", help="new transformer weights; piflow: from the flow's")
    parser.add_argument("--freeze", type=float, default=0.6, help="vae: part of the time that the encoder learns")
    parser.add_argument("--no-stills", action="store_true", help="vae: begin with moving pictures")
    parser.add_argument("--decoder-only", action="store_true", help="vae: the encoder stays as it is")
    parser.add_argument("--smoke", action="store_true", help="small cut-outs, to try the code on a CPU")
    parser.add_argument("--guidance", type=float, help="scale for judge and teacher")
    several: dict[str, Any] = {"type": lambda text: [float(x) for x in text.split(",")], "default": [1.5, 2.5, 4.0]}
    parser.add_argument("--scales", **several, help="guidance scales that the judge tries, with commas")
    parser.add_argument("--flavour", choices=["flow", "piflow", "reconstruction"], default="flow")
    parser.add_argument("--prompts", type=int, default=100, help="test prompts that are judged")
    for name, seconds in (("text", 60), ("vae", 150), ("audio", 150), ("flow", 420), ("piflow", 0)):
        parser.add_argument(f"--{name}-seconds", type=float, default=seconds, help=f"all: {name}")
    return parser.parse_args()


if __name__ == "__main__":
    main()

"""Peers: the same denoising loop with the weights kept by others, and by yellowsound, on one machine.

``python benchmarks/peers.py`` gives each arm a process of its own with a time limit, so that one that hangs, dies or
runs out of memory becomes a row that says so. Every arm makes the same clip from the same noise and embeddings; rows
carry a digest of the latents, so that equal ones are seen to be equal. ``--smoke`` shows on a CPU that it runs.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from common.caps import start_touching
from common.results import Results, add_options, print_table, say, shown
from common.workload import MAIN, SMOKE, Weights

if TYPE_CHECKING:
    from common.arms import Given

SMALL_CARD = 16_000_000_000


@dataclass(frozen=True, slots=True)
class Arm:
    """Who keeps the weights, and how long it may take at most before it is stopped."""

    name: str
    kind: str  # resident, streamed or offloaded: its column in the tables
    says: str
    limit_seconds: float
    needs_card: bool = True


ARMS = {
    arm.name: arm
    for arm in (
        Arm("resident", "resident", "diffusers, all weights on the card, its default attention", 150, False),
        Arm("streamed", "streamed", "yellowsound, every block streamed from host memory (offload block)", 120, False),
        Arm("group-stream", "offloaded", "diffusers group offload, blocks, stream, page-locked weights", 180),
        Arm("resident-cudnn", "resident", "diffusers, all weights on the card, _native_cudnn attention", 120),
        Arm("group-disk", "offloaded", "diffusers group offload, blocks, stream, to disk", 240),
        Arm("sequential", "offloaded", "diffusers sequential offload (accelerate)", 150),
        Arm("mmgp", "offloaded", "mmgp, blocks by budget, page-locked weights, asynchronous", 180),
        Arm("streamed-16gb", "streamed", "yellowsound, planned for 16 GB of card memory", 120, False),
    )
}


def main() -> None:
    options = _options()
    results = Results("peers", options)
    weights = Weights("pro-distill", 4 if options.smoke else options.blocks, small=options.smoke)
    wanted = [ARMS[name] for name in options.arms.split(",")]
    if options.inside:
        inside(ARMS[options.inside], results, weights)
        return
    toucher = start_touching(0 if options.smoke else options.touch_gib)
    weights.folder(options.data)
    if toucher is not None:
        toucher.wait()
    for arm in wanted:
        row = f"{arm.name}.{weights.name}"
        if options.smoke:
            if not arm.needs_card:
                inside(arm, results, weights)
        elif results.is_wanted(row):
            outside(arm, row, results, weights)
    head = ("arm", "kind", "status", "s a step", "first step s", "load s", "VRAM GB", "host GB", "digest")
    print_table(head, [_line(row) for row in results.rows()])


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--blocks", type=int, default=24, help="fused blocks of the checkpoint (60 as published)")
    parser.add_argument("--steps", type=int, default=3, help="steps of the ten-step schedule; the first is not counted")
    parser.add_argument("--arms", default=",".join(ARMS), help="which, in this order")
    parser.add_argument("--touch-gib", type=int, default=48, help="host memory to use once beforehand; 0: none")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    return parser.parse_args()


def outside(arm: Arm, row: str, results: Results, weights: Weights) -> None:
    """One arm in a child; whatever ends the child ends nothing else."""
    options = results.options
    limit = min(arm.limit_seconds, results.seconds_left)
    if limit < min(60.0, arm.limit_seconds / 2):
        say(f"{row}: left out, {results.seconds_left:.0f} s left")
        return
    command = [sys.executable, __file__, "--inside", arm.name, "--until", str(options.until)]
    for name in ("results", "archive", "data", "commit", "blocks", "steps"):
        value = getattr(options, name)
        command += [f"--{name}={value}"] if value else []
    with tempfile.TemporaryFile("w+") as errors:
        try:
            code = subprocess.run(command, timeout=limit, stderr=errors).returncode
            reason = f"ended with {code}" if code else ""
        except subprocess.TimeoutExpired:
            reason = f"not done after {limit:.0f} s"
        errors.seek(0)
        lines = errors.read().strip().splitlines()
    sys.stderr.write("\n".join(lines[-12:]) + "\n")
    if reason and not results.path(row).exists():
        told = {"status": "failed", "reason": f"{reason}: {lines[-1] if lines else ''}"[:500]}
        results.write(row, {**told, "kind": arm.kind, "arms": [arm.says], "took_seconds": limit})


def inside(arm: Arm, results: Results, weights: Weights) -> None:
    """The child: load, run, write the row."""
    options = results.options
    folder = weights.folder(options.data)

    def make() -> dict[str, Any]:
        import torch
        from common import arms

        from yellowsound.checkpoint import Checkpoint

        is_cuda = torch.cuda.is_available() and not options.smoke
        given = arms.Given(
            checkpoint=Checkpoint.open(folder),
            device=torch.device("cuda" if is_cuda else "cpu"),
            dtype=torch.bfloat16 if is_cuda else torch.float32,
            shape=SMOKE if options.smoke else MAIN,
            text_tokens=16 if options.smoke else 1024,
            steps=options.steps,
            scratch=options.data / "offloaded",
        )
        return {"kind": arm.kind, "arms": [arm.says], **arms.measure(given, _way(arms, arm.name))}

    results.measure(f"{arm.name}.{weights.name}", 0, make)


def _way(arms: Any, name: str) -> Callable[[Given], Any]:
    ways: dict[str, Callable[[Given], Any]] = {
        "resident": arms.resident,
        "resident-cudnn": arms.resident_cudnn,
        "streamed": lambda given: arms.streamed(given, "block", None),
        "streamed-16gb": lambda given: arms.streamed(given, "auto", SMALL_CARD),
        "group-stream": arms.group_stream,
        "group-disk": arms.group_disk,
        "sequential": arms.sequential,
        "mmgp": arms.mmgp,
    }
    return ways[name]


def _line(row: dict[str, Any]) -> tuple[str, ...]:
    """One line of the table."""
    name, found, sizes = row["row"], row.get("medians") or {}, row.get("bytes") or {}
    if row["status"] != "ok":
        return name, row.get("kind", "-"), "failed: " + str(row.get("reason", ""))[:70], *("-",) * 6
    vram, host = (sizes.get(key) for key in ("vram_peak_by_driver", "host_peak"))
    return (
        name, row["kind"], "ok", shown(found["step_seconds"]), shown(found["first_step_seconds"], ".1f"),
        shown(found["load_seconds"], ".1f"), shown(vram and vram / 1e9, ".1f"), shown(host and host / 1e9, ".1f"),
        found["digest"][:12],
    )  # fmt: skip


if __name__ == "__main__":
    main()

"""Clips: whole clips with sound, from prompt to MP4, on the memory of a small card and host, stage by stage.

``python benchmarks/clips.py`` writes synthetic checkpoints with every part (networks of the published sizes, toy
tokenizers) and makes three clips of each: a first one, one with another prompt, and the first one again. Each row holds
seconds and peaks of every stage beside those that the plan promised, and digests of latents and frames. Rows and caps
are those of ``streaming.py``; ``--smoke`` makes small clips of the demo checkpoint on the CPU.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from typing import Any

from common.caps import enter
from common.child import add_child_options, run_sessions
from common.results import Results, add_options, print_table
from common.workload import Weights
from sessions import CARD_16, CARD_32, HOST_32, HOST_60, Session

LEAST_SECONDS = 30
PASSED = ("blocks", "steps")
ROW = "three-clips"


def main() -> None:
    options = _options()
    results = Results("clips", options)
    known = sessions(options.blocks)
    if options.inside:
        inside(known[options.inside], results)
        return
    run_sessions(__file__, known, results, inside, PASSED, LEAST_SECONDS)
    lines = [line for row in results.rows() for line in _lines(row)]
    print_table(("row", "clip", "s", "planned", "before step one", "a step", "planned", "card GB", "planned"), lines)


def sessions(blocks: int) -> dict[str, Session]:
    """All sessions by name: the large checkpoint on both cards, then the small one on both."""
    large, small = Weights("pro-distill", blocks, whole=True), Weights("lite-distill", 32, whole=True)
    listed = (
        Session("card16", large, CARD_16, HOST_32, (ROW,), 150),
        Session("card32", large, CARD_32, HOST_60, (ROW,), 120),
        Session("lite16", small, CARD_16, HOST_32, (ROW,), 80),
        Session("lite32", small, CARD_32, HOST_60, (ROW,), 60),
    )
    return {session.name: session for session in listed}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--blocks", type=int, default=36, help="fused blocks of the large checkpoint (60 as published)")
    parser.add_argument("--steps", type=int, default=10, help="denoising steps of every clip")
    parser.add_argument("--sessions", default="card16,card32,lite16,lite32", help="which, in this order")
    add_child_options(parser)
    return parser.parse_args()


def inside(session: Session, results: Results) -> None:
    """The child: into the cgroup first, then CUDA. Nothing that was measured here before is known to it."""
    options = results.options
    enter(options.group)
    with tempfile.TemporaryDirectory() as own:
        os.environ["XDG_CACHE_HOME"] = own
        from common import wholes

        place = wholes.Where(session, options.smoke, options.card_free, options.group, Path(own))
        folder = None if options.smoke else session.weights.folder(options.data)
        results.measure(session.row(ROW), 0, lambda: wholes.three_clips(place, folder, options.steps))


def _lines(row: dict[str, Any]) -> list[tuple[str, ...]]:
    """A line for each clip of a row."""
    if row["status"] != "ok":
        return [(row["row"], str(row.get("reason"))[:60], *[""] * 7)]
    return [
        (
            row["row"], clip["name"], f"{clip['seconds']:.1f}", f"{clip['planned_seconds']:.1f}",
            f"{clip['seconds_before_denoising']:.1f}", f"{clip['step_seconds']:.2f}",
            f"{row['plan']['step_seconds']:.2f}", f"{clip['card_peak_bytes'] / 1e9:.1f}",
            f"{row['plan']['card_peak_bytes'] / 1e9:.1f}",
        )
        for clip in row["medians"]["clips"]
    ]  # fmt: skip


if __name__ == "__main__":
    main()

"""Streaming: a model larger than the card, streamed by plan, against the same engine without any copy.

``python benchmarks/streaming.py`` runs every session in a process of its own, under a card of 32 GB (a ballast process
holds the rest) and a host of 60 GB (a memory cgroup without swap), and prints one table. Rows already under
``--results`` are skipped; ``--minutes`` bounds the whole call. ``--smoke`` shows on a CPU that it runs.
"""

from __future__ import annotations

import argparse
from typing import Any

from common.caps import enter
from common.child import add_child_options, run_sessions
from common.results import Results, add_options, print_table, say, shown
from sessions import Context, Session, sessions

LEAST_SECONDS = 5
PASSED = ("blocks", "small_blocks")


def main() -> None:
    options = _options()
    results = Results("streaming", options)
    known = sessions(options.blocks, options.small_blocks, options.smoke)
    if options.inside:
        inside(known[options.inside], results)
        return
    run_sessions(__file__, known, results, inside, PASSED, LEAST_SECONDS)
    print_table(("row", "status", "seconds a step", "result", "took s"), [_line(row) for row in results.rows()])


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--blocks", type=int, help="fused blocks of the large checkpoint (60 as published)")
    parser.add_argument("--small-blocks", type=int, default=24, help="of the one for bit equality; half for guidance")
    parser.add_argument("--sessions", default="cap32,cap16,equality,lite,w2", help="which, in this order")
    add_child_options(parser)
    return parser.parse_args()


def inside(session: Session, results: Results) -> None:
    """The child: into the cgroup first, then CUDA."""
    options = results.options
    enter(options.group)
    import torch
    from common.engines import Place
    from common.workload import import_libraries
    from sessions import capped, others

    from yellowsound.checkpoint import Checkpoint
    from yellowsound.measure.disk_speed import disk_speed

    torch.set_grad_enabled(False)
    import_libraries()
    is_cuda = torch.cuda.is_available() and not options.smoke
    folder = session.weights.folder(options.data)
    speed = disk_speed(folder, seconds=3.0, test_bytes=1)
    say(
        f"disk: {speed.bytes_per_second / 1e9:.2f} GB/s over {speed.read_bytes / 1e9:.1f} GB, direct: {speed.is_direct}"
    )
    place = Place(
        device=torch.device("cuda" if is_cuda else "cpu"),
        dtype=torch.bfloat16 if is_cuda else torch.float32,
        text_tokens=16 if options.smoke else 1024,
        card_bytes=options.card_free,
        host_bytes=session.host_bytes if options.group else None,
        plan_host_bytes=session.host_bytes,
        group=options.group,
        disk_bytes_per_second=speed.bytes_per_second,
    )
    free = torch.cuda.mem_get_info()[0] if is_cuda else None
    context = Context(
        session, results, Checkpoint.open(folder), place, folder, options.smoke, options.card_free or free
    )
    place = capped.with_link(context)
    context.place = place
    run: dict[str, Any] = {
        "cap32": capped.run, "cap16": others.disk_bound, "equality": others.equality, "lite": others.lite,
        "w2": others.guidance,
    }  # fmt: skip
    run[session.name](context)


def _line(row: dict[str, Any]) -> tuple[str, ...]:
    """One line of the table."""
    found = row.get("medians") or {}
    if row["status"] != "ok":
        return row["row"], row["status"], "-", str(row.get("reason", ""))[:60], shown(row.get("took_seconds"), ".1f")
    seconds = found.get("step_seconds")
    step = ", ".join(f"{k} {v:.3f}" for k, v in seconds.items()) if isinstance(seconds, dict) else shown(seconds)
    return row["row"], "ok", step, _result(found), shown(row.get("took_seconds"), ".1f")


def _result(found: dict[str, Any]) -> str:
    """What a row is about, in a few words."""
    words = ("ratio", "idle_share", "gap_share", "share_of_copy_time_under_kernels", "on_over_off", "equal")
    parts = []
    for word in words:
        value = found.get(word)
        if isinstance(value, dict):
            parts += [f"{word} {arm} {number:.4f}" for arm, number in value.items()]
        elif value is not None:
            parts.append(f"{word} {value}" if isinstance(value, bool) else f"{word} {value:.4f}")
    return ", ".join(parts) or "-"


if __name__ == "__main__":
    main()

"""Wholes: clips from prompt to MP4 through the engine, with what every stage took beside what its plan promised."""

from __future__ import annotations

import hashlib
import threading
import time
from collections import defaultdict
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import torch

from common.caps import charged_bytes, group_figures
from common.engines import Place, plan_summary
from common.facts import process_memory, read_bytes
from common.results import say
from common.workload import import_libraries
from yellowsound.clip import Clip
from yellowsound.engine import Engine
from yellowsound.events import Event, Replanned, StageBegan, StageEnded, StepDone, Warned
from yellowsound.measure.disk_speed import disk_speed
from yellowsound.memory.plan import Plan
from yellowsound.memory.probe import this_machine
from yellowsound.memory.records import read_records
from yellowsound.memory.speeds import record_speeds
from yellowsound.request import ClipRequest

if TYPE_CHECKING:
    from sessions import Session

LOOK_SECONDS = 0.05
PROMPTS = {"first": ("a red ball", 1), "new prompt": ("a blue square", 2), "known prompt": ("a red ball", 1)}
SMALL: dict[str, Any] = {"width": 96, "height": 64, "num_frames": 9}


@dataclass(frozen=True, slots=True)
class Where:
    """A session's caps as they are in force, and a folder of its own. card_free: bytes that the ballast left."""

    session: Session
    is_smoke: bool
    card_free: int | None
    group: Path | None
    own: Path


@dataclass(slots=True)
class Witness:
    """Looks at the card and the host while a clip is made, and keeps the most that each stage held."""

    free_before: int | None
    group: Path | None
    stage: str = "start"
    card: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    host: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    began: dict[str, float] = field(default_factory=dict)
    steps: list[float] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    _ended: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> Witness:
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        assert self._thread is not None
        self._thread.join()

    def _look(self) -> None:
        while not self._ended.wait(LOOK_SECONDS):
            if self.free_before is not None:
                self.card[self.stage] = max(self.card[self.stage], self.free_before - torch.cuda.mem_get_info()[0])
            if (charged := charged_bytes(self.group)) is not None:
                self.host[self.stage] = max(self.host[self.stage], charged)

    def __call__(self, event: Event) -> None:
        match event:
            case StageBegan(stage=stage):
                self.stage = stage
                self.began.setdefault(stage, time.perf_counter())
            case StageEnded():
                self.stage = "between"
            case StepDone(seconds=seconds):
                self.steps.append(seconds)
            case Replanned(reason=message) | Warned(message=message):
                self.said.append(message)


def three_clips(where: Where, folder: Path | None, steps: int) -> dict[str, Any]:
    """A row: the clips of PROMPTS one after the other with one engine. ``folder`` None: the demo, small."""
    import_libraries()
    session, is_cuda = where.session, torch.cuda.is_available() and not where.is_smoke
    place = Place(
        torch.device("cuda" if is_cuda else "cpu"), torch.bfloat16 if is_cuda else torch.float32, 1024,
        card_bytes=where.card_free, host_bytes=session.host_bytes if where.group else None, group=where.group,
    )  # fmt: skip
    note = place.trust_the_group()
    free = where.card_free or (torch.cuda.mem_get_info()[0] if is_cuda else None)
    if folder is not None:  # the plan then goes by this disk, as it does after `yellowsound doctor --disk`
        speed = disk_speed(folder, seconds=3.0, test_bytes=1).bytes_per_second
        record_speeds(this_machine(cpu=not is_cuda), disk=speed)
        say(f"disk: {speed / 1e9:.2f} GB/s")
    engine = Engine.load(
        folder or "demo",
        device=place.device.type,
        vram_bytes=session.card_bytes if is_cuda else 8 << 20,
        ram_bytes=session.host_bytes,
    )
    size: dict[str, Any] = {**({} if folder else SMALL), "num_inference_steps": min(steps, 2) if not folder else steps}
    planned = engine.plan(ClipRequest(prompt="plan", **size))
    clips = []
    for name, (prompt, seed) in PROMPTS.items():
        clips.append(_clip(engine, ClipRequest(prompt=prompt, seed=seed, **size), name, planned, where, free))
        say(f"{name}: {clips[-1]['seconds']:.1f} s, {clips[-1]['planned_seconds']:.1f} planned")
    engine.close()
    learnt = read_records(where.own / "yellowsound" / "peaks.json")
    return {
        "geometry": planned.geometry.key,
        "blocks": int(engine.checkpoint.components["transformer"].config["num_visual_blocks"]),
        "arms": ["yellowsound, from prompt to MP4, homes by plan"],
        "session": session.name, "weights": session.weights.name,
        "caps": {"card_bytes": where.card_free, "host_bytes": place.host_bytes, "asked": session.caps},
        "note": note,
        "raw_seconds": {"clips": [{key: clip.pop(key) for key in ("stages", "steps")} for clip in clips]},
        "medians": {
            "clips": clips,
            "same_again": clips[0]["latents_digest"] == clips[2]["latents_digest"]
            and clips[0]["clip_digest"] == clips[2]["clip_digest"],
        },
        "bytes": {"peaks_beyond_weights": learnt, "group": group_figures(where.group), "process": process_memory()},
        "plan": {
            **plan_summary(planned), "card_peak_bytes": planned.vram_peak_bytes,
            "host_peak_bytes": planned.ram_peak_bytes, "vae_decode": planned.vae_decode,
            "first_clip_seconds": planned.first_clip_seconds, "warm_clip_seconds": planned.warm_clip_seconds,
            "stages": [asdict(stage) for stage in planned.stages],
        },
    }  # fmt: skip


def _clip(
    engine: Engine, request: ClipRequest, name: str, planned: Plan, where: Where, free: int | None
) -> dict[str, Any]:
    out, read, began = where.own / f"{name}.mp4", read_bytes(), time.perf_counter()
    with Witness(free, where.group) as witness:
        clip = engine.generate(request, out=out, on_event=witness)
    seconds = time.perf_counter() - began
    known = sum(stage.seconds for stage in planned.stages if stage.stage == "text") if name == "known prompt" else 0
    return {
        "name": name, "seconds": seconds,
        "planned_seconds": planned.first_clip_seconds if name == "first" else planned.warm_clip_seconds - known,
        "seconds_before_denoising": witness.began["denoise"] - began,
        "first_step_seconds": witness.steps[0], "step_seconds": median(witness.steps[1:]),
        "card_peak_bytes": max(witness.card.values(), default=0),
        "card_peak_by_torch": clip.metadata["peak_vram_bytes"],
        "host_peak_bytes": max(witness.host.values(), default=0),
        "read_bytes": read_bytes() - read, "said": witness.said, "file_bytes": out.stat().st_size,
        "latents_digest": _digest(clip.latents), "clip_digest": _clip_digest(clip), "steps": witness.steps,
        "stages": {
            "seconds": clip.metadata["seconds"], "card_bytes": dict(witness.card), "host_bytes": dict(witness.host)
        },
    }  # fmt: skip


def _digest(latents: Any) -> str:
    parts = [part for part in (latents.video, latents.audio) if part is not None]
    return hashlib.sha256(b"".join(part.float().cpu().numpy().tobytes() for part in parts)).hexdigest()


def _clip_digest(clip: Clip) -> str:
    """Of frames and sound."""
    sound = b"" if clip.waveform is None else clip.waveform.tobytes()
    return hashlib.sha256(clip.frames.tobytes() + sound).hexdigest()

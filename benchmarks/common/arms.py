"""Arms of the comparison: the same stock transformer with its weights kept in different ways, and the streamed one."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import torch

from common.clock import run_steps
from common.engines import Place, load_streamed, make_plan, plan_summary
from common.facts import meminfo, process_memory, read_bytes
from common.results import say
from common.workload import (
    GIB,
    Shape,
    import_libraries,
    load_scheduler,
    load_stock,
    make_latents,
    make_room,
    make_texts,
)
from yellowsound.checkpoint import Checkpoint
from yellowsound.memory.geometry import Offload

HOST_SAMPLE_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class Given:
    """What every arm gets."""

    checkpoint: Checkpoint
    device: torch.device
    dtype: torch.dtype
    shape: Shape
    text_tokens: int
    steps: int
    scratch: Path


class HostPeak:
    """The most host memory that was taken while open: the fall of MemAvailable, and this process's own."""

    def __init__(self) -> None:
        self.before, self.least, self.anonymous = meminfo("MemAvailable"), meminfo("MemAvailable"), 0
        self._total, self._ended = meminfo("MemTotal"), threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        process = psutil.Process()
        while not self._ended.wait(HOST_SAMPLE_SECONDS):
            grown = meminfo("MemTotal") - self._total  # a virtual machine that grows on use
            self.least = min(self.least, meminfo("MemAvailable") - grown)
            memory = process.memory_info()
            self.anonymous = max(self.anonymous, memory.rss - memory.shared)

    def end(self) -> dict[str, int]:
        """Bytes. host_peak is the larger figure: driver memory is in the first only, file pages in neither."""
        self._ended.set()
        self._thread.join()
        taken = max(self.before - self.least, 0)
        return {"available_fell_by": taken, "anonymous_peak": self.anonymous, "host_peak": max(taken, self.anonymous)}


def measure(given: Given, way: Callable[[Given], Any]) -> dict[str, Any]:
    """Load by ``way``, run the steps, and tell what they took. The first step is not in the median."""
    import_libraries()
    free = torch.cuda.mem_get_info()[0] if given.device.type == "cuda" else None
    host, read, began = HostPeak(), read_bytes(), time.perf_counter()
    made = way(given)
    loading, loaded = time.perf_counter() - began, read_bytes() - read
    say(f"loaded in {loading:.1f} s")
    model, scheduler, planned = made if isinstance(made, tuple) else (made, load_scheduler(given.checkpoint), None)
    latents = make_latents(given.checkpoint, given.shape, given.device, given.dtype)
    texts = make_texts(given.checkpoint, 1, given.text_tokens, given.device, given.dtype)
    timed = run_steps(model, scheduler, latents, texts, given.steps)
    least = timed.free_bytes
    blocks = int(given.checkpoint.components["transformer"].config["num_visual_blocks"])
    step = median(timed.step_seconds[1:] or timed.step_seconds)
    return {
        "geometry": given.shape.key, "blocks": blocks,
        "raw_seconds": {"load": loading, "run": timed.to_json()},
        "medians": {
            "step_seconds": step, "step_seconds_per_block": step / blocks, "load_seconds": loading,
            "first_step_seconds": timed.step_seconds[0], "digest": timed.digest, "is_finite": timed.is_finite,
        },
        "bytes": {
            "vram_peak_by_driver": free - least if free is not None and least is not None else None,
            "vram_peak_by_torch": torch.cuda.max_memory_allocated() if free is not None else None,
            "read_while_loading": loaded, "read_by_step": timed.read_bytes, **host.end(), "process": process_memory(),
        },
        "plan": planned,
    }  # fmt: skip


def resident(given: Given) -> Any:
    return load_stock(given.checkpoint, given.dtype).to(given.device)


def resident_cudnn(given: Given) -> Any:
    model = resident(given)
    model.set_attention_backend("_native_cudnn")
    return model


def streamed(given: Given, offload: Offload, vram_bytes: int | None) -> Any:
    """Ours; on a CPU, where all would be resident, every block comes from host memory all the same."""
    place = Place(given.device, given.dtype, given.text_tokens)
    planned = make_plan(given.checkpoint, place, given.shape, 10, offload=offload, vram_bytes=vram_bytes)
    found = load_streamed(given.checkpoint, place, planned)
    return found.model, found.scheduler, plan_summary(planned)


def group_stream(given: Given) -> Any:
    model = load_stock(given.checkpoint, given.dtype)
    model.enable_group_offload(
        given.device, torch.device("cpu"), "block_level", num_blocks_per_group=1, non_blocking=True, use_stream=True
    )  # fmt: skip
    return model


def group_disk(given: Given) -> Any:
    shutil.rmtree(given.scratch, ignore_errors=True)
    given.scratch.mkdir(parents=True)
    folder = given.checkpoint.folder
    stored = sum(file.stat().st_size for file in folder.rglob("*.safetensors"))
    make_room(folder.parent, stored + GIB, keep=folder)
    model = load_stock(given.checkpoint, given.dtype)
    model.enable_group_offload(
        given.device, torch.device("cpu"), "block_level", num_blocks_per_group=1, non_blocking=True, use_stream=True,
        offload_to_disk_path=str(given.scratch),
    )  # fmt: skip
    return model


def sequential(given: Given) -> Any:
    """As ``DiffusionPipeline.enable_sequential_cpu_offload`` does it for one model."""
    from accelerate import cpu_offload

    model = load_stock(given.checkpoint, given.dtype)
    cpu_offload(model, given.device, offload_buffers=len(model._parameters) > 0)
    return model


def mmgp(given: Given) -> Any:
    """3,000 MB of residents of its choice, without its quantising. ImportError where it is not installed.

    mmgp 3.8.2 reads a budget only from a dictionary; a plain number means none to it. It also casts the inputs of the
    model and of its parts to the weights' dtype, which rounds the timestep; ``_lock_dtype`` None turns that off.
    """
    from mmgp import offload  # type: ignore[import-not-found]

    model = load_stock(given.checkpoint, given.dtype)
    for name, part in model.named_modules():
        if "." not in name or any(p.dtype == torch.float32 for p in part.parameters(recurse=False)):
            part._lock_dtype = None  # also: it wants one dtype for all weights except where told so
    offload.all(
        {"transformer": model}, pinnedMemory=True, quantizeTransformer=False, asyncTransfers=True,
        budgets={"*": 3000}, convertWeightsFloatTo=None,
    )  # fmt: skip
    torch.set_default_device("cpu")  # it made that cuda; noise is drawn on the CPU
    return model

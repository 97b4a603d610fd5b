"""yellowsound plan: what lives where, what each stage needs, how long a clip takes. Needs neither GPU nor weights."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from yellowsound.cli.options import Whole, frame_count, sides
from yellowsound.request import ClipRequest, Defaults, RequestError, Variant

if TYPE_CHECKING:
    from yellowsound.memory.machine import Machine
    from yellowsound.memory.units import Dtype, ModelDescription


def plan(
    *,
    checkpoint: str = "demo",
    device_preset: str | None = None,
    vram: str | None = None,
    ram: str | None = None,
    disk_speed: str | None = None,
    size: str | None = None,
    frames: Whole | None = None,
    seconds: float | None = None,
    steps: Whole | None = None,
    guidance: float | None = None,
    image: Annotated[bool, Parameter(negative="")] = False,
    expand_prompt: Annotated[bool, Parameter(negative="")] = False,
    offload: Literal["auto", "none", "module", "block"] = "auto",
    device: Literal["auto", "cpu", "cuda"] = "auto",
    dtype: Literal["auto", "bfloat16", "float32"] = "auto",
    workers: Whole = 1,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Say what lives where on a machine, what every stage needs, and how long a clip takes.

    Parameters
    ----------
    checkpoint
        ``demo``, a folder, or a published name such as pro-distill, which need not be downloaded.
    device_preset
        A known card such as rtx-5090, or a YAML file of the same form. Default: this machine.
    vram
        Most of the card that may be taken, such as 16GiB.
    ram
        Memory of the whole host, such as 60GiB: with a preset what it has, otherwise the most that may be taken.
    disk_speed
        What the disk with the weights reads, such as 3.5GB/s.
    size
        WIDTHxHEIGHT in pixels. Default: the checkpoint's, 864x480.
    frames
        Number of frames, 4k+1 (others are rounded). Default: the checkpoint's, 121.
    seconds
        Length instead of --frames.
    steps
        Denoising steps. Default: the checkpoint's.
    guidance
        Guidance scale; above 1 every block runs for two branches.
    image
        The clip starts from a picture: one latent frame more.
    expand_prompt
        The text encoder writes the prompt out first.
    offload
        auto chooses; none keeps every part on the card; module the transformer; block streams every block.
    device
        Plan for the card or for the processor of this machine.
    dtype
        auto is bfloat16 on a card and float32 on a processor.
    workers
        How many workers share the host, from 1.
    json
        One JSON document on stdout and nothing else there.
    """
    from yellowsound.memory import plan as planning
    from yellowsound.memory.budget import parse_bytes, parse_speed
    from yellowsound.memory.peaks import load_peaks

    vram_bytes, ram_bytes = (
        None if text is None else parse_bytes(text, name) for name, text in (("vram", vram), ("ram", ram))
    )
    speed = None if disk_speed is None else parse_speed(disk_speed)
    fields: dict[str, Any] = {
        "num_inference_steps": steps,
        "guidance_scale": guidance,
        "num_frames": frame_count(frames, seconds),
        "image": "picture" if image else None,
        **sides(size),
    }
    machine = find_machine(device_preset, ram_bytes, speed, device, workers)
    run_dtype: Dtype = dtype if dtype != "auto" else ("bfloat16" if machine.device == "cuda" else "float32")
    model, defaults = describe_checkpoint(checkpoint, run_dtype)
    request = ClipRequest(prompt="plan", **fields).resolve(defaults)
    try:
        found = planning.plan(
            machine,
            model,
            planning.Geometry.of(request, run_dtype),
            vram_bytes=vram_bytes,
            ram_bytes=None if device_preset or ram_bytes is None else ram_bytes // workers,
            offload=offload,
            expand=expand_prompt,
            peaks=load_peaks(card=machine.name),
        )
    except planning.PlanError as error:
        if device_preset and error.memory == "host memory":
            raise error.advising("raise --ram", *error.remedies[1:]) from None
        if machine.device == "cpu" and device == "auto" and error.memory:
            raise error.advising("this machine shows no card: name one with --device-preset", *error.remedies) from None
        raise
    found = replace(found, warnings=(*found.warnings, *request.warnings))
    if json:
        import json as json_module

        print(json_module.dumps(found.to_json(), indent=2))
        return
    from yellowsound.cli.plan_table import show

    show(found, sys.stdout)


def find_machine(
    preset: str | None, ram_bytes: int | None, disk_speed: float | None, device: str = "auto", workers: int = 1
) -> Machine:
    """The machine to plan for, as one of ``workers`` may use it: a preset with a host of ``ram_bytes``, or this one.

    Raises RequestError where the options contradict each other or this machine.
    """
    if workers < 1:
        raise RequestError("workers", workers, "must be a whole number from 1", 1)
    if preset is not None:
        return _preset_machine(preset, ram_bytes, disk_speed, device).for_one_of(workers)
    from yellowsound.memory.probe import this_machine
    from yellowsound.memory.speeds import recall_speeds, with_measured

    found = this_machine(cpu=device == "cpu")
    if device == "cuda" and found.device != "cuda":
        raise RequestError("device", device, "this machine's driver shows no NVIDIA card; --device-preset names one")
    found = recall_speeds(found)
    if disk_speed is not None:
        found = with_measured(found, disk=disk_speed)
    return found.for_one_of(workers)


def _preset_machine(preset: str, ram_bytes: int | None, disk_speed: float | None, device: str) -> Machine:
    from yellowsound.memory.budget import SYSTEM_BYTES, format_bytes
    from yellowsound.presets import load_device

    if device == "cpu":
        raise RequestError("device", device, f"cannot be given together with --device-preset {preset}, which is a card")
    machine = load_device(preset).machine(ram_bytes, disk_speed)
    if machine.ram_available_bytes <= 0:
        size = format_bytes(machine.ram_total_bytes)
        raise RequestError(
            "ram", size, f"must be more than the {format_bytes(SYSTEM_BYTES)} that a system takes itself"
        )
    return machine


def describe_checkpoint(name: str, dtype: Dtype) -> tuple[ModelDescription, Defaults]:
    """A description of ``name`` and its defaults; published names are described without their files."""
    from yellowsound.memory.units import describe
    from yellowsound.weights.catalog import find, resolve
    from yellowsound.weights.manifests import components_for, is_published

    entry = find(name)
    if entry is not None and is_published(name):
        variant: Variant = "piflow" if entry.name.endswith("distill") else "flow"
        defaults = Defaults(variant=variant, num_inference_steps=entry.steps, guidance_scale=entry.guidance)
        return describe(components_for(name), dtype, name=entry.name), defaults
    from yellowsound.checkpoint import Checkpoint

    opened = Checkpoint.open(resolve(name))
    opened.require("transformer")
    return describe(opened, dtype), opened.defaults

"""yellowsound plan: what lives where, what each stage needs, how long a clip takes. Needs neither GPU nor weights."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from yellowsound.request import ClipRequest, Defaults, Variant, frames_for_seconds, parse_size

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
    frames: int | None = None,
    seconds: float | None = None,
    steps: int | None = None,
    guidance: float | None = None,
    image: Annotated[bool, Parameter(negative="")] = False,
    expand_prompt: Annotated[bool, Parameter(negative="")] = False,
    offload: Literal["auto", "none", "module", "block"] = "auto",
    device: Literal["auto", "cpu", "cuda"] = "auto",
    dtype: Literal["auto", "bfloat16", "float32"] = "auto",
    workers: int = 1,
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
        Host memory, such as 60GiB: with a preset what the host has, otherwise the most that may be taken.
    disk_speed
        What the disk with the weights reads, such as 3.5GB/s.
    size
        WIDTHxHEIGHT in pixels. Default: the checkpoint's, 864x480.
    frames
        Number of frames, 4k+1. Default: the checkpoint's, 121.
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
        How many workers share the host.
    json
        One JSON document on stdout and nothing else there.
    """
    from yellowsound.memory import plan as planning
    from yellowsound.memory.budget import parse_bytes, parse_speed
    from yellowsound.memory.peaks import load_peaks

    ram_bytes = parse_bytes(ram, "ram") if ram else None
    speed = parse_speed(disk_speed) if disk_speed else None
    machine = find_machine(device_preset, ram_bytes, speed, device, workers)
    run_dtype: Dtype = dtype if dtype != "auto" else ("bfloat16" if machine.device == "cuda" else "float32")
    model, defaults = describe_checkpoint(checkpoint, run_dtype)
    fields: dict[str, Any] = {"num_inference_steps": steps, "guidance_scale": guidance, "num_frames": frames}
    if seconds is not None:
        fields["num_frames"] = frames_for_seconds(seconds)
    if size is not None:
        fields["width"], fields["height"] = parse_size(size)
    request = ClipRequest(prompt="plan", image="picture" if image else None, **fields).resolve(defaults)
    found = planning.plan(
        machine,
        model,
        planning.Geometry.of(request, run_dtype),
        vram_bytes=parse_bytes(vram, "vram") if vram else None,
        ram_bytes=None if device_preset else ram_bytes,
        offload=offload,
        expand=expand_prompt,
        peaks=load_peaks(card=machine.name),
    )
    if json:
        import json as json_module

        print(json_module.dumps(found.to_json(), indent=2))
        return
    from yellowsound.cli.plan_table import show

    show(found, sys.stdout)


def find_machine(
    preset: str | None, ram_bytes: int | None, disk_speed: float | None, device: str = "auto", workers: int = 1
) -> Machine:
    """The machine to plan for: a preset with a host of ``ram_bytes``, or this one."""
    if preset is not None:
        from yellowsound.presets import load_device

        machine = load_device(preset).machine(ram_bytes, disk_speed)
        return machine.for_one_of(workers) if workers > 1 else machine
    from yellowsound.memory.probe import this_machine
    from yellowsound.memory.speeds import recall_speeds, with_measured

    found = recall_speeds(this_machine(cpu=device == "cpu"))
    if disk_speed is not None:
        found = with_measured(found, disk=disk_speed)
    found = found.for_one_of(workers) if workers > 1 else found
    if device == "cuda" and found.device != "cuda":
        raise ValueError("device=cuda: this machine has no NVIDIA card that its driver shows; use --device-preset")
    return found


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

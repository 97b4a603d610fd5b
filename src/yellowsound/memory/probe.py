"""Probe: this machine as a Machine, from NVML or nvidia-smi, /proc and the presets. Starts nothing on the device.

Rates of a known card come from its preset; of an unknown one they are computed from its core count and clock. Link and
disk are assumed until measured; the machine's notes say what is assumed.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from yellowsound.memory.budget import HostMemory, host_memory, usable_cores
from yellowsound.memory.machine import Machine, Rates
from yellowsound.memory.work import PRO, REFERENCE, counted_block_seconds
from yellowsound.presets import ASSUMED_DISK_BYTES_PER_SECOND, preset_of

PCIE_LANE_BYTES = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.97e9, 5: 3.94e9, 6: 7.56e9}
LINK_REACHED = 0.87  # 55.3 of 63 GB/s were measured on PCIe 5.0 x16
CPU_FLOPS_PER_CORE, CPU_MEMORY_BYTES = 60e9, 8e9  # of a dtype half as wide as the float32 it runs
UNKNOWN_CARD_FLOPS_PER_CORE_CLOCK = 4  # tensor rate of GeForce cards: twice the FP32 rate of two operations a clock
UNKNOWN_CARD_REACHED = 0.8


@dataclass(frozen=True, slots=True)
class Card:
    """What the driver says about one card. Bytes; 0 where it does not say."""

    name: str
    total_bytes: int
    free_bytes: int
    pcie_generation: int = 0
    pcie_lanes: int = 0
    cores: int = 0
    clock_hz: float = 0.0


def this_machine(
    *,
    root: Path = Path("/"),
    index: int = 0,
    disk_bytes_per_second: float | None = None,
    workers: int = 1,
    find_card: Callable[[int | str], Card | None] | None = None,
    cpu: bool = False,
) -> Machine:
    """This machine as one of ``workers`` may use it; ``cpu`` leaves the card out.

    index: as CUDA counts the cards, CUDA_VISIBLE_DEVICES respected. root, find_card: for tests.
    """
    host = host_memory(root)
    shown = None if cpu else driver_id(index, os.environ.get("CUDA_VISIBLE_DEVICES"))
    card = None if shown is None else (find_card or card_of_driver)(shown)
    disk = disk_bytes_per_second or ASSUMED_DISK_BYTES_PER_SECOND
    notes = [] if disk_bytes_per_second else [f"a disk of {disk / 1e9:g} GB/s is assumed: say --disk-speed"]
    machine = _with_card(host, card, disk, notes, root) if card else _without_card(host, disk, notes)
    return machine.for_one_of(workers) if workers > 1 else machine


def _with_card(host: HostMemory, card: Card, disk: float, notes: list[str], root: Path) -> Machine:
    preset = preset_of(card.name)
    link = card.pcie_lanes * PCIE_LANE_BYTES.get(card.pcie_generation, 0.0) * LINK_REACHED
    if not link:
        link = preset.link_gb_per_second * 1e9 if preset else 12e9
        notes.append(f"a link of {link / 1e9:g} GB/s is assumed: the driver does not tell")
    pins = _pin_limit(host, root)
    if pins is not None:
        notes.append("WSL2 limits page-locked memory: half of the host's is assumed")
    return Machine(
        name=card.name,
        device="cuda",
        vram_total_bytes=card.total_bytes,
        vram_free_bytes=card.free_bytes,
        ram_total_bytes=host.total_bytes,
        ram_available_bytes=host.available_bytes,
        link_bytes_per_second=link,
        disk_bytes_per_second=disk,
        rates=preset.rates if preset else _unknown_card(card),
        pin_limit_bytes=pins,
        notes=tuple(notes),
    )


def _without_card(host: HostMemory, disk: float, notes: list[str]) -> Machine:
    """A machine without a card: host memory serves as the device's, and copies are plain ones."""
    flops, memory = usable_cores() * CPU_FLOPS_PER_CORE, CPU_MEMORY_BYTES
    return Machine(
        name="CPU",
        device="cpu",
        vram_total_bytes=host.total_bytes,
        vram_free_bytes=host.available_bytes,
        ram_total_bytes=host.total_bytes,
        ram_available_bytes=host.available_bytes,
        link_bytes_per_second=CPU_MEMORY_BYTES,
        disk_bytes_per_second=disk,
        rates=_rates(flops, flops, memory),
        notes=tuple(notes),
    )


def _unknown_card(card: Card) -> Rates:
    """Rates from core count and clock; those of a slow card where the driver does not tell them."""
    flops = card.cores * card.clock_hz * UNKNOWN_CARD_FLOPS_PER_CORE_CLOCK * UNKNOWN_CARD_REACHED or 40e12
    return _rates(flops, flops, flops / 120)  # 117 operations a byte on an RTX 5090, 163 on a 4090, 165 on an A100


def _rates(gemm: float, attention: float, memory: float) -> Rates:
    block = counted_block_seconds(PRO, REFERENCE, gemm, attention, memory)
    return Rates(gemm_flops=gemm, attention_flops=attention, memory_bytes=memory, block_seconds=block)


def _pin_limit(host: HostMemory, root: Path) -> int | None:
    """Most that can be page-locked under WSL2, where reports range from 1 GiB to half of the memory."""
    try:
        release = (root / "proc/sys/kernel/osrelease").read_text().lower()
    except OSError:
        return None
    return host.total_bytes // 2 if "microsoft" in release else None


def driver_id(index: int, visible: str | None) -> int | str | None:
    """What the driver calls CUDA's card ``index``: a number or a UUID; None if CUDA_VISIBLE_DEVICES hides it."""
    if visible is None:
        return index
    shown = [entry.strip() for entry in visible.split(",")]
    if index >= len(shown) or shown[index] in ("", "-1", "NoDevFiles"):
        return None
    return int(shown[index]) if shown[index].isdigit() else shown[index]


def card_of_driver(card: int | str) -> Card | None:
    """A card by number or UUID, from NVML, else from nvidia-smi; None where there is no driver or no such card."""
    return _from_nvml(card) or _from_nvidia_smi(card)


def _from_nvml(card: int | str) -> Card | None:
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        by_name = isinstance(card, str)
        handle = (pynvml.nvmlDeviceGetHandleByUUID if by_name else pynvml.nvmlDeviceGetHandleByIndex)(card)
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
        name = pynvml.nvmlDeviceGetName(handle)

        def ask(function: str, *values: Any) -> int:
            try:
                return int(getattr(pynvml, function)(handle, *values))
            except (pynvml.NVMLError, AttributeError):
                return 0

        return Card(
            name=name if isinstance(name, str) else name.decode(),
            total_bytes=int(memory.total),
            free_bytes=int(memory.free),
            pcie_generation=ask("nvmlDeviceGetMaxPcieLinkGeneration"),
            pcie_lanes=ask("nvmlDeviceGetMaxPcieLinkWidth"),
            cores=ask("nvmlDeviceGetNumGpuCores"),
            clock_hz=ask("nvmlDeviceGetMaxClockInfo", pynvml.NVML_CLOCK_SM) * 1e6,
        )
    except pynvml.NVMLError:
        return None
    finally:
        pynvml.nvmlShutdown()


def _from_nvidia_smi(card: int | str) -> Card | None:
    fields = "name,memory.total,memory.free,pcie.link.gen.max,pcie.link.width.max,clocks.max.sm"
    command = ["nvidia-smi", f"--id={card}", f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    return parse_nvidia_smi(answer)


def parse_nvidia_smi(line: str) -> Card | None:
    """One line of nvidia-smi's CSV: memory in MiB, clock in MHz, ``[N/A]`` where a card does not tell."""
    values = [value.strip() for value in line.strip().rsplit(",", 5)]
    if len(values) != 6:
        return None
    numbers = [int(value) if value.isdigit() else 0 for value in values[1:]]
    total, free, generation, lanes, clock = numbers
    return Card(values[0], total << 20, free << 20, generation, lanes, 0, clock * 1e6)

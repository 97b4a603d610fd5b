"""What this machine offers and lacks, one line a fact, each with its remedy.

Reads /proc and /sys under an injectable root; torch is imported only by ``torch_facts``. Starts nothing on the device.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

from yellowsound.memory.budget import GIB, format_bytes, host_memory, usable_cores
from yellowsound.memory.probe import Card, card_of_driver, driver_id
from yellowsound.weights.catalog import caches
from yellowsound.weights.download import is_offline

State = Literal["ok", "note", "missing"]
STEP_BYTES = 45.5 * GIB  # of Pro's weights that every step needs; what has no room in memory is read from disk again
KERNELS = {  # distribution: what it is for
    "triton": "fused kernels",
    "flash-attn": "FlashAttention 2",
    "flash-attn-3": "FlashAttention 3 (Hopper)",
    "sageattention": "SageAttention",
    "kernels": "kernels fetched from the hub",
    "peft": "LoRA files",
    "nvidia-ml-py": "exact facts about the card",
    "torchvision": "prompt expansion with an image as stock resizes it",
}
PINNED = {"torch": ((2, 11), (2, 15)), "diffusers": ((0, 42), (0, 43)), "transformers": ((5, 17), (6, 0))}


@dataclass(frozen=True, slots=True)
class Line:
    """One fact: ``missing`` is what stops clips or most of the speed, ``note`` what is worth knowing."""

    what: str
    state: State
    value: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class TorchFacts:
    """What torch says: its version, the CUDA it was built for (None on a CPU build), and the card's capability."""

    version: str
    cuda: str | None
    sees_card: bool
    capability: tuple[int, int] | None = None


def look(
    *,
    root: Path = Path("/"),
    find_card: Callable[[int | str], Card | None] = card_of_driver,
    ask_torch: Callable[[], TorchFacts] | None = None,
) -> list[Line]:
    """Every fact about this machine. ``root`` replaces /, ``find_card`` and ``ask_torch`` are for tests."""
    shown = driver_id(0, os.environ.get("CUDA_VISIBLE_DEVICES"))
    card = None if shown is None else find_card(shown)
    return [
        *_card(card, root),
        *_torch(card, (ask_torch or torch_facts)()),
        *_memory(root),
        *_pinned(root, card),
        _huge_pages(root),
        *_links(root),
        *_weights(),
        *_packages(),
        *_kernels(card),
    ]


def torch_facts() -> TorchFacts:
    """Import torch and ask it."""
    import torch

    sees = torch.cuda.is_available()
    return TorchFacts(torch.__version__, torch.version.cuda, sees, torch.cuda.get_device_capability() if sees else None)


def _card(card: Card | None, root: Path) -> Iterator[Line]:
    driver = _driver_version(root)
    if card is None:
        if os.environ.get("CUDA_VISIBLE_DEVICES") is not None:
            yield Line("card", "note", "hidden by CUDA_VISIBLE_DEVICES", "unset it to use the card")
            return
        remedy = "install the NVIDIA driver, or reboot after installing it" if _has_nvidia(root) else ""
        found = "an NVIDIA card without a working driver" if remedy else "none: clips are made on the CPU"
        yield Line("card", "missing" if remedy else "note", found, remedy)
        return
    yield Line("card", "ok", card.name)
    if driver:
        yield Line("driver", "ok", driver)
    used = card.total_bytes - card.free_bytes
    busy = used > card.total_bytes // 10
    value = f"{format_bytes(card.total_bytes)}, {format_bytes(card.free_bytes)} free"
    remedy = "other programs hold part of it: close them for larger clips" if busy else ""
    yield Line("vram", "note" if busy else "ok", value, remedy)


def _torch(card: Card | None, facts: TorchFacts) -> Iterator[Line]:
    build = f"CUDA {facts.cuda}" if facts.cuda else "CPU build"
    value = f"{facts.version} ({build})"
    if card is None or facts.sees_card:
        yield Line("torch", "ok", value)
    elif facts.cuda is None:
        yield Line("torch", "missing", value, "this build cannot use the card: install torch's CUDA build instead")
    else:
        yield Line("torch", "missing", value, f"it sees no card: the driver may be older than CUDA {facts.cuda} needs")
    if facts.capability is not None and facts.capability < (8, 0):
        text = f"{facts.capability[0]}.{facts.capability[1]}"
        yield Line("capability", "note", text, "cards before 8.0 have no bfloat16 tensor cores: expect a slow run")


def _memory(root: Path) -> Iterator[Line]:
    memory = host_memory(root)
    value = f"{format_bytes(memory.total_bytes)}, {format_bytes(memory.available_bytes)} to be had ({memory.bound})"
    if memory.bound.startswith("cgroup"):
        remedy = "a container or service limit decides: raise it (docker --memory, systemd MemoryMax) for more"
        yield Line("ram", "note", value, remedy)
    elif memory.available_bytes < STEP_BYTES:
        remedy = "each step of Pro needs 45.5 GiB of weights: what fits neither here nor on the card comes from disk"
        yield Line("ram", "note", value, remedy)
    else:
        yield Line("ram", "ok", value)
    yield Line("cores", "ok", str(usable_cores()))


def _pinned(root: Path, card: Card | None) -> Iterator[Line]:
    """Limits on page-locked memory; ``ulimit -l`` is shown because people look there, though CUDA ignores it."""
    release = (_read(root / "proc/sys/kernel/osrelease") or "").strip()
    if "microsoft" in release.lower():
        remedy = "half of RAM at most can be page-locked: raise memory= in .wslconfig; keep weights on the Linux disk"
        yield Line("pinned memory", "note", f"WSL2 ({release})", remedy)
        return
    match = re.search(r"^Max locked memory\s+(\S+)", _read(root / "proc/self/limits") or "", re.MULTILINE)
    if match is None or card is None:
        return
    limit = match[1] if not match[1].isdigit() else format_bytes(int(match[1]))
    yield Line("pinned memory", "ok", f"no limit known; ulimit -l is {limit}, which CUDA's own pinning ignores")


def _huge_pages(root: Path) -> Line:
    text = _read(root / "sys/kernel/mm/transparent_hugepage/enabled") or ""
    match = re.search(r"\[(\w+)\]", text)
    if match is None:
        return Line("huge pages", "note", "not told by this kernel")
    if match[1] == "never":
        remedy = "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled (cheaper reads)"
        return Line("huge pages", "note", "never", remedy)
    return Line("huge pages", "ok", match[1])


def _links(root: Path) -> Iterator[Line]:
    """Each NVIDIA card's PCIe link; a narrower one than it could have halves the streaming speed."""
    for folder in _nvidia_devices(root):
        width, best = _number(folder / "current_link_width"), _number(folder / "max_link_width")
        speed, top = (_read(folder / f"{kind}_link_speed") or "?" for kind in ("current", "max"))
        if width is None or best is None:
            continue
        value = f"x{width} of x{best}, {top.strip().split(' PCIe')[0]} at most"
        if width < best:
            remedy = "the card sits in a narrow slot or shares lanes: another slot may double the streaming speed"
            yield Line("link", "note", value, remedy)
        else:
            yield Line("link", "ok", f"{value} (now {speed.strip().split(' PCIe')[0]}; cards slow down when idle)")


def _weights() -> Iterator[Line]:
    place = caches()[0]
    existing = next(p for p in [place.absolute(), *place.absolute().parents] if p.exists())
    free = shutil.disk_usage(existing).free
    value = f"{place}, {free / 1e9:.0f} GB free"
    if free < 27_000_000_000:
        remedy = "Lite needs 27 GB, Pro 81 GB: set HF_HOME or KANDINSKY_HOME to another disk"
        yield Line("weights", "note", value, remedy)
    else:
        yield Line("weights", "ok", value)
    if is_offline():
        yield Line("network", "note", "switched off by the environment", "unset HF_HUB_OFFLINE to download weights")


def _packages() -> Iterator[Line]:
    for name, (low, high) in PINNED.items():
        found = _version(name)
        wanted = f">={_dotted(low)},<{_dotted(high)}"
        if found is None:
            yield Line(name, "missing", "not installed", f"install {name}{wanted}")
        elif not low <= _numbers(found) < high:
            yield Line(name, "note", found, f"{wanted} is what exactness was shown with: install that")
    found = _version("av")
    if found is None:
        yield Line("av", "missing", "not installed", "install av: no MP4 can be written without it")


def _kernels(card: Card | None) -> Iterator[Line]:
    found = [f"{name} {v} ({purpose})" for name, purpose in KERNELS.items() if (v := _version(name)) is not None]
    yield Line("optional", "ok", ", ".join(found) or "none of the optional packages")
    if card is not None and _version("triton") is None:
        yield Line("triton", "note", "not installed", "fused kernels and compiling need it: install triton")


def _driver_version(root: Path) -> str | None:
    match = re.search(r"Kernel Module(?: for \S+)?\s+([0-9.]+)", _read(root / "proc/driver/nvidia/version") or "")
    return match[1] if match else None


def _nvidia_devices(root: Path) -> Iterator[Path]:
    """PCI folders of display and 3D controllers made by NVIDIA."""
    for folder in sorted((root / "sys/bus/pci/devices").glob("*")):
        kind = (_read(folder / "class") or "").strip()
        if (_read(folder / "vendor") or "").strip() == "0x10de" and kind.startswith("0x03"):
            yield folder


def _has_nvidia(root: Path) -> bool:
    return next(_nvidia_devices(root), None) is not None


def _number(path: Path) -> int | None:
    text = (_read(path) or "").strip()
    return int(text) if text.isdigit() else None


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _numbers(text: str) -> tuple[int, int]:
    parts = re.findall(r"\d+", text)[:2]
    return int(parts[0]), int(parts[1]) if len(parts) > 1 else 0


def _dotted(pair: tuple[int, int]) -> str:
    return ".".join(map(str, pair))


def _read(path: Path) -> str | None:
    try:
        return path.read_text()
    except OSError:
        return None

"""Device presets: the values of known cards, as data, for planning without them.

A preset is a YAML file of the same form whether it ships with yellowsound or is a user's own. Rates are those reached,
``basis`` says whether the block time was measured on such a card, ``sources`` where every value comes from.
"""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from yellowsound.memory.budget import GIB, SYSTEM_BYTES
from yellowsound.memory.machine import Machine, Rates
from yellowsound.memory.work import PRO, REFERENCE, counted_block_seconds
from yellowsound.request import RequestError

DEVICES = Path(__file__).parent / "devices"
ASSUMED_DISK_BYTES_PER_SECOND = 3.5e9


class Preset(BaseModel):
    """One card. Without ``block_seconds`` it is computed from the three rates."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(min_length=1)
    matches: tuple[str, ...] = ()
    vram_gib: float = Field(gt=0)
    ram_gib: float = Field(default=64, gt=0)
    link_gb_per_second: float = Field(gt=0)
    gemm_tflops: float = Field(gt=0)
    attention_tflops: float = Field(gt=0)
    memory_tb_per_second: float = Field(gt=0)
    block_seconds: float | None = Field(default=None, gt=0)
    lite_block_seconds: float | None = Field(default=None, gt=0)
    disk_gb_per_second: float | None = Field(default=None, gt=0)
    basis: Literal["measured", "computed"] = "computed"
    sources: tuple[str, ...] = ()

    @property
    def rates(self) -> Rates:
        gemm, attention = self.gemm_tflops * 1e12, self.attention_tflops * 1e12
        memory = self.memory_tb_per_second * 1e12
        block = self.block_seconds or counted_block_seconds(PRO, REFERENCE, gemm, attention, memory)
        basis = self.basis if self.block_seconds else "computed"
        return Rates(
            gemm_flops=gemm,
            attention_flops=attention,
            memory_bytes=memory,
            block_seconds=block,
            basis=basis,
            lite_block_seconds=self.lite_block_seconds,
        )

    def machine(self, ram_bytes: int | None = None, disk_bytes_per_second: float | None = None) -> Machine:
        """An empty machine with this card, a host of ``ram_bytes`` and a disk of the given speed.

        What is not given is taken from the preset or assumed; the machine's notes say so.
        """
        notes = []
        if ram_bytes is None:
            notes.append(f"host memory of {self.ram_gib:g} GiB is the preset's assumption: say --ram")
        disk = disk_bytes_per_second or (self.disk_gb_per_second or 0) * 1e9
        if not disk:
            disk = ASSUMED_DISK_BYTES_PER_SECOND
            notes.append(f"a disk of {disk / 1e9:g} GB/s is assumed: say --disk-speed")
        ram = ram_bytes or int(self.ram_gib * GIB)
        vram = int(self.vram_gib * GIB)
        return Machine(
            name=self.name,
            device="cuda",
            vram_total_bytes=vram,
            vram_free_bytes=vram,
            ram_total_bytes=ram,
            ram_available_bytes=max(ram - SYSTEM_BYTES, 0),
            link_bytes_per_second=self.link_gb_per_second * 1e9,
            disk_bytes_per_second=disk,
            rates=self.rates,
            notes=tuple(notes),
        )


def device_names() -> list[str]:
    """Names of the shipped device presets."""
    return sorted(path.stem for path in DEVICES.glob("*.yaml"))


def load_device(name_or_file: str | Path) -> Preset:
    """A shipped preset by name (``rtx-5090``) or a file of the same form. Raises RequestError naming what is wrong."""
    text = str(name_or_file)
    path = DEVICES / f"{text}.yaml" if text in device_names() else Path(text).expanduser()
    if not path.is_file():
        close = difflib.get_close_matches(text, device_names(), 1)
        known = ", ".join(device_names())
        raise RequestError("device_preset", text, f"neither a file nor one of {known}", close[0] if close else None)
    try:
        return Preset.model_validate(yaml.safe_load(path.read_text()))
    except yaml.YAMLError as error:
        raise RequestError("device_preset", text, f"is not YAML: {str(error).splitlines()[0]}") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        raise RequestError("device_preset", text, f"{where}: {first['msg'].lower()}") from None


def preset_of(card: str) -> Preset | None:
    """The shipped preset of a card by the name its driver reports; the longest match wins."""
    found = [(len(m), preset) for preset in map(load_device, device_names()) for m in preset.matches if m in card]
    return max(found, key=lambda pair: pair[0])[1] if found else None

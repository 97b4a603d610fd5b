"""Plans with LoRA files: what merging holds on the device is taken from what homes, slots and stages may have."""

from __future__ import annotations

import pytest
from plan_machines import GIB, W1, card, published

from yellowsound.memory.plan import Plan, PlanError, plan


def blocks_in_vram(found: Plan) -> int:
    return next(row.vram for row in found.classes if row.label == "fused blocks")


def test_lora_files_are_counted_wherever_they_are_held() -> None:
    model, loras = published("pro-distill"), 3 * GIB
    roomy = card(140, 256)
    plain, merged = (plan(roomy, model, W1, lora_bytes=b) for b in (0, loras))
    assert merged.homes == plain.homes
    assert merged.resident_bytes == plain.resident_bytes + loras
    assert [m.vram_bytes - p.vram_bytes for p, m in zip(plain.stages, merged.stages, strict=True)] == [
        loras for _ in plain.stages
    ]
    tight = card(31.3, 64)
    plain, merged = (plan(tight, model, W1, expand=True, lora_bytes=b) for b in (0, loras))
    assert blocks_in_vram(merged) < blocks_in_vram(plain)
    assert plain.expansion is not None and merged.expansion is not None
    assert merged.vram_peak_bytes <= merged.vram_budget_bytes
    more = merged.expansion.vram_bytes - plain.expansion.vram_bytes
    assert more == loras or merged.expansion.layers_in_vram < plain.expansion.layers_in_vram
    lite = published("lite-distill")
    assert plan(card(31.3, 64), lite, W1).vae_decode == "whole"
    assert plan(card(31.3, 64), lite, W1, lora_bytes=4 * GIB).vae_decode == "tiled"
    with pytest.raises(PlanError, match="VRAM"):
        plan(tight, model, W1, lora_bytes=30 * GIB)

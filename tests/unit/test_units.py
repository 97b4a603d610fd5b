"""Units: every tensor in exactly one, sizes of the published checkpoints, and the hoisted split."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from plan_machines import GIB, published

from yellowsound.checkpoint import Checkpoint
from yellowsound.memory.units import ALIGNMENT_BYTES, Unit, describe, units_of


@pytest.mark.parametrize("hoisted", [True, False])
def test_every_tensor_is_in_exactly_one_unit(tiny_sft: Path, hoisted: bool) -> None:
    checkpoint = Checkpoint.open(tiny_sft)
    units = units_of(checkpoint, hoisted=hoisted)
    placed = [(unit.component, tensor.name) for unit in units.values() for tensor in unit.tensors]
    stored = [(c.name, tensor) for c in checkpoint.components.values() for tensor in c.tensors]
    assert sorted(placed) == sorted(stored)
    assert all(unit.stored_bytes == sum(t.size_bytes for t in unit.tensors) for unit in units.values())


def test_hoisting_takes_eight_tensors_out_of_a_block(tiny_distill: Path) -> None:
    checkpoint = Checkpoint.open(tiny_distill)
    block = "transformer.visual_transformer_blocks.3"
    hoisted, whole = units_of(checkpoint), units_of(checkpoint, hoisted=False)
    names = {t.name.split(f"{block.removeprefix('transformer.')}.")[1] for t in hoisted[f"{block}.modulations"].tensors}
    parts = ("video_dec_block.visual_modulation", "audio_dec_block.visual_modulation", "va_modulation", "av_modulation")
    assert names == {f"{part}.out_layer.{kind}" for part in parts for kind in ("weight", "bias")}
    assert len(hoisted[block].tensors) == 64 and len(whole[block].tensors) == 72
    assert f"{block}.modulations" not in whole


def test_need_is_per_step_only_for_what_a_warm_step_touches(tiny_distill: Path) -> None:
    units = units_of(Checkpoint.open(tiny_distill)).values()
    per_step = {unit.name for unit in units if unit.needed == "step"}
    blocks = {f"transformer.visual_transformer_blocks.{i}" for i in range(4)}
    assert per_step == blocks | {"transformer.rest"}


def test_units_come_in_order_of_use(tiny_distill: Path) -> None:
    names = list(units_of(Checkpoint.open(tiny_distill)))
    transformer = [n.removeprefix("transformer.") for n in names if n.startswith("transformer.")]
    assert transformer[:5] == [
        "rest",
        "video_text_transformer_blocks.0",
        "video_text_transformer_blocks.1",
        "audio_text_transformer_blocks.0",
        "audio_text_transformer_blocks.1",
    ]
    assert transformer[5:9] == [
        "visual_transformer_blocks.0.modulations",
        "visual_transformer_blocks.0",
        "visual_transformer_blocks.1.modulations",
        "visual_transformer_blocks.1",
    ]
    assert names[0] == "text_encoder.rest" and names[-3:] == ["vae", "audio_vae", "vocoder"]


def test_text_encoder_is_cut_into_layers_eyes_and_head(tiny_distill: Path) -> None:
    units = units_of(Checkpoint.open(tiny_distill))
    assert [u.name for u in units.values() if u.component == "text_encoder"] == [
        "text_encoder.rest", "text_encoder.vision", "text_encoder.layers.0", "text_encoder.layers.1",
        "text_encoder.head",
    ]  # fmt: skip
    assert all("visual" not in t.name for t in units["text_encoder.layers.1"].tensors)
    assert {t.name for t in units["text_encoder.rest"].tensors} == {"model.embed_tokens.weight", "model.norm.weight"}


def test_sizes_of_the_published_checkpoints() -> None:
    """The figures of the study: 60 blocks of 0.899 GiB, 0.758 hoisted, 8.4 GiB of modulations, 2.1 of text blocks."""
    model, whole = published("pro-distill"), published("pro-distill", hoisted=False)
    assert len(model.blocks) == 60
    assert whole.blocks[0].stored_bytes / GIB == pytest.approx(0.8987, abs=1e-4)
    assert model.blocks[0].stored_bytes / GIB == pytest.approx(0.758, abs=1e-3)
    assert sum(u.stored_bytes for u in model.blocks) / GIB == pytest.approx(45.48, abs=0.01)
    assert sum(u.stored_bytes for u in model.of("transformer", "modulations")) / GIB == pytest.approx(8.45, abs=0.01)
    assert sum(u.stored_bytes for u in model.of("transformer", "text_block")) / GIB == pytest.approx(2.13, abs=0.01)
    assert sum(u.stored_bytes for u in model.of("text_encoder")) == pytest.approx(16_584_415_576, rel=1e-4)
    assert len(model.of("text_encoder", "layer")) == 28


def test_flow_modulations_are_stored_twice_as_wide_as_they_run() -> None:
    unit = published("pro").of("transformer", "modulations")[0]
    assert unit.stored_bytes == 2 * published("pro-distill").of("transformer", "modulations")[0].stored_bytes
    assert unit.device_bytes == pytest.approx(unit.stored_bytes / 2, rel=1e-3)
    assert unit.slot_bytes == pytest.approx(unit.stored_bytes * 1.5, rel=1e-3)


def test_only_the_heads_modulations_stay_float32_on_the_device() -> None:
    rest = published("pro-distill").of("transformer", "rest")[0]
    sizes = [math.prod(t.shape) * (4 if "out_layer.modulation." in t.name else 2) for t in rest.tensors]
    assert rest.device_bytes == sum(-(-size // 512) * 512 for size in sizes)
    assert sum("out_layer.modulation." in t.name for t in rest.tensors) == 4


def test_views_are_aligned_and_homes_leave_room_for_whole_pages() -> None:
    for unit in published("lite-distill").units:
        assert unit.device_bytes % ALIGNMENT_BYTES == 0 and unit.slot_bytes % ALIGNMENT_BYTES == 0
        assert unit.ram_bytes % 4096 == 0 and unit.ram_bytes >= unit.stored_bytes + 4096


def test_float32_doubles_what_bfloat16_files_take_on_the_device(tiny_distill: Path) -> None:
    checkpoint = Checkpoint.open(tiny_distill)
    narrow, wide = (describe(checkpoint, dtype) for dtype in ("bfloat16", "float32"))

    def size(unit: Unit) -> int:
        return unit.device_bytes

    # small tensors round up to whole 512-byte views in either type
    assert 1.5 < sum(map(size, wide.blocks)) / sum(map(size, narrow.blocks)) < 2
    assert wide.blocks[0].stored_bytes == narrow.blocks[0].stored_bytes


def test_description_reads_the_widths(tiny_sft: Path) -> None:
    model = describe(Checkpoint.open(tiny_sft))
    assert (model.model_dim, model.ff_dim, model.audio_dim, model.audio_ff_dim, model.head_dim) == (64, 160, 32, 72, 16)
    assert model.text_layers_kv_bytes == 2 * 2 * 16 * 2 * 2  # key and value, BF16, width, key heads, layers
    assert model.vae_channels == 12

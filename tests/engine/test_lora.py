"""LoRA files merged on the conveyor equal diffusers with peft, bit for bit, and clearly refuse what does not fit."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import Kandinsky6Transformer3DModel
from safetensors.torch import save_file
from streaming_world import equal, make_clip, plan_of, run_in_turn

from yellowsound.checkpoint import Checkpoint
from yellowsound.engine import Engine
from yellowsound.memory.loader import load_streamed_transformer
from yellowsound.memory.lora import Lora, LoraError, LoraMerger, lora_bytes, read_lora
from yellowsound.memory.parts import inside_block
from yellowsound.memory.stack import close_streamed, predict, prepare_clip
from yellowsound.memory.units import units_of
from yellowsound.request import ClipRequest

MODULES = {
    "visual_transformer_blocks.0.video_dec_block.self_attention.to_query": (64, 64),
    "visual_transformer_blocks.1.audio_dec_block.feed_forward.net.0.proj": (72, 32),
    "visual_transformer_blocks.2.av_cross_attention.to_key": (32, 64),
    "visual_transformer_blocks.3.va_modulation.out_layer": (160, 32),
    "video_text_transformer_blocks.1.attn.to_value": (64, 64),
    "out_layer.modulation.out_layer": (128, 32),
    "visual_embeddings.in_layer": (64, 132),
}


def write_lora(
    path: Path,
    *,
    dtype: torch.dtype = torch.float32,
    seed: int = 5,
    prefix: str = "transformer.",
    metadata: Any = None,
    **extra: Any,
) -> Path:
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for module, (rows, columns) in MODULES.items():
        tensors[f"{prefix}{module}.lora_A.weight"] = (torch.randn(4, columns, generator=generator) * 0.2).to(dtype)
        tensors[f"{prefix}{module}.lora_B.weight"] = (torch.randn(rows, 4, generator=generator) * 0.2).to(dtype)
    said = None if metadata is None else {"lora_adapter_metadata": json.dumps(metadata)}
    save_file({**tensors, **extra}, path, metadata=said)
    return path


def saved_by_diffusers(folder: Path, out: Path, **config: Any) -> Path:
    """A file that diffusers' own ``save_lora_adapter`` made, with random numbers in both factors."""
    from peft import LoraConfig

    model = Kandinsky6Transformer3DModel.from_pretrained(str(folder / "transformer"))
    targets = ["to_query", "to_key", "feed_forward.net.0.proj", "visual_embeddings.in_layer"]
    model.add_adapter(LoraConfig(target_modules=targets, **config))
    generator = torch.Generator().manual_seed(7)
    for name, value in model.named_parameters():
        if "lora_" in name:
            value.data = torch.randn(value.shape, generator=generator) * 0.2
    model.save_lora_adapter(out, weight_name="saved.safetensors")
    return out / "saved.safetensors"


def fused_stock(
    folder: Path, files: list[tuple[Path, float]], dtype: torch.dtype, prefix: str | None = "transformer"
) -> Any:
    model = Kandinsky6Transformer3DModel.from_pretrained(str(folder / "transformer"), dtype=dtype).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # peft warns of a second adapter
        for number, (file, _) in enumerate(files):
            model.load_lora_adapter(str(file), prefix=prefix, adapter_name=f"lora{number}", use_safetensors=True)
    names = [f"lora{number}" for number in range(len(files))]
    model.set_adapters(names, [scale for _, scale in files])
    model.fuse_lora(adapter_names=names)
    model.unload_lora()
    return model


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("pattern", ["V", "R", "D", "VRD"])
def test_merged_equals_diffusers_with_peft(tiny_sft: Path, tmp_path: Path, pattern: str, dtype: torch.dtype) -> None:
    files = [
        (write_lora(tmp_path / "one.safetensors"), 0.8),
        (write_lora(tmp_path / "two.safetensors", dtype=torch.bfloat16, seed=6), -0.5),
    ]
    stock = fused_stock(tiny_sft, files, dtype)
    checkpoint = Checkpoint.open(tiny_sft)
    loras = [Lora.parse(f"{file}:{scale}") for file, scale in files]
    model = load_streamed_transformer(checkpoint, plan_of(checkpoint, pattern), "cpu", dtype, loras=loras)
    clip = make_clip(dtype, steps=3)
    with torch.no_grad():
        prepare_clip(model, clip.timesteps, clip.branches)
        outputs = [o for s in range(3) for o in predict(model, [clip.inputs(s, 0), clip.inputs(s, 1)])]
    assert equal(outputs, run_in_turn(stock, clip))
    close_streamed(model)


@pytest.mark.parametrize(
    "config",
    [
        {"r": 4, "lora_alpha": 6, "use_rslora": True},
        {"r": 4, "lora_alpha": 8, "alpha_pattern": {"to_key": 2}},
        {"r": 4, "lora_alpha": 8, "alpha_pattern": {"self_attention.to_key": 2, "to_key": 3}},
        {"r": 4, "lora_alpha": 8, "alpha_pattern": {r"visual_transformer_blocks\.[01]\..*": 2}},
        {"r": 4, "lora_alpha": 8, "alpha_pattern": {"^visual_embeddings.in_layer": 2}},
        {"r": 4, "lora_alpha": 8, "rank_pattern": {"to_query": 2, "net.0.proj": 6}, "use_rslora": True},
        {"r": 4, "lora_alpha": 8, "rank_pattern": {"to_key": 2}, "alpha_pattern": {"to_key": 3}},
    ],
)
def test_saved_settings_mean_what_they_mean_to_peft(tiny_sft: Path, tmp_path: Path, config: dict[str, Any]) -> None:
    file = saved_by_diffusers(tiny_sft, tmp_path, **config)
    stock = fused_stock(tiny_sft, [(file, 0.7)], torch.float32, prefix=None)
    checkpoint = Checkpoint.open(tiny_sft)
    units = [unit for unit in units_of(checkpoint, "float32").values() if unit.component == "transformer"]
    merger = LoraMerger([Lora(file, 0.7)], units, checkpoint, torch.device("cpu"))
    own = Kandinsky6Transformer3DModel.from_pretrained(str(tiny_sft / "transformer")).state_dict()
    for unit in units:
        merger.merge(unit.name, {inside_block(entry): own[entry.name] for entry in unit.tensors})
    wanted = stock.state_dict()
    assert own.keys() == wanted.keys()
    assert [name for name in own if not torch.equal(own[name], wanted[name])] == []


def test_metadata_without_alpha_have_that_of_peft(tiny_sft: Path, tmp_path: Path) -> None:
    said = {"r": 4, "target_modules": list(MODULES)}
    file = write_lora(tmp_path / "a.safetensors", metadata={f"transformer.{k}": v for k, v in said.items()})
    stock = fused_stock(tiny_sft, [(file, 1.0)], torch.float32)
    checkpoint = Checkpoint.open(tiny_sft)
    plan = plan_of(checkpoint, "R")
    model = load_streamed_transformer(checkpoint, plan, "cpu", torch.float32, loras=[Lora(file)])
    clip = make_clip(torch.float32, steps=1, guidance=False)
    assert equal(run_in_turn(model, clip), run_in_turn(stock, clip))
    close_streamed(model)


def test_it_changes_the_picture(tiny_sft: Path, tmp_path: Path) -> None:
    checkpoint = Checkpoint.open(tiny_sft)
    clip = make_clip(torch.float32, steps=1, guidance=False)
    outputs = []
    for loras in ([], [Lora(write_lora(tmp_path / "a.safetensors"))]):
        model = load_streamed_transformer(checkpoint, plan_of(checkpoint, "R"), "cpu", torch.float32, loras=loras)
        outputs.append(run_in_turn(model, clip))
        close_streamed(model)
    assert not equal(*outputs)


def test_alpha_scales_by_the_rank(tmp_path: Path) -> None:
    module = "visual_embeddings.in_layer"
    file = write_lora(tmp_path / "a.safetensors", **{f"transformer.{module}.alpha": torch.tensor(2.0)})
    deltas = read_lora(Lora(file, 0.5))
    assert deltas[module].scale == 0.5 * 2.0 / 4
    assert deltas["out_layer.modulation.out_layer"].scale == 0.5


def test_alpha_may_come_from_the_metadata(tmp_path: Path) -> None:
    down, up = torch.ones(4, 132), torch.ones(64, 4)
    tensors = {f"transformer.visual_embeddings.in_layer.lora_{n}.weight": t for n, t in (("A", down), ("B", up))}
    metadata = {"lora_adapter_metadata": '{"transformer.lora_alpha": 8, "transformer.r": 4}'}
    save_file(tensors, tmp_path / "a.safetensors", metadata=metadata)
    assert read_lora(Lora(tmp_path / "a.safetensors"))["visual_embeddings.in_layer"].scale == 2.0


@pytest.mark.parametrize("prefix", ["transformer.", "diffusion_model.", "base_model.model.", ""])
def test_prefixes_of_other_writers_are_known(tmp_path: Path, prefix: str) -> None:
    assert set(read_lora(Lora(write_lora(tmp_path / "a.safetensors", prefix=prefix)))) == set(MODULES)


def test_keys_that_match_nothing_are_named(tiny_sft: Path, tmp_path: Path) -> None:
    stray = {f"transformer.visual_transformer_blocks.77.ff.lora_{n}.weight": torch.zeros(4, 4) for n in "AB"}
    file = write_lora(tmp_path / "a.safetensors", **stray)
    checkpoint = Checkpoint.open(tiny_sft)
    with pytest.raises(
        LoraError, match=r"a\.safetensors: made for another model: .* has no visual_transformer_blocks\.77\.ff"
    ):
        load_streamed_transformer(checkpoint, plan_of(checkpoint, "R"), "cpu", torch.float32, loras=[Lora(file)])


def test_shapes_that_do_not_fit_are_named(tiny_sft: Path, tmp_path: Path) -> None:
    wide = {
        "transformer.audio_embeddings.in_layer.lora_A.weight": torch.zeros(4, 41),
        "transformer.audio_embeddings.in_layer.lora_B.weight": torch.zeros(32, 4),
    }
    file = write_lora(tmp_path / "a.safetensors", **wide)
    checkpoint = Checkpoint.open(tiny_sft)
    with pytest.raises(LoraError, match=r"audio_embeddings\.in_layer is 32x41, .* has 32x40"):
        load_streamed_transformer(checkpoint, plan_of(checkpoint, "R"), "cpu", torch.float32, loras=[Lora(file)])


def test_words_of_the_command_line(tmp_path: Path) -> None:
    file = write_lora(tmp_path / "a b.safetensors")
    odd = write_lora(tmp_path / "x:y.safetensors")
    assert Lora.parse(f"{file}:0.8") == Lora(file, 0.8)
    assert Lora.parse(str(file)) == Lora(file, 1.0)
    assert Lora.parse(str(odd)) == Lora(odd, 1.0)
    with pytest.raises(LoraError, match="no such LoRA file"):
        Lora.parse(str(tmp_path / "none.safetensors:0.8"))


def test_a_file_whose_name_ends_like_a_weight_is_that_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = write_lora(tmp_path / "diff")
    odd = write_lora(tmp_path / "diff:0.5")
    assert Lora.parse(str(odd)) == Lora(odd, 1.0)
    assert Lora.parse(f"{odd}:0.25") == Lora(odd, 0.25)
    assert Lora.parse(f"{plain}:0.75") == Lora(plain, 0.75)
    assert Lora.parse(str(write_lora(tmp_path / "x:nan"))).file.name == "x:nan"


@pytest.mark.parametrize("number", ["nan", "inf", "-inf", "1e400"])
def test_a_weight_is_a_finite_number(tmp_path: Path, number: str) -> None:
    file = write_lora(tmp_path / "a.safetensors")
    with pytest.raises(LoraError, match=r"a\.safetensors: its weight is (nan|-?inf), expected a finite number"):
        Lora.parse(f"{file}:{number}")
    with pytest.raises(LoraError, match="expected a finite number"):
        Lora(file, float(number))


def test_a_name_that_cannot_be_a_file_is_refused() -> None:
    with pytest.raises(LoraError, match="no such LoRA file"):
        Lora.parse("x" * 5000)


def test_what_cannot_be_merged_is_told_before_anything_is_planned(tiny_sft: Path, tmp_path: Path) -> None:
    stray = {f"transformer.elsewhere.lora_{n}.weight": torch.zeros(4, 4) for n in "AB"}
    file = write_lora(tmp_path / "a.safetensors", **stray)
    with pytest.raises(LoraError, match=r"a\.safetensors: made for another model"):
        Engine.load(tiny_sft, device="cpu", loras=[str(file)])


def test_the_plan_counts_what_merging_holds(tiny_sft: Path, tmp_path: Path) -> None:
    file = write_lora(tmp_path / "a.safetensors")
    checkpoint = Checkpoint.open(tiny_sft)
    cpu = torch.device("cpu")
    factors = sum(-(-4 * side * 4 // 512) * 512 for shape in MODULES.values() for side in shape)
    largest = max(rows * columns + 4 * (rows + columns) for rows, columns in MODULES.values())
    assert lora_bytes([Lora(file)], checkpoint, torch.float32, cpu) == factors + 4 * largest
    assert lora_bytes([Lora(file), Lora(file)], checkpoint, torch.float32, cpu) == 2 * factors + 4 * largest
    assert lora_bytes([], checkpoint, torch.float32, cpu) == 0
    request = ClipRequest(prompt="x", width=64, height=64, num_frames=5)
    plain, merged = (Engine.load(tiny_sft, device="cpu", loras=loras).plan(request) for loras in ((), [str(file)]))
    assert merged.resident_bytes == plain.resident_bytes + factors + 4 * largest

"""LoRA files merged on the conveyor equal diffusers with peft, bit for bit, and clearly refuse what does not fit."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import Kandinsky6Transformer3DModel
from safetensors.torch import save_file
from streaming_world import equal, make_clip, plan_of, run_in_turn

from yellowsound.checkpoint import Checkpoint
from yellowsound.memory.loader import load_streamed_transformer
from yellowsound.memory.lora import Lora, LoraError, read_lora
from yellowsound.memory.stack import close_streamed, predict, prepare_clip

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
    path: Path, *, dtype: torch.dtype = torch.float32, seed: int = 5, prefix: str = "transformer.", **extra: Any
) -> Path:
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for module, (rows, columns) in MODULES.items():
        tensors[f"{prefix}{module}.lora_A.weight"] = (torch.randn(4, columns, generator=generator) * 0.2).to(dtype)
        tensors[f"{prefix}{module}.lora_B.weight"] = (torch.randn(rows, 4, generator=generator) * 0.2).to(dtype)
    save_file({**tensors, **extra}, path)
    return path


def fused_stock(folder: Path, files: list[tuple[Path, float]], dtype: torch.dtype, **options: Any) -> Any:
    model = Kandinsky6Transformer3DModel.from_pretrained(str(folder / "transformer"), dtype=dtype).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # peft warns of a second adapter
        for number, (file, _) in enumerate(files):
            model.load_lora_adapter(str(file), prefix="transformer", adapter_name=f"lora{number}", **options)
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


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"transformer.a.weight": torch.zeros(1)}, "tensor a.weight is no LoRA pair"),
        ({"transformer.a.lora_A.weight": torch.zeros(1, 1)}, "a has down only"),
    ],
)
def test_files_that_are_no_lora_are_refused(tmp_path: Path, tensors: dict[str, torch.Tensor], message: str) -> None:
    save_file(tensors, tmp_path / "a.safetensors")
    with pytest.raises(LoraError, match=message):
        read_lora(Lora(tmp_path / "a.safetensors"))


def test_words_of_the_command_line(tmp_path: Path) -> None:
    file = write_lora(tmp_path / "a b.safetensors")
    odd = write_lora(tmp_path / "x:y.safetensors")
    assert Lora.parse(f"{file}:0.8") == Lora(file, 0.8)
    assert Lora.parse(str(file)) == Lora(file, 1.0)
    assert Lora.parse(str(odd)) == Lora(odd, 1.0)
    with pytest.raises(LoraError, match="no such LoRA file"):
        Lora.parse(str(tmp_path / "none.safetensors:0.8"))
    (tmp_path / "page.safetensors").write_text("<html>")
    with pytest.raises(LoraError, match="is no safetensors file"):
        read_lora(Lora(tmp_path / "page.safetensors"))

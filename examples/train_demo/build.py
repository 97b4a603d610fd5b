"""Write the demo checkpoint with random weights: ``python build.py [OUT] [--seed N]``.

OUT (by default the package's own folder) gets ``common/``, ``flow/`` and ``piflow/``; ``yellowsound.demo.folder``
puts them together. Training starts from these files and replaces their weights.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import architecture
import encoders
import torch
import vocabulary
from diffusers import (
    AutoencoderKLHunyuanVideo,
    FlowMatchEulerDiscreteScheduler,
    Kandinsky6Transformer3DModel,
    MMAudioVAE,
    MMAudioVocoder,
    PiflowScheduler,
)
from diffusers.utils import logging as diffusers_logging
from transformers.utils import logging as transformers_logging

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "yellowsound" / "demo" / "checkpoint"
CLASSES = {
    "audio_vae": ["diffusers", "MMAudioVAE"],
    "text_encoder": ["transformers", "Qwen2_5_VLForConditionalGeneration"],
    "text_encoder_2": ["transformers", "CLIPTextModel"],
    "tokenizer": ["transformers", "Qwen2_5_VLProcessor"],
    "tokenizer_2": ["transformers", "CLIPTokenizer"],
    "transformer": ["diffusers", "Kandinsky6Transformer3DModel"],
    "vae": ["diffusers", "AutoencoderKLHunyuanVideo"],
    "vocoder": ["diffusers", "MMAudioVocoder"],
}
NORM_GAIN = 4.0  # by how much the constants in the video autoencoder outweigh its signals
LOG_VARIANCE = -6.0  # of the posterior, which only image-to-video draws from
SCHEDULERS = {"flow": "FlowMatchEulerDiscreteScheduler", "piflow": "PiflowScheduler"}


def build(out: Path, seed: int) -> None:
    """Write all parts under ``out``, which is emptied first; the same seed writes the same bytes."""
    shutil.rmtree(out, ignore_errors=True)
    common = out / "common"
    transformers_logging.disable_progress_bar()
    torch.manual_seed(seed)
    _save(encoders.qwen(vocabulary.save_qwen(common / "tokenizer")), common / "text_encoder")
    _save(encoders.clip(vocabulary.save_clip(common / "tokenizer_2")), common / "text_encoder_2")
    _save(_two_valued(new_vae()), common / "vae")
    _save(_two_valued(MMAudioVAE(**architecture.AUDIO_VAE)), common / "audio_vae")
    _save(_two_valued(MMAudioVocoder(**architecture.VOCODER)), common / "vocoder")
    for flavour in architecture.FLAVOURS:
        _save(_two_valued(new_transformer(flavour)), out / flavour / "transformer")
        _scheduler(flavour).save_pretrained(out / flavour / "scheduler")
        write_index(out / flavour, flavour)
    files = sorted(p for p in out.rglob("*") if p.is_file())
    hashes = {p.relative_to(out).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}
    untrained = {"trained": False, "command": f"python examples/train_demo/build.py --seed {seed}", "sha256": hashes}
    (out / "PROVENANCE.json").write_text(json.dumps(untrained, indent=1) + "\n")


def new_transformer(flavour: str) -> Kandinsky6Transformer3DModel:
    """A transformer with residual branches that start closed, as training needs (gates near zero, not at it)."""
    model = Kandinsky6Transformer3DModel(**architecture.transformer(flavour))
    for name, parameter in model.named_parameters():
        if "modulation" in name:
            torch.nn.init.normal_(parameter, std=0.02)
        elif parameter.ndim == 2:
            torch.nn.init.xavier_uniform_(parameter)
    return model


def new_vae() -> AutoencoderKLHunyuanVideo:
    """A video autoencoder that keeps colours: its norms divide by a constant, its residual branches start closed.

    A norm divides by the spread of the whole clip, which is lost, and absolute colours with it. So two channels of
    every tensor that is normed hold large constants of opposite sign, and their spread is nearly all the spread there
    is; the norms' gains take it back, and at first each norm passes the other channels on as they are. In time each
    convolution at first looks at the latest frame only: a chain of causal means would lag by more than a tile.
    """
    model = AutoencoderKLHunyuanVideo(**architecture.VAE)
    for name, parameter in model.named_parameters():
        if parameter.ndim >= 2:
            torch.nn.init.normal_(parameter, std=parameter[0].numel() ** -0.5)
        elif "norm" in name:
            torch.nn.init.constant_(parameter, NORM_GAIN if name.endswith("weight") else 0.0)
        else:
            torch.nn.init.zeros_(parameter)
    with torch.no_grad():
        for name, module in model.named_modules():
            if isinstance(module, torch.nn.Conv3d) and "conv2" in name:
                module.weight.zero_()
            elif isinstance(module, torch.nn.Conv3d) and _is_normed(name):
                bias: Any = module.bias
                bias[0] = NORM_GAIN * (len(bias) / 2) ** 0.5
                bias[1] = -bias[0]
        latents = len(model.post_quant_conv.bias)
        model.quant_conv.weight *= 3.0  # latents of about 1 from the start
        model.post_quant_conv.weight /= 3.0
        model.quant_conv.weight[latents:] = 0.0
        model.quant_conv.bias[latents:] = LOG_VARIANCE
        for parameter, mask in constant_masks(model, still=True):
            parameter.mul_(mask)
    return model


def _is_normed(convolution: str) -> bool:
    """Whether what the convolution of that name makes is (part of) a tensor that is normed."""
    return "conv_out" not in convolution and "quant" not in convolution and "conv2" not in convolution


def constant_masks(model: torch.nn.Module, *, still: bool = False) -> list[tuple[torch.nn.Parameter, torch.Tensor]]:
    """Weights and factors of 0 and 1 that keep the constants constant and unseen; to be applied after each step.

    still: earlier frames are kept unseen too.
    """
    masks: list[tuple[torch.nn.Parameter, torch.Tensor]] = []
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.GroupNorm):
            masks += [(p, torch.ones_like(p)) for p in (module.weight, module.bias)]
            for _, mask in masks[-2:]:
                mask[:2] = 0.0
        elif isinstance(module, torch.nn.Conv3d) and "quant" not in name:
            weight: Any = module.weight
            masks.append((weight, torch.ones_like(weight)))
            if "conv_out" not in name:
                masks[-1][1][:2] = 0.0
            if "conv_in" not in name:
                masks[-1][1][:, :2] = 0.0
            if still and module.kernel_size[0] == 3:
                masks[-1][1][:, :, :2] = 0.0
    return masks


def write_index(folder: Path, flavour: str) -> None:
    """model_index.json, and yellowsound.json with the name and the demo's own small defaults."""
    index: dict[str, Any] = {"_class_name": "Kandinsky6TI2VAPipeline", "_diffusers_version": "0.42.1", **CLASSES}
    index["scheduler"] = ["diffusers", SCHEDULERS[flavour]]
    own = {"name": "demo" if flavour == "piflow" else "demo-flow"}
    defaults = {**architecture.GEOMETRY, **architecture.DEFAULTS[flavour]}
    (folder / "model_index.json").write_text(json.dumps(dict(sorted(index.items())), indent=2) + "\n")
    (folder / "yellowsound.json").write_text(json.dumps({**own, **defaults}, indent=2) + "\n")


def _two_valued(model: Any) -> Any:
    """Keep of each weight only its sign, times the matrix' own spread: random all the same, and it packs tenfold."""
    for parameter in model.parameters():
        if parameter.ndim >= 2:
            parameter.data = parameter.data.sign() * parameter.data.std()
    return model


def _scheduler(flavour: str) -> Any:
    if flavour == "piflow":
        return PiflowScheduler(shift=architecture.SHIFT, n_grid=architecture.N_GRID)
    return FlowMatchEulerDiscreteScheduler(shift=architecture.SHIFT)


def _save(model: Any, folder: Path) -> None:
    diffusers_logging.set_verbosity_error()  # it warns that modulations are stored in bf16, which is meant
    model.to(torch.bfloat16).save_pretrained(folder)
    for path in folder.glob("*.safetensors"):
        path.chmod(0o644)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", nargs="?", type=Path, default=PACKAGE)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    build(arguments.out, arguments.seed)
    total = sum(f.stat().st_size for f in arguments.out.rglob("*") if f.is_file())
    print(f"{arguments.out}: {total / 1e6:.2f} MB")


if __name__ == "__main__":
    main()

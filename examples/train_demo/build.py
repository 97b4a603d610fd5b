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
    """A video autoencoder whose residual branches start closed: at first a plain chain of strided convolutions."""
    model = AutoencoderKLHunyuanVideo(**architecture.VAE)
    for name, parameter in model.named_parameters():
        if parameter.ndim < 2:
            continue
        torch.nn.init.normal_(parameter, std=parameter[0].numel() ** -0.5)
        if "conv2.conv" in name or "to_out" in name:
            torch.nn.init.zeros_(parameter)
    return model


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

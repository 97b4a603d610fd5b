"""Names, shapes and stored dtypes of the published transformers, from their configs alone. No torch.

Pro and Lite differ in widths and block counts only; a distilled one has ``n_grid`` times wider heads. What the files
store in float32 was read off published headers (Pro flow: assumed like Lite flow). Lite's ``axes_dims`` and
``audio_freqs_scaling`` are inferred: no released config was readable.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from yellowsound.request import Variant

Size = Literal["pro", "lite"]
Stored = dict[str, tuple[str, tuple[int, ...]]]  # name: (dtype, shape)
N_GRID = 10
_COMMON: dict[str, Any] = {
    "in_visual_dim": 16, "in_text_dim": 3584, "in_text_dim2": 768, "patch_size": [1, 2, 2], "visual_cond": True,
    "in_audio_dim": 40, "audio_freqs_scaling": 0.144, "scale_factor": [1.0, 2.0, 2.0], "text_token_padding": True,
    "ca_rope": True, "cross_gates": True, "fix_modulation": True, "visual_token_type_num_embeddings": 2,
}  # fmt: skip
_SIZES: dict[Size, dict[str, Any]] = {
    "pro": {
        "model_dim": 4096, "ff_dim": 16384, "time_dim": 1024, "num_text_blocks": 4, "num_visual_blocks": 60,
        "axes_dims": [32, 48, 48], "model_dim_a": 2048, "time_dim_a": 1024, "ff_dim_a": 7168,
        "axes_dims_a": [32, 48, 48],
    },
    "lite": {
        "model_dim": 1792, "ff_dim": 7168, "time_dim": 512, "num_text_blocks": 2, "num_visual_blocks": 32,
        "axes_dims": [16, 24, 24], "model_dim_a": 896, "time_dim_a": 512, "ff_dim_a": 3584,
        "axes_dims_a": [16, 24, 24],
    },
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class PartPlan:
    """One part to write: its config and what its weights file holds."""

    name: str
    config: dict[str, Any]
    tensors: Stored


def transformer_config(size: Size, variant: Variant) -> dict[str, Any]:
    """Constructor arguments of the published transformer of ``size`` and ``variant``."""
    grid = N_GRID if variant == "piflow" else 1
    return {**_COMMON, **_SIZES[size], "out_visual_dim": 16 * grid, "out_audio_dim": 40 * grid}


def transformer_tensors(config: dict[str, Any], variant: Variant) -> Stored:
    """Every stored tensor of a transformer with ``config``: dtype and shape by name, in the module's order."""
    return {name: (_dtype(name, variant), shape) for name, shape in _Widths.of(config).all(config)}


def _dtype(name: str, variant: Variant) -> str:
    """F32: what embeds, every q/k norm and, in flow files, every modulation; BF16: the rest."""
    parts = name.split(".")
    if "_embeddings" in parts[0] or parts[-2] in ("query_norm", "key_norm"):
        return "F32"
    return "F32" if variant == "flow" and any("modulation" in part for part in parts) else "BF16"


Named = Iterator[tuple[str, tuple[int, ...]]]


@dataclass(frozen=True, slots=True)
class _Tower:
    """Widths of one tower: model, feed-forward, time embedding."""

    dim: int
    ff: int
    time: int


@dataclass(frozen=True, slots=True)
class _Widths:
    video: _Tower
    audio: _Tower
    head: int

    @classmethod
    def of(cls, config: dict[str, Any]) -> _Widths:
        video = _Tower(config["model_dim"], config["ff_dim"], config["time_dim"])
        audio = _Tower(config["model_dim_a"], config["ff_dim_a"], config["time_dim_a"])
        return cls(video, audio, sum(config["axes_dims"]))

    def all(self, config: dict[str, Any]) -> Named:
        patch = config["patch_size"][0] * config["patch_size"][1] * config["patch_size"][2]
        channels = 2 * config["in_visual_dim"] + 1 if config["visual_cond"] else config["in_visual_dim"]
        video, audio = self.video, self.audio
        yield from _linear("visual_embeddings.in_layer", video.dim, channels * patch)
        yield "visual_token_type_embeddings.weight", (config["visual_token_type_num_embeddings"], video.dim)
        yield from self._head("out_layer", video, patch * config["out_visual_dim"])
        yield from _linear("audio_embeddings.in_layer", audio.dim, config["in_audio_dim"])
        yield from _norm("audio_embeddings.norm", audio.dim)
        yield from self._head("audio_out_layer", audio, config["out_audio_dim"])
        for prefix, tower in (("video", video), ("audio", audio)):
            yield from self._text_tower(prefix, tower, config)
        for index in range(config["num_visual_blocks"]):
            yield from self._fused_block(f"visual_transformer_blocks.{index}")

    def _head(self, name: str, tower: _Tower, rows: int) -> Named:
        yield from _linear(f"{name}.modulation.out_layer", 2 * tower.dim, tower.time)
        yield from _linear(f"{name}.out_layer", rows, tower.dim)

    def _text_tower(self, prefix: str, tower: _Tower, config: dict[str, Any]) -> Named:
        embedder = f"{prefix}_time_embeddings.timestep_embedder"
        yield from _linear(f"{embedder}.linear_1", tower.time, tower.dim)
        yield from _linear(f"{embedder}.linear_2", tower.time, tower.time)
        for name, rows, columns in (
            (f"{prefix}_text_embeddings", tower.dim, config["in_text_dim"]),
            (f"{prefix}_pooled_text_embeddings", tower.time, config["in_text_dim2"]),
        ):
            yield from _linear(f"{name}.in_layer", rows, columns)
            yield from _norm(f"{name}.norm", rows)
        for index in range(config["num_text_blocks"]):
            block = f"{prefix}_text_transformer_blocks.{index}"
            yield from _linear(f"{block}.text_modulation.out_layer", 6 * tower.dim, tower.time)
            yield from self._attention(f"{block}.attn", tower.dim, tower.dim)
            yield from _feed_forward(block, tower)

    def _fused_block(self, block: str) -> Named:
        video, audio = self.video, self.audio
        for name, tower in (("video_dec_block", video), ("audio_dec_block", audio)):
            inner = f"{block}.{name}"
            yield from _linear(f"{inner}.visual_modulation.out_layer", 9 * tower.dim, tower.time)
            yield from self._attention(f"{inner}.self_attention", tower.dim, tower.dim)
            yield from self._attention(f"{inner}.cross_attention", tower.dim, tower.dim)
            yield from _feed_forward(inner, tower)
        yield from self._attention(f"{block}.va_cross_attention", video.dim, audio.dim)
        yield from self._attention(f"{block}.av_cross_attention", audio.dim, video.dim)
        yield from _linear(f"{block}.va_modulation.out_layer", 2 * video.dim + audio.dim, video.time)
        yield from _linear(f"{block}.av_modulation.out_layer", 2 * audio.dim + video.dim, audio.time)

    def _attention(self, name: str, query_dim: int, key_dim: int) -> Named:
        yield from _linear(f"{name}.to_query", query_dim, query_dim)
        yield from _linear(f"{name}.to_key", query_dim, key_dim)
        yield from _linear(f"{name}.to_value", query_dim, key_dim)
        yield f"{name}.query_norm.weight", (self.head,)
        yield f"{name}.key_norm.weight", (self.head,)
        yield from _linear(f"{name}.out_layer", query_dim, query_dim)


def _linear(name: str, rows: int, columns: int) -> Named:
    yield f"{name}.weight", (rows, columns)
    yield f"{name}.bias", (rows,)


def _norm(name: str, width: int) -> Named:
    yield f"{name}.weight", (width,)
    yield f"{name}.bias", (width,)


def _feed_forward(block: str, tower: _Tower) -> Named:
    yield f"{block}.feed_forward.net.0.proj.weight", (tower.ff, tower.dim)
    yield f"{block}.feed_forward.net.2.weight", (tower.dim, tower.ff)

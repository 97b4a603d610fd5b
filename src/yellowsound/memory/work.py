"""Work: floating-point operations and traffic of each stage by geometry, and the seconds they take at given rates.

Counted from the shapes (4.23 PFLOP for a Pro forward at 864x480x121, 0.75 for Lite); times are computed unless the
rates carry a measured block time, from which other geometries are scaled by the same count.
"""

from __future__ import annotations

from dataclasses import dataclass

from yellowsound.memory.geometry import Geometry
from yellowsound.memory.machine import Basis, Rates
from yellowsound.memory.units import ITEM_BYTES, ModelDescription

# Passes over a (visual tokens x model width) tensor that the eager element-wise chain of a fused block makes:
# 66.8 ms a block at 1.79 TB/s on an RTX 5090, as a public profile of the same block reports.
ELEMENTWISE_PASSES = 290
TEMPLATE_TOKENS = 129  # of the prompt's fixed prefix

# Hunyuan decoder, seconds for 84 latent frames of 864x480 on a card of 210 TFLOP/s: convolutions, and norms, padding
# and layout, which a faster card hardly shortens (one block of threads sums up a channel group). A public profile has
# 9.6 and 7.7 s there; an H200 took 3.4 and 8.1 s (benchmarks/results/decode.json).
DECODE_PIXELS, DECODE_FLOPS = 84 * 864 * 480, 210e12
CONVOLUTION_SECONDS, NORM_SECONDS = 9.6, 8.2
VAE_WEIGHTS, SOUND_WEIGHTS = 246.5e6, 427.7e6  # those the profiles were taken with
TILE_PIXELS, TILE_STRIDE = 256, 192  # diffusers' enable_tiling
ENCODE_PIXELS_PER_SECOND = 50e6  # libx264 on a few cores, frames encoded while others arrive


@dataclass(frozen=True, slots=True)
class Widths:
    """Widths of one fused block: video D and F, audio A and Fa."""

    model: int
    feed_forward: int
    audio: int
    audio_feed_forward: int


PRO, LITE = Widths(4096, 16384, 2048, 7168), Widths(1792, 7168, 896, 3584)
REFERENCE = Geometry(frames=121, height=480, width=864)  # where ``Rates.block_seconds`` is stated


def widths(model: ModelDescription) -> Widths:
    return Widths(model.model_dim, model.ff_dim, model.audio_dim, model.audio_ff_dim)


def block_gemm_flop(w: Widths, geometry: Geometry) -> float:
    """Matrix products of one fused block and one branch, modulations left out (one row each)."""
    visual, audio, text = geometry.visual_tokens, geometry.audio_tokens, geometry.text_tokens
    on_video = 8 * w.model**2 + 2 * w.model * w.audio + 2 * w.model * w.feed_forward
    on_audio = 8 * w.audio**2 + 2 * w.model * w.audio + 2 * w.audio * w.audio_feed_forward
    on_text = 2 * w.model**2 + 2 * w.audio**2
    return 2.0 * (visual * on_video + audio * on_audio + text * on_text)


def block_attention_flop(w: Widths, geometry: Geometry) -> float:
    """Attention of one fused block and one branch: scores and values of all six calls."""
    visual, audio, text = geometry.visual_tokens, geometry.audio_tokens, geometry.text_tokens
    video_keys = visual * w.model * (visual + text + audio)
    audio_keys = audio * w.audio * (audio + text + visual)
    return 4.0 * (video_keys + audio_keys)


def counted_block_seconds(w: Widths, geometry: Geometry, gemm: float, attention: float, memory: float) -> float:
    """Seconds of one fused block, eager and exact, from counted work and three rates."""
    traffic = ELEMENTWISE_PASSES * geometry.visual_tokens * w.model * 2
    return block_gemm_flop(w, geometry) / gemm + block_attention_flop(w, geometry) / attention + traffic / memory


def block_seconds(model: ModelDescription, geometry: Geometry, rates: Rates) -> float:
    """Seconds one block takes for all branches: the card's known block time scaled by counted work and item size."""

    def counted(w: Widths, g: Geometry) -> float:
        return counted_block_seconds(w, g, rates.gemm_flops, rates.attention_flops, rates.memory_bytes)

    slower = 2.0 if geometry.dtype == "float32" else 1.0
    like, seconds = _nearest(model, rates)
    return seconds * geometry.branches * slower * counted(widths(model), geometry) / counted(like, REFERENCE)


def basis_of(model: ModelDescription, rates: Rates) -> Basis:
    """``measured`` if a block of this very model was measured on such a card; scaled ones are computed."""
    return rates.basis if widths(model) == _nearest(model, rates)[0] else "computed"


def _nearest(model: ModelDescription, rates: Rates) -> tuple[Widths, float]:
    """The block whose time is known and that ``model`` is scaled from: Lite has smaller products, and slower ones."""
    if widths(model) == LITE and rates.lite_block_seconds is not None:
        return LITE, rates.lite_block_seconds
    return PRO, rates.block_seconds


def hoisting_seconds(model: ModelDescription, geometry: Geometry, rates: Rates) -> float:
    """Extra compute of lap one: text blocks for every step and branch; modulations are bound by memory."""
    times = geometry.steps * geometry.branches
    d, a, text = model.model_dim, model.audio_dim, geometry.text_tokens
    products = 2.0 * text * (4 * d**2 + 2 * d * model.ff_dim + 4 * a**2 + 2 * a * model.audio_ff_dim)
    modulations = sum(u.device_bytes for u in model.of("transformer", "modulations"))
    return times * (model.text_blocks * products / rates.gemm_flops + modulations / rates.memory_bytes)


def text_seconds(model: ModelDescription, geometry: Geometry, rates: Rates) -> float:
    """Compute of encoding every branch's prompt with the text encoder's layers."""
    parameters = sum(u.device_bytes for u in model.of("text_encoder", "layer")) / 2
    return 2.0 * parameters * (geometry.text_tokens + TEMPLATE_TOKENS) * geometry.branches / rates.gemm_flops


def tiled_pixels(side: int) -> int:
    """Pixels of one side that the tiled decode computes, overlaps included."""
    return sum(min(TILE_PIXELS, side - start) for start in range(0, side, TILE_STRIDE))


def decode_seconds(model: ModelDescription, geometry: Geometry, tiled: bool, rates: Rates) -> float:
    """Compute of the video decode: time tiles of 5 latent frames with stride 3, whole or in tiles of 256 pixels."""
    latent = geometry.latent_frames
    frames = latent if latent <= 4 else sum(min(5, latent - start) for start in range(0, latent, 3))
    h, w = geometry.height, geometry.width
    pixels = tiled_pixels(h) * tiled_pixels(w) if tiled else h * w
    slower = 2.0 if geometry.dtype == "float32" else 1.0
    smaller = _weights(model, "vae") / VAE_WEIGHTS
    faster = rates.gemm_flops / DECODE_FLOPS
    seconds = CONVOLUTION_SECONDS / faster + NORM_SECONDS / min(faster, 1.0)
    return slower * smaller * frames * pixels / DECODE_PIXELS * seconds


def sound_seconds(model: ModelDescription, geometry: Geometry, rates: Rates) -> float:
    """Compute of sound: 0.05 s were reported for five seconds on a card of 210 TFLOP/s."""
    smaller = (_weights(model, "audio_vae") + _weights(model, "vocoder")) / SOUND_WEIGHTS
    return 0.05 * smaller * geometry.audio_tokens / 218 * 210e12 / rates.gemm_flops


def _weights(model: ModelDescription, component: str) -> float:
    return sum(unit.device_bytes for unit in model.of(component)) / ITEM_BYTES[model.dtype]


def mux_seconds(geometry: Geometry) -> float:
    """Time the encoder still needs when the last frame has arrived, at most."""
    return geometry.frames * geometry.height * geometry.width / ENCODE_PIXELS_PER_SECOND

"""How large the demo's networks are: the published architecture with every width cut down, head size 64 kept.

Both flavours share all but the transformer's heads and the scheduler.
"""

from __future__ import annotations

from typing import Any

LATENT_CHANNELS, AUDIO_CHANNELS, MEL_BINS = 16, 40, 64
TEXT_WIDTH, POOLED_WIDTH = 96, 64
N_GRID, SHIFT = 10, 5.0
FLAVOURS = ("flow", "piflow")

DEFAULTS: dict[str, dict[str, Any]] = {
    "flow": {"num_inference_steps": 20, "guidance_scale": 2.5},
    "piflow": {"num_inference_steps": 10, "guidance_scale": 1.0},
}
GEOMETRY = {"width": 192, "height": 128, "num_frames": 49}

VAE: dict[str, Any] = {
    "latent_channels": LATENT_CHANNELS,
    "block_out_channels": (16, 16, 32, 48),
    "layers_per_block": 1,
    "norm_num_groups": 1,
    "mid_block_add_attention": False,
    "scaling_factor": 1.0,
}
AUDIO_VAE: dict[str, Any] = {
    "mel_bins": MEL_BINS,
    "latent_channels": AUDIO_CHANNELS,
    "hidden_channels": 24,
    "channel_multipliers": (1, 2, 3),
    "layers_per_block": 1,
    "scaling_factor": 1.0,
}
VOCODER: dict[str, Any] = {
    "num_mels": MEL_BINS,
    "upsample_initial_channel": 128,
    "upsample_rates": (8, 8, 8),
    "upsample_kernel_sizes": (16, 16, 16),
    "resblock_kernel_sizes": (7,),
    "resblock_dilation_sizes": ((1,),),
}
QWEN_TEXT: dict[str, Any] = {
    "hidden_size": TEXT_WIDTH,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0, "mrope_section": [4, 6, 6]},
}
QWEN_VISION: dict[str, Any] = {
    "depth": 1,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_heads": 2,
    "out_hidden_size": TEXT_WIDTH,
    "fullatt_block_indexes": [0],
    "patch_size": 14,
}
CLIP: dict[str, Any] = {
    "hidden_size": POOLED_WIDTH,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 1,
    "max_position_embeddings": 77,
    "projection_dim": POOLED_WIDTH,
}


def transformer(flavour: str) -> dict[str, Any]:
    """The configuration of the transformer; ``piflow`` has heads for N_GRID predictions instead of one."""
    grid = N_GRID if flavour == "piflow" else 1
    return {
        "in_visual_dim": LATENT_CHANNELS,
        "out_visual_dim": LATENT_CHANNELS * grid,
        "in_audio_dim": AUDIO_CHANNELS,
        "out_audio_dim": AUDIO_CHANNELS * grid,
        "in_text_dim": TEXT_WIDTH,
        "in_text_dim2": POOLED_WIDTH,
        "time_dim": 64,
        "time_dim_a": 64,
        "model_dim": 128,
        "model_dim_a": 64,
        "ff_dim": 448,
        "ff_dim_a": 256,
        "num_text_blocks": 1,
        "num_visual_blocks": 6,
        "axes_dims": (16, 24, 24),
        "axes_dims_a": (16, 24, 24),
        "audio_freqs_scaling": 0.144,
        "visual_token_type_num_embeddings": 2,
        "text_token_padding": True,
        "ca_rope": True,
        "cross_gates": True,
        "fix_modulation": True,
    }

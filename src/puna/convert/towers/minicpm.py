"""The vision towers of MiniCPM-V: merging midway in 4.6, resampling in earlier versions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from puna.convert.checkpoint import Values
from puna.convert.config import Config
from puna.convert.families.minicpm import version
from puna.convert.family import Family, Split
from puna.convert.towers.clip import LAYER, kept, keys, thirds

_MERGER: Final = {"pre_norm": "input_norm", "linear_1": "up", "linear_2": "down"}
_MIDWAY: Final = {
    "layer_norm1": "ln1", "pre_norm": "ds_ln", "linear_1": "ds_ffn_up", "linear_2": "ds_ffn_down",
    "self_attn.out_proj": "attn_out", **{f"self_attn.{part}_proj": f"attn_{part}" for part in "qkv"},
}  # fmt: skip


def _merge_layer(config: Config) -> list[int]:
    """Return the layer after which patches are merged, in a list."""
    layer = config.whole.get("insert_layer_id", config.get("insert_layer_id"))
    return [6 if layer is None else int(layer)]


MINICPM: Final = Family(
    hf=("MiniCPMV4_6ForConditionalGeneration",), architecture="clip", kept=kept("merger."),
    keys={
        **keys("minicpmv4_6", 1e-6), "vision.projector.scale_factor": lambda config: 4,
        "vision.wa_layer_indexes": _merge_layer,
        "vision.image_size": lambda config: config.image_setting(
            "scale_resolution", config.get("image_size")
        ),
    },
    names={
        "tower.embeddings.patch_embedding": "v.patch_embd",
        "tower.embeddings.position_embedding": "v.position_embd", "tower.post_layernorm": "v.post_ln",
        **{f"tower.encoder.layers.{{}}.{theirs}": f"v.blk.{{}}.{ours}" for theirs, ours in LAYER.items()},
        **{f"tower.vit_merger.{theirs}": f"v.vit_merger.{ours}" for theirs, ours in _MIDWAY.items()},
        **{f"merger.{theirs}": f"mm.{ours}" for theirs, ours in _MERGER.items()},
    },
    rename=lambda name, config: name.replace("merger.mlp.0.", "merger."),
)  # fmt: skip
#: Version numbers in llama.cpp.
_NUMBERS: Final = {
    ("MiniCPMV", "2.5"): 2, ("MiniCPMV", "2.6"): 3, ("MiniCPMO", "2.6"): 4, ("MiniCPMV", "4"): 5,
    ("MiniCPMV", "4.0"): 5, ("MiniCPMV", "4.5"): 6, ("MiniCPMO", "4.5"): 100045,
}  # fmt: skip
#: Side of the grid of position embeddings in a file.
_SIDE: Final = 70


def _number(config: Config) -> int | None:
    return _NUMBERS.get((config.whole["architectures"][0], version(config)))


def _layers(config: Config) -> int:
    """Return the number of layers; checkpoints lack the last one unless the settings deny it."""
    return config.bounded_count("num_hidden_layers") - bool(config.whole.get("drop_vision_last_layer", True))


def _position_embeddings(config: Config) -> Mapping[str, Values]:
    """Return sinusoidal position embeddings: the column in the first half of the values, then the row."""
    size = config.text.count("hidden_size")
    frequencies = 1 / 10000 ** (np.arange(size // 4, dtype=np.float32) / (size // 4))
    angles = np.arange(_SIDE, dtype=np.float32)[:, None] * frequencies
    waves = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
    places = np.concatenate([np.tile(waves, (_SIDE, 1)), np.repeat(waves, _SIDE, axis=0)], axis=1)
    return {"resampler.pos_embed_k": places}


_SWAPPED: Final = {**LAYER, "mlp.fc1": "ffn_down", "mlp.fc2": "ffn_up"}  # as in the first converter
_PARTS: Final = ("resampler.attn.q", "resampler.attn.k", "resampler.attn.v")
RESAMPLER: Final = Family(
    hf=("MiniCPMV", "MiniCPMO"), architecture="clip", kept=kept("resampler."),
    keys={
        **keys("resampler", 1e-6), "minicpmv_version": _number,
        "minicpmv_query_num": lambda config: config.whole.get("query_num"),
        "vision.image_size": lambda config: config.whole.get("image_size") or 448,
        "vision.projection_dim": lambda config: 0,
        "vision.block_count": _layers,
        "vision.image_mean": lambda config: config.image_setting("norm_mean", [0.5] * 3),
        "vision.image_std": lambda config: config.image_setting("norm_std", [0.5] * 3),
    },
    names={
        "tower.embeddings.patch_embedding": "v.patch_embd",
        "tower.embeddings.position_embedding": "v.position_embd", "tower.post_layernorm": "v.post_ln",
        **{f"tower.encoder.layers.{{}}.{theirs}": f"v.blk.{{}}.{ours}" for theirs, ours in _SWAPPED.items()},
        **{f"resampler.{name}": f"resampler.{name}" for name in ("query", "ln_q", "ln_kv", "ln_post")},
        "resampler.kv_proj": "resampler.kv", "resampler.attn.out_proj": "resampler.attn.out",
        "resampler.attn.in_proj_weight": Split(tuple(f"{part}.weight" for part in _PARTS), thirds),
        "resampler.attn.in_proj_bias": Split(tuple(f"{part}.bias" for part in _PARTS), thirds),
        "resampler.proj": Split(("resampler.proj.weight",), lambda values, config: (values.T,)),
        "resampler.pos_embed": None,
    },
    extra=_position_embeddings, dropped=("tower.head.",), when=lambda config: _number(config) is not None,
)  # fmt: skip
FAMILIES: Final = (MINICPM, RESAMPLER)

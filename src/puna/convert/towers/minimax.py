"""The vision tower of MiniMax-M3, with queries and keys in llama.cpp's order."""

from __future__ import annotations

from typing import Final

import numpy as np

from puna.convert.checkpoint import Values
from puna.convert.config import Config
from puna.convert.family import Family, Place, Split
from puna.convert.towers.clip import LAYER, kept, keys, rope_base
from puna.convert.towers.qwen import SIZES, frames

_NAMES: Final[dict[str, Place]] = {
    "tower.embeddings.patch_embedding.weight": Split(
        ("v.patch_embd.weight", "v.patch_embd.weight.1"), frames
    ),
    "tower.pre_layrnorm": "v.pre_ln",
    **{f"tower.encoder.layers.{{}}.{theirs}": f"v.blk.{{}}.{ours}" for theirs, ours in LAYER.items()},
    **{f"multi_modal_projector.linear_{number}": f"mm.{number}" for number in (1, 2)},
    **{f"patch_merge_mlp.linear_{number}": f"mm.merger.fc{number}" for number in (1, 2)},
}


def _merge(config: Config) -> int:
    """Return the patches of a row along a side."""
    return int(config.get("spatial_merge_size", "img_token_compression_config.spatial_merge_size") or 2)


def _by_axis(values: Values, config: Config) -> Values:
    """Reorder the rows of queries or keys [hidden, ...]: both halves of the pairs of an axis are neighbours.

    Published ones have the first halves of all axes, then the second halves, then rows that do not rotate.
    """
    heads = values.reshape(config.heads, -1, *values.shape[1:])
    pairs = heads.shape[1] // 6
    rotated, rest = heads[:, : 6 * pairs], heads[:, 6 * pairs :]
    halves = rotated.reshape(len(heads), 2, 3, pairs, *values.shape[1:])
    by_axis = halves.swapaxes(1, 2).reshape(rotated.shape)
    return np.concatenate([by_axis, rest], axis=1).reshape(values.shape)


MINIMAX: Final = Family(
    hf=("MiniMaxM3SparseForConditionalGeneration",), architecture="clip",
    kept=kept("multi_modal_projector.", "patch_merge_mlp."),
    keys={
        **keys("minimax_m3", 1e-5), "vision.spatial_merge_size": _merge, "vision.rope.freq_base": rope_base,
        **SIZES,
    },
    names=_NAMES,
    changes={f"attn_{part}.{kind}": _by_axis for part in "qk" for kind in ("weight", "bias")},
)  # fmt: skip
FAMILIES: Final = (MINIMAX,)

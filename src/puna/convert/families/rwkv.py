"""RWKV 7, as flash-linear-attention publishes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from puna.convert.config import Config
from puna.convert.families.mamba import NOTHING
from puna.convert.family import Family, Member, Place
from puna.convert.numbers import Values

#: What layers say with low ranks, in their tensors' names and in those of files.
_LOW_RANKS: Final = ("w", "a", "v", "g")
#: In the order of files.
_SHIFTED: Final = ("r", "w", "k", "v", "a", "g")


def _rank(config: Config, name: str, exponent: float, factor: float) -> int:
    """A rank, which grows with the hidden size where config.json does not say it."""
    if config.get(name) is not None:
        return config.count(name)
    size: float = config.count("hidden_size") ** exponent
    return 32 * max(1, round(size * factor / 32))


def _rate_rank(config: Config) -> int:
    return _rank(config, "a_low_rank_dim", 0.5, 1.8)


def _unused(config: Config) -> Mapping[str, Values]:
    """The first layer's shares of its own values, which llama.cpp expects."""
    rank, size = _rate_rank(config), config.count("hidden_size")
    shapes = (size,), (rank, size), (size, rank)
    return {f"blk.0.time_mix_v{i}.weight": np.zeros(shape, np.float32) for i, shape in enumerate(shapes)}


def _flat(values: Values, config: Config) -> Values:
    return values.reshape(-1)


_LAYER: Final[dict[str, Place]] = {
    "pre_norm": "token_embd_norm", "attn_norm": "blk.{}.attn_norm", "ffn_norm": "blk.{}.attn_norm_2",
    "attn.r_proj": "blk.{}.time_mix_receptance", "attn.k_proj": "blk.{}.time_mix_key",
    "attn.v_proj": "blk.{}.time_mix_value", "attn.o_proj": "blk.{}.time_mix_output",
    "attn.g_norm": "blk.{}.time_mix_ln", "ffn.key": "blk.{}.channel_mix_key",
    "ffn.value": "blk.{}.channel_mix_value", "ffn.x_k": "blk.{}.channel_mix_lerp_k.weight",
    **{f"attn.{name}": f"blk.{{}}.time_mix_{name}.weight" for name in ("k_k", "k_a", "r_k")},
    **{
        f"attn.{name}_lora.lora.{place}": f"blk.{{}}.time_mix_{name}{number}.weight"
        for name in _LOW_RANKS
        for place, number in (("2.bias", 0), ("0.weight", 1), ("2.weight", 2))
    },
    **{
        f"attn.x_{name}": Member("blk.{}.time_mix_lerp_fused.weight", i) for i, name in enumerate(_SHIFTED)
    },
}  # fmt: skip

RWKV7: Final = Family(
    hf=("RWKV7ForCausalLM", "Rwkv7ForCausalLM"), architecture="rwkv7",
    keys={
        **NOTHING, "wkv.head_size": "head_dim",
        "feed_forward_length": lambda config: config.get("intermediate_size") or 4 * config["hidden_size"],
        "attention.layer_norm_epsilon": "norm_eps",
        "attention.layer_norm_rms_epsilon": lambda config: None,
        "attention.decay_lora_rank": lambda config: _rank(config, "decay_low_rank_dim", 0.5, 1.8),
        "attention.iclr_lora_rank": _rate_rank,
        "attention.value_residual_mix_lora_rank": lambda config: _rank(config, "v_low_rank_dim", 0.5, 1.3),
        "attention.gate_lora_rank": lambda config: _rank(config, "gate_low_rank_dim", 0.8, 0.6),
    },
    names={
        "model.embeddings": "token_embd",
        **{f"model.layers.{{}}.{theirs}": place for theirs, place in _LAYER.items()},
    },
    changes={
        "time_mix_lerp_fused.weight": lambda values, config: values.reshape(1, 1, -1),
        **{f"time_mix_{name}.weight": _flat for name in ("k_k", "k_a", "r_k")},
        "channel_mix_lerp_k.weight": _flat,
    },
    extra=_unused,
)  # fmt: skip

FAMILIES: Final = (RWKV7,)

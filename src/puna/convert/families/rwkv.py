"""RWKV 6 and 7, the latter as flash-linear-attention publishes it, and models of Qwen 2 with their attention.

These are QRWKV, with RWKV 6's, and ARWKV, with RWKV 7's.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

import numpy as np

from puna.convert.checkpoint import Values
from puna.convert.config import Config
from puna.convert.families.mamba import NO_ATTENTION, NOTHING
from puna.convert.family import Change, Family, Member, Place

#: Low-rank parts of a layer, as named in checkpoints and in GGUF.
_LOW_RANKS: Final = ("w", "a", "v", "g")
#: Token-shift weights, in GGUF's order.
_SHIFTED: Final = ("r", "w", "k", "v", "a", "g")


def _rank(config: Config, name: str, exponent: float, factor: float) -> int:
    """Return a rank, which grows with the hidden size if config.json does not give it."""
    if config.get(name) is not None:
        return config.count(name)
    size: float = config.count("hidden_size") ** exponent
    return 32 * max(1, round(size * factor / 32))


def _rate_rank(config: Config) -> int:
    return _rank(config, "a_low_rank_dim", 0.5, 1.8)


def _first_value_mix(config: Config) -> Mapping[str, Values]:
    return _value_mix(_rate_rank(config), config)


def _value_mix(rank: int, config: Config) -> Mapping[str, Values]:
    """Return the first layer's value mix as zeros: unused, but llama.cpp expects the tensors."""
    size = config.count("hidden_size")
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
        "feed_forward_length": lambda config: (
            config.get("intermediate_size", otherwise=4 * config["hidden_size"])
        ),
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
    extra=_first_value_mix,
    assumed={
        "hidden_act": "sqrelu", "norm_first": True, "attn": (), "hidden_ratio": lambda config: (
            (config.get("intermediate_size") and config.peek("hidden_ratio")) or 4.0
        ),
    },
    harmless=(*NO_ATTENTION, "attn_mode", "use_l2warp", "value_dim", "num_heads", "head_size"),
)  # fmt: skip

#: Ranks of ARWKV, from its published code.
_RANKS: Final = {"decay": 64, "iclr": 64, "value_residual_mix": 32}
_GATE_RANK: Final = 128
_MIXER: Final = "model.layers.{}.self_attn.time_mixer"
_ARWKV_NAMES: Final[dict[str, Place]] = {
    f"{_MIXER}.receptance": "blk.{}.time_mix_receptance", f"{_MIXER}.key": "blk.{}.time_mix_key",
    f"{_MIXER}.value": "blk.{}.time_mix_value", f"{_MIXER}.output": "blk.{}.time_mix_output",
    f"{_MIXER}.ln_x": "blk.{}.time_mix_ln",
    **{
        f"{_MIXER}.{name}": f"blk.{{}}.time_mix_{name}.weight"
        for name in ("k_k", "k_a", "r_k", *(f"{low}{number}" for low in _LOW_RANKS for number in range(3)))
    },
    **{
        f"{_MIXER}.x_{name}": Member("blk.{}.time_mix_lerp_fused.weight", i)
        for i, name in enumerate(_SHIFTED)
    },
}  # fmt: skip


def _transposed(values: Values, config: Config) -> Values:
    """Transpose [in, out] to [out, in]."""
    return values.swapaxes(0, 1)


def _is_arwkv(config: Config, *, gated: bool) -> bool:
    """Whether all layers are RWKV 7 layers of the sizes that the code and GGUF files assume."""
    return (
        config.get("wkv_version") == 7
        and config.get("wkv_layers") in (None, "full", list(range(config.layers)))
        and config.get("head_size_divisor") in (None, 8)
        and bool(config.get("wkv_has_gate")) is gated
    )


def _arwkv(*, gated: bool) -> Family:
    rank = _GATE_RANK if gated else 0
    return Family(
        hf=("RwkvHybridForCausalLM",), architecture="arwkv7",
        keys={
            **NOTHING, "wkv.head_size": "head_size", "feed_forward_length": "intermediate_size",
            "token_shift_count": lambda config: 1, "attention.gate_lora_rank": lambda config: rank,
            **{f"attention.{name}_lora_rank": partial(_constant, size) for name, size in _RANKS.items()},
        },
        names=_ARWKV_NAMES if gated else {**_ARWKV_NAMES, f"{_MIXER}.x_g": None},
        changes={
            **RWKV7.changes,
            **{f"time_mix_{low}0.weight": _flat for low in _LOW_RANKS},
            **{f"time_mix_{low}{number}.weight": _transposed for low in _LOW_RANKS for number in (1, 2)},
        },
        extra=partial(_value_mix, _RANKS["iclr"]),
        dropped=tuple(f"{_MIXER.format(0)}.v{number}" for number in range(3)),
        when=partial(_is_arwkv, gated=gated), pre="qwen2",
        harmless=(
            *NO_ATTENTION, "wkv_*", "head_size_divisor", "hidden_*", "rms_norm_eps", "sliding_window",
            "max_window_layers",
            "attention_*", "rwkv_*", "lora_rank_*",
        ),
    )  # fmt: skip


def _constant(value: int, config: Config) -> int:
    return value


#: Inputs that RWKV 6's token shift makes, in GGUF's order.
_MIXED: Final = ("w", "k", "v", "r", "g")
#: The same in the order of QRWKV's low-rank parts.
_QWEN_MIXED: Final = ("r", "k", "v", "w", "g")


def _decaying(prefix: str, heads: Mapping[str, str]) -> dict[str, Place]:
    """Return the places of RWKV 6's time mix named `prefix`, whose linears are called `heads`."""
    return {
        **{f"{prefix}.{theirs}": f"blk.{{}}.time_mix_{ours}" for theirs, ours in heads.items()},
        **{
            f"{prefix}.time_{theirs}": f"blk.{{}}.time_mix_{ours}.weight"
            for theirs, ours in {
                "maa_x": "lerp_x", "maa_w1": "w1", "maa_w2": "w2", "decay": "decay", "decay_w1": "decay_w1",
                "decay_w2": "decay_w2", "faaaa": "first",
            }.items()
        },
        **{
            f"{prefix}.time_maa_{name}": Member("blk.{}.time_mix_lerp_fused.weight", i)
            for i, name in enumerate(_MIXED)
        },
    }  # fmt: skip


def _wide(narrow: int, config: Config) -> int:
    """Return a rank, which is twice `narrow` in the widest RWKV 6."""
    return 2 * narrow if config.count("hidden_size") == 4096 else narrow


def _wide_enough(narrow: int, name: str, config: Config) -> int:
    """Return a rank of QRWKV, which config.json may state as `name`."""
    if config.get(name) is not None:
        return config.count(name)
    return 2 * narrow if config.count("hidden_size") >= 4096 else narrow


_DECAYING_CHANGES: Final[dict[str, Change]] = {
    "time_mix_lerp_fused.weight": RWKV7.changes["time_mix_lerp_fused.weight"],
    **{f"time_mix_{name}.weight": _transposed for name in ("w1", "decay_w1", "decay_w2")},
    "time_mix_w2.weight": lambda values, config: values.swapaxes(1, 2),
    **{f"{name}.weight": _flat for name in ("time_mix_lerp_x", "time_mix_decay")},
    **{f"channel_mix_lerp_{name}.weight": _flat for name in "kr"},
}
_FINCH_LINEARS: Final = {
    "receptance": "receptance", "key": "key", "value": "value", "gate": "gate", "output": "output",
    "ln_x": "ln",
}  # fmt: skip
RWKV6: Final = Family(
    hf=("Rwkv6ForCausalLM",), architecture="rwkv6",
    keys={
        **NOTHING, "wkv.head_size": "head_size", "attention.layer_norm_epsilon": "layer_norm_epsilon",
        "attention.layer_norm_rms_epsilon": lambda config: None,
        "feed_forward_length": lambda config: (
            config.get("intermediate_size", otherwise=int(config.count("hidden_size") * 3.5) // 32 * 32)
        ),
        "time_mix_extra_dim": partial(_wide, 32), "time_decay_extra_dim": partial(_wide, 64),
        # Halving hidden states, for sums in float16, changes no result: the weights are not scaled either.
        "rescale_every_n_layers": lambda config: 0,
    },
    names={
        "rwkv.embeddings": "token_embd", "rwkv.blocks.{}.pre_ln": "token_embd_norm",
        "rwkv.ln_out": "output_norm", "head": "output",
        "rwkv.blocks.{}.ln1": "blk.{}.attn_norm", "rwkv.blocks.{}.ln2": "blk.{}.attn_norm_2",
        **_decaying("rwkv.blocks.{}.attention", _FINCH_LINEARS),
        **{
            f"rwkv.blocks.{{}}.feed_forward.{name}": f"blk.{{}}.channel_mix_{name}"
            for name in ("key", "value", "receptance")
        },
        **{
            f"rwkv.blocks.{{}}.feed_forward.time_maa_{name}": f"blk.{{}}.channel_mix_lerp_{name}.weight"
            for name in "kr"
        },
    },
    changes=_DECAYING_CHANGES,
    assumed={
        "attention_hidden_size": lambda config: config.count("hidden_size"), "head_size_divisor": 8,
        "model_version": "6_0",
    },
    defaults={"head_size": 64, "layer_norm_epsilon": 1e-5},
    harmless=(*NO_ATTENTION, "rescale_every", "num_heads"),
)  # fmt: skip


def _in_order_of_gguf(values: Values, config: Config) -> Values:
    """Reorder the low-rank parts [5, ...] of QRWKV's token shift."""
    return values[[_QWEN_MIXED.index(name) for name in _MIXED]]


def _shares(values: Values, config: Config) -> Values:
    """Return the first matrices of the token shift: [hidden, 5 * rank] to [5 * rank, hidden]."""
    turned = values.swapaxes(0, 1)
    parts = turned.reshape(len(_MIXED), -1, turned.shape[1])
    return _in_order_of_gguf(parts, config).reshape(turned.shape)


_QWEN: Final = "model.layers.{}.self_attn"
QRWKV6: Final = Family(
    hf=("RWKV6Qwen2ForCausalLM",), architecture="rwkv6qwen2",
    keys={
        **NOTHING, "wkv.head_size": lambda config: config.count("hidden_size") // config.heads,
        "feed_forward_length": "intermediate_size", "attention.head_count_kv": "num_key_value_heads",
        "attention.layer_norm_rms_epsilon": "rms_norm_eps", "token_shift_count": lambda config: 1,
        "time_mix_extra_dim": partial(_wide_enough, 32, "lora_rank_tokenshift"),
        "time_decay_extra_dim": partial(_wide_enough, 64, "lora_rank_decay"),
    },
    names=_decaying(
        _QWEN,
        {"q_proj": "receptance", "k_proj": "key", "v_proj": "value", "gate": "gate", "o_proj": "output"},
    ),
    changes={
        **_DECAYING_CHANGES, "time_mix_w1.weight": _shares,
        "time_mix_w2.weight": lambda values, config: _in_order_of_gguf(values.swapaxes(1, 2), config),
    },
    assumed={"head_dim": lambda config: config.count("hidden_size") // config.heads},
    harmless=(
        "max_position_embeddings", "rope_*", "sliding_window", "use_sliding_window", "max_window_layers",
        "attention_*",
    ),
    pre="qwen2",
)  # fmt: skip

FAMILIES: Final = (RWKV6, RWKV7, QRWKV6, _arwkv(gated=False), _arwkv(gated=True))

"""BitNet b1.58, whose weights become -1, 0 or 1 times a scale for each matrix."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from puna.convert.checkpoint import Values
from puna.convert.config import Config
from puna.convert.families.llama import KEYS, NO_BIASES
from puna.convert.family import Change, Family

#: Smallest scale, in place of 0.
_LEAST: Final = 1e-5


def ternary(values: Values, config: Config) -> Values:
    """Return the values -1, 0 or 1 times the mean magnitude that a model trained so computes with.

    Models without quantisation in their settings keep their values (arXiv:2402.17764, section 2).
    """
    if config.get("quantization_config.quant_method") != "bitnet":
        return values
    whole = values.astype(np.float32)
    scale = max(float(np.abs(whole).mean(dtype=np.float64)), _LEAST) if whole.size else 1.0
    return np.asarray(np.clip(np.rint(whole / np.float32(scale)), -1, 1) * np.float32(scale), values.dtype)


_LINEARS: Final = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
_CHANGES: Final[dict[str, Change]] = {f"{name}.weight": ternary for name in _LINEARS}
_NAMES: Final = {
    "self_attn.attn_sub_norm": "attn_sub_norm", "self_attn.inner_attn_ln": "attn_sub_norm",
    "mlp.ffn_sub_norm": "ffn_sub_norm", "mlp.ffn_layernorm": "ffn_sub_norm",
}  # fmt: skip

_BY_SQUARES: Final = Family(
    hf=("BitNetForCausalLM",), architecture="bitnet-b1.58", keys=KEYS, changes=_CHANGES, pre="llama-bpe",
    names={f"model.layers.{{}}.{theirs}": f"blk.{{}}.{ours}" for theirs, ours in _NAMES.items()},
    when=lambda config: config.get("hidden_act") == "relu2",
    assumed={
        "hidden_act": "relu2", "quantization_config.quant_method": "bitnet",
        # Weights published as whole numbers would need their scales.
        "quantization_config.quantization_mode": "online",
        "quantization_config.linear_class": "autobitlinear",
    },
    defaults={"hidden_act": "relu2", "rope_theta": 500000.0, "num_key_value_heads": 5, **NO_BIASES},
)  # fmt: skip
FAMILIES: Final = (
    _BY_SQUARES,
    replace(
        _BY_SQUARES, architecture="bitnet", when=lambda config: True,
        assumed={**_BY_SQUARES.assumed, "hidden_act": ("silu", "swish")},
    ),
)  # fmt: skip

"""EAGLE-3 heads, as their authors and vLLM's speculators publish them."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

import numpy as np

from puna.convert.checkpoint import Values
from puna.convert.config import Config
from puna.convert.families.llama import KEYS, NO_BIASES, ROPES
from puna.convert.family import Family
from puna.convert.keys import llama3_factors
from puna.errors import ConversionError, shown

#: Layers of the target whose inputs a head reads.
_READ: Final = 3
#: The layer, as the authors and as speculators call it.
_LAYER: Final = re.compile(r"^(?:midlayer|layers\.0)\.")


def _target(config: Config) -> Config:
    assert config.target is not None
    return config.target


def _target_layers(config: Config) -> list[int]:
    """Return the layers of the target whose inputs are read, by default the usual ones.

    vLLM's setting numbers these layers, and the one that SGLang and ModelOpt read the layers before them.
    """
    count = _target(config).layers
    found = config.get("eagle_aux_hidden_state_layer_ids")
    if not found and (before := config.get("eagle_config.eagle_aux_hidden_state_layer_ids")):
        found = [each + 1 for each in before]
    found = found or [2, count // 2, count - 3]
    if len(found) != _READ or not all(type(each) is int and 0 <= each <= count for each in found):
        raise ConversionError(
            f"config.json: the head reads layers {shown(found)} of the other model, which should be {_READ} "
            f"of {count}"
        )
    return list(found)


def _target_size(config: Config) -> int:
    size: int | None = config.get("target_hidden_size")
    return size or _target(config).count("hidden_size", "n_embd", "d_model")


def _named(name: str, config: Config) -> str:
    """Return the name of a Llama's tensor. Raises KeyError for norms of heads, which no file can have."""
    if name.endswith(("q_norm.weight", "k_norm.weight")):
        raise KeyError(name)
    return _LAYER.sub("model.layers.0.", name)


def _checked_fusion(values: Values, config: Config) -> Values:
    if values.shape[-1] != _READ * _target_size(config):
        raise ValueError(f"it should read {_READ} states of {_target_size(config)} values")
    return values


def _tokens(values: Values, config: Config) -> Values:
    """Return the tokens that logits stand for; checkpoints have their distances from the logits' numbers."""
    return values.reshape(-1) + np.arange(values.size, dtype=np.float64)


EAGLE3: Final = Family(
    hf=("LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM", "Eagle3Speculator", "Eagle3DraftModel"),
    architecture="eagle3",
    of_target=True,
    keys={
        **KEYS,
        "target_layers": _target_layers,
        "target_hidden_size": _target_size,
        "norm_before_residual": lambda config: bool(config.get("norm_before_residual")),
        "norm_before_fc": lambda config: bool(config.get("norm_before_fc")),
    },
    names={
        "fc": "fc", "d2t": "d2t", "t2d": None, "norm": "output_norm", "embed_tokens": "token_embd",
        "input_norm": "enc.output_norm", "model.layers.{}.hidden_norm": "blk.{}.attn_norm_2",
    },
    rename=_named,
    changes={"fc.weight": _checked_fusion, "d2t": _tokens},
    extra=llama3_factors, ropes=ROPES, pre="llama-bpe",
    defaults={"rms_norm_eps": 1e-6, **NO_BIASES},
    assumed={
        "num_hidden_layers": 1, "tie_word_embeddings": False, "eagle_config.use_aux_hidden_state": True,
        "eagle_config.use_input_layernorm_in_first_layer": True, "eagle_config.use_last_layernorm": True,
        "eagle_config.use_mtp_layernorm": False,
    },
    harmless=(
        "draft_vocab_size", "speculators_*", "embed_requires_grad", "max_window_layers", "sliding_window",
        "target_model_type", "enable_sp_ulysses",
    ),
)  # fmt: skip
#: The authors' heads, which have a Llama's name.
FIRST_EAGLE3: Final = replace(
    EAGLE3, hf=("LlamaForCausalLM",), when=lambda config: config.peek("draft_vocab_size") is not None
)
FAMILIES: Final = (EAGLE3, FIRST_EAGLE3)

"""Gemma, whose norms lack the 1 that is added to them, and whose output is its input's table.

Of Gemma 3 that may be otherwise, if config.json says so.
"""

from __future__ import annotations

from typing import Final

from puna.convert.config import Config
from puna.convert.family import Family, Key, Place
from puna.convert.names import POST_NORMS

TIED: Final[dict[str, Place]] = {"lm_head": None}
_NO_ROTATION: Final[dict[str, Key]] = {"rope.freq_base": lambda config: None}
#: A file without them means those of the first models.
_CAPS: Final[dict[str, Key]] = {
    "attn_logit_softcapping": lambda config: config.get("attn_logit_softcapping") or 0.0,
    "final_logit_softcapping": lambda config: config.get("final_logit_softcapping") or 0.0,
}
_HEADS: Final[dict[str, Key]] = {
    "attention.head_count_kv": lambda config: config.kv_heads,
    "expert_count": lambda config: None,
}
#: Every how many layers one sees everything, where a file does not say it.
_PERIOD: Final = 6


def _windowed(config: Config) -> list[bool] | None:
    """Of each layer, whether it sees a window only, unless that is as everybody assumes."""
    every = _PERIOD if config.get("sliding_window_pattern") is None else config.few("sliding_window_pattern")
    usual, own = ([(i + 1) % each != 0 for i in range(config.layers)] for each in (_PERIOD, every))
    found = config.windows() or own
    return None if every == 1 or found == usual else found


#: Of Gemma 3 and later; some settings may be left out.
GEMMA3: Final[dict[str, Key]] = {
    "context_length": lambda config: config.get("max_position_embeddings") or 131072,
    "attention.head_count": lambda config: config.get("num_attention_heads") or 8,
    "attention.head_count_kv": lambda config: config.get("num_key_value_heads") or 4,
    "attention.layer_norm_rms_epsilon": lambda config: config.get("rms_norm_eps") or 1e-6,
    "attention.key_length": lambda config: config.get("head_dim") or 256,
    "attention.value_length": lambda config: config.get("head_dim") or 256,
    "rope.freq_base": lambda config: config.rope.get("rope_theta") or 1_000_000.0,
    "final_logit_softcapping": lambda config: config.get("final_logit_softcapping"),
    "attention.sliding_window": lambda config: (
        None if config.get("sliding_window_pattern") == 1 else config["sliding_window"]
    ),
}

FAMILIES: Final = (
    Family(
        hf=("GemmaForCausalLM",), architecture="gemma", keys={**_HEADS, **_NO_ROTATION}, names=TIED,
        norm_offset=1.0, vocabulary="gemma",
    ),
    Family(
        hf=("Gemma2ForCausalLM",), architecture="gemma2",
        keys={
            **_HEADS, **_NO_ROTATION, **_CAPS,
            "attention.sliding_window": "sliding_window",
        },
        names={**TIED, **POST_NORMS}, norm_offset=1.0, vocabulary="gemma",
    ),
    Family(
        hf=("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"), architecture="gemma3",
        keys={**GEMMA3, "attention.sliding_window_pattern": _windowed},
        names=POST_NORMS, tied=True, norm_offset=1.0, vocabulary="gemma",
    ),
    Family(
        hf=("Gemma3TextModel",), architecture="gemma-embedding",
        keys={**GEMMA3, "attention.sliding_window_pattern": _windowed},
        names={**POST_NORMS, "model.2_Dense.linear": "dense_2", "model.3_Dense.linear": "dense_3"},
        tied=True, norm_offset=1.0, vocabulary="gemma", prefix="model.",
        when=lambda config: bool(config.get("use_bidirectional_attention")),
    ),
)  # fmt: skip

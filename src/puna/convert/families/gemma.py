"""Gemma, whose norms lack the 1 that is added to them, and whose output is always its input's table."""

from __future__ import annotations

from typing import Final

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
        keys=GEMMA3,
        names={**TIED, **POST_NORMS}, norm_offset=1.0, vocabulary="gemma",
    ),
)  # fmt: skip

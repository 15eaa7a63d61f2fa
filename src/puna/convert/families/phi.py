"""Phi 3 and 4."""

from __future__ import annotations

import math
from typing import Any, Final

from puna.convert.config import Config
from puna.convert.family import Family
from puna.convert.rotation import long_rope_factors


def _rotated(config: Config) -> int:
    share = config.rope.get("partial_rotary_factor", 1.0)
    return int(share * config.count("hidden_size")) // config.heads


def _attention_factor(config: Config) -> float | None:
    """By how much logits of attention grow with the context, where there are two tables of factors."""
    if not config.rope.get("long_factor"):
        return None
    original = _original(config)
    scale = config.count("max_position_embeddings") / original
    return math.sqrt(1 + math.log(scale) / math.log(original)) if scale > 1 else 1.0


def _original(config: Config) -> int:
    given: Any = config.rope.get("original_max_position_embeddings")
    return int(given or config.count("max_position_embeddings"))


PHI3: Final = Family(
    hf=("Phi3ForCausalLM",), architecture="phi3",
    keys={
        "rope.dimension_count": _rotated,
        "rope.scaling.original_context_length": _original,
        "rope.scaling.attn_factor": _attention_factor,
        "rope.scaling.type": lambda config: None,
        "attention.sliding_window": lambda config: config.get("sliding_window") or 0,
    },
    extra=long_rope_factors, vocabulary="phi3", pre="gpt-4o",
)  # fmt: skip
FAMILIES: Final = (PHI3,)

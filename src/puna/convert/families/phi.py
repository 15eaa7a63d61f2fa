"""Phi 3 and 4."""

from __future__ import annotations

from typing import Final

from puna.convert.config import Config
from puna.convert.family import PLAIN, Family
from puna.convert.keys import LONG_ROPE, long_rope_attention, long_rope_factors, original_context


def _rotated(config: Config) -> int:
    share = config.rope.get("partial_rotary_factor", 1.0)
    return int(share * config.count("hidden_size")) // config.heads


PHI3: Final = Family(
    hf=("Phi3ForCausalLM",), architecture="phi3",
    keys={
        "rope.dimension_count": _rotated,
        "rope.scaling.original_context_length": original_context,
        "rope.scaling.attn_factor": long_rope_attention,
        "rope.scaling.type": lambda config: None,
        "attention.sliding_window": lambda config: config.get("sliding_window") or 0,
    },
    extra=long_rope_factors, vocabulary="phi3", pre="gpt-4o", ropes=(*PLAIN, "longrope", "su"),
    defaults={"original_max_position_embeddings": 4096}, assumed={
        **LONG_ROPE, "full_attn_mod": 1, "interpolate_factor": 1,
        # Of two, transformers takes that outside.
        "rope_parameters.original_max_position_embeddings": lambda config: config.peek(
            "original_max_position_embeddings"
        ),
    },
)  # fmt: skip
FAMILIES: Final = (PHI3,)

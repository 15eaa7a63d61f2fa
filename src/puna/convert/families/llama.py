"""Llama, Mistral and Mixtral, and what was built like them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from puna.convert.config import Config
from puna.convert.family import Family, Key
from puna.convert.names import POST_NORMS
from puna.convert.numbers import Values
from puna.convert.rotation import llama3_factors, long_rope_attention, long_rope_factors, original_context

KEYS: Final[dict[str, Key]] = {
    "vocab_size": "vocab_size",
    "rope.dimension_count": lambda config: config.head_size,
}

#: Of MiniCPM 4.
_LONG_ROPE: Final[dict[str, Key]] = {
    "rope.scaling.original_context_length": lambda config: (
        original_context(config) if config.rope.get("long_factor") else None
    ),
    "rope.scaling.attn_factor": long_rope_attention,
}


def _factors(config: Config) -> Mapping[str, Values]:
    return {**llama3_factors(config), **long_rope_factors(config)}


LLAMA: Final = Family(
    hf=("LlamaForCausalLM", "MistralForCausalLM", "MixtralForCausalLM", "LlamaModel"),
    architecture="llama", keys={**KEYS, **_LONG_ROPE}, extra=_factors, pre="llama-bpe",
)  # fmt: skip
_SCALES: Final[dict[str, Key]] = {
    "attention.scale": "attention_multiplier",
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "logit_scale": "logits_scaling",
}
GRANITE: Final = Family(
    hf=("GraniteForCausalLM",), architecture="granite", keys={**KEYS, **_SCALES},
    extra=llama3_factors, pre="refact",
)  # fmt: skip
SMOLLM3: Final = Family(
    hf=("SmolLM3ForCausalLM",), architecture="smollm3", keys=KEYS, extra=llama3_factors, pre="llama-bpe",
)  # fmt: skip
SEED_OSS: Final = Family(
    hf=("SeedOssForCausalLM",), architecture="seed_oss", pre="seed-coder",
    names={"model.layers.{}.post_attention_layernorm": "blk.{}.post_attention_norm"},
)  # fmt: skip
EXAONE4: Final = Family(
    hf=("Exaone4ForCausalLM",), architecture="exaone4",
    keys={
        "vocab_size": "vocab_size", "attention.sliding_window": "sliding_window",
        "attention.sliding_window_pattern": lambda config: (
            config.windows() if config.get("sliding_window") else None
        ),
    },
    names=POST_NORMS, extra=llama3_factors, pre="exaone4",
)  # fmt: skip
FAMILIES: Final = (LLAMA, GRANITE, SMOLLM3, SEED_OSS, EXAONE4)

"""Llama, Mistral and Mixtral, and models built like them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from puna.convert.checkpoint import Values
from puna.convert.config import Config
from puna.convert.family import PLAIN, SCALED, Family, Key
from puna.convert.keys import (
    LONG_ROPE,
    llama3_factors,
    long_rope_attention,
    long_rope_factors,
    original_context,
)
from puna.convert.plan import POST_NORMS

KEYS: Final[dict[str, Key]] = {
    "vocab_size": "vocab_size",
    "rope.dimension_count": lambda config: config.head_size,
}

#: Sizes of the first Llama, which LLaVA's settings leave out.
_SIZES: Final = {
    "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32,
}  # fmt: skip
#: A missing setting means there are no biases.
NO_BIASES: Final = {"attention_bias": False, "mlp_bias": False}
#: Keys of MiniCPM 4's LongRoPE.
_LONG_ROPE: Final[dict[str, Key]] = {
    "rope.scaling.original_context_length": lambda config: (
        original_context(config) if config.rope.get("long_factor") else None
    ),
    "rope.scaling.attn_factor": long_rope_attention,
}


def _factors(config: Config) -> Mapping[str, Values]:
    return {**llama3_factors(config), **long_rope_factors(config)}


#: Rotation types, including Llama 3's.
ROPES: Final = (*SCALED, "llama3")


def _window(config: Config) -> int | None:
    """Return the attention window of the first Mistral; nothing reads the setting in a Llama."""
    window: int | None = config.get("sliding_window")
    return window if config.get("model_type") in ("mistral", "mixtral") else None


def _is_whole(config: Config) -> bool:
    """Whether it is a Llama, and not the head of another model, which may have the same name."""
    return config.peek("draft_vocab_size") is None


LLAMA: Final = Family(
    hf=("LlamaForCausalLM",),
    architecture="llama",
    when=_is_whole,
    keys={**KEYS, **_LONG_ROPE, "attention.sliding_window": _window},
    extra=_factors, pre="llama-bpe", ropes=(*ROPES, "longrope", "su"), assumed=LONG_ROPE,
    defaults={**_SIZES, "rms_norm_eps": 1e-6, **NO_BIASES},
)  # fmt: skip
MISTRAL: Final = replace(
    LLAMA, hf=("MistralForCausalLM",),
    defaults={
        **LLAMA.defaults, "intermediate_size": 14336, "num_key_value_heads": 8, "sliding_window": 4096,
    },
)  # fmt: skip
LLAMA_BODY: Final = replace(LLAMA, hf=("LlamaModel",), prefix="model.")
MIXTRAL: Final = replace(
    LLAMA, hf=("MixtralForCausalLM",), defaults={"rms_norm_eps": 1e-5, "rope_theta": 1e6, **NO_BIASES}
)
SCALES: Final[dict[str, Key]] = {
    "attention.scale": "attention_multiplier",
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "logit_scale": "logits_scaling",
}
#: Defaults of transformers for Granite.
SCALE_DEFAULTS: Final = {"attention_multiplier": 1.0, "rms_norm_eps": 1e-6, **NO_BIASES}


def _rotated(config: Config) -> list[int]:
    """Return, for each layer of a SmolLM 3, whether it rotates, as readers assume it."""
    return [int((layer + 1) % 4 > 0) for layer in range(config.layers)]


GRANITE: Final = Family(
    hf=("GraniteForCausalLM",), architecture="granite", keys={**KEYS, **SCALES},
    extra=llama3_factors, pre="refact", ropes=ROPES, defaults=SCALE_DEFAULTS,
)  # fmt: skip
GRANITE_SPEECH: Final = replace(
    GRANITE, hf=("GraniteSpeechForConditionalGeneration",), dropped=("encoder.", "model.encoder."),
    task="audio", when=lambda config: config.get("model_type") == "granite",
)  # fmt: skip
SMOLLM3: Final = Family(
    hf=("SmolLM3ForCausalLM",), architecture="smollm3", keys=KEYS, extra=llama3_factors, pre="llama-bpe",
    tied=True, ropes=ROPES, defaults={"no_rope_layer_interval": 4, "rope_theta": 2e6, **NO_BIASES},
    assumed={
        "no_rope_layers": _rotated,
        "no_rope_layer_interval": lambda config: (
            4 if config.peek("no_rope_layers") is None else config.peek("no_rope_layer_interval")
        ),
    },
    harmless=("sliding_window", "max_window_layers"),
)  # fmt: skip
SEED_OSS: Final = Family(
    hf=("SeedOssForCausalLM",), architecture="seed_oss", pre="seed-coder",
    names={"model.layers.{}.post_attention_layernorm": "blk.{}.post_attention_norm"},
    defaults={"rope_theta": 10000.0},
)  # fmt: skip


def _exaone_windows(config: Config) -> list[bool]:
    """Return, for each layer, whether it is windowed; without layer types, all but every n-th."""
    every = config.peek("sliding_window_pattern")
    every = len(every) if isinstance(every, str) else 4 if every is None else every
    windows = config.windows()
    return [(layer + 1) % every > 0 for layer in range(config.layers)] if windows is None else windows


def _exaone_kinds(config: Config) -> Any:
    """Return the required layer types; with a window, full attention in all would leave none that rotates."""
    given = config.get("layer_types")
    if not config.get("sliding_window") or any(_exaone_windows(config)):
        return given
    return ["sliding_attention" if (layer + 1) % 4 else "full_attention" for layer in range(config.layers)]


def _exaone_pattern(config: Config) -> Any:
    """Return the required period of full-attention layers; not all can be, for the same reason."""
    unused = not config.get("sliding_window") or any(_exaone_windows(config))
    return config.peek("sliding_window_pattern") if unused else 4


EXAONE4: Final = Family(
    hf=("Exaone4ForCausalLM",), architecture="exaone4",
    keys={
        "vocab_size": "vocab_size", "attention.sliding_window": "sliding_window",
        "attention.sliding_window_pattern": lambda config: (
            _exaone_windows(config) if config.get("sliding_window") else None
        ),
    },
    names=POST_NORMS, extra=llama3_factors, pre="exaone4", ropes=ROPES,
    defaults={"rope_theta": 10000.0, "sliding_window": 4096},
    assumed={"layer_types": _exaone_kinds, "sliding_window_pattern": _exaone_pattern},
)  # fmt: skip
ARCEE: Final = Family(
    hf=("ArceeForCausalLM",), architecture="arcee", keys=KEYS, extra=llama3_factors, pre="llama-bpe",
    ropes=ROPES, assumed={"hidden_act": "relu2"}, defaults={"rope_theta": 10000.0, **NO_BIASES},
)  # fmt: skip


def _of_layers(parameter: str) -> Key:
    return lambda config: config.of_layers(parameter)


#: Parameters of an activation, which checkpoints have as tensors and files as metadata.
_XIELU: Final = ("alpha_p", "alpha_n", "beta", "eps")
APERTUS: Final = Family(
    hf=("ApertusForCausalLM",), architecture="apertus",
    keys={
        **KEYS,
        **{f"xielu.{name}": _of_layers(f"mlp.act_fn.{name}") for name in _XIELU},
    },
    names={
        "model.layers.{}.attention_layernorm": "blk.{}.attn_norm",
        "model.layers.{}.feedforward_layernorm": "blk.{}.ffn_norm",
        **{f"model.layers.{{}}.mlp.act_fn.{name}": None for name in _XIELU},
    },
    extra=llama3_factors, pre="tekken", ropes=ROPES, assumed={"hidden_act": "xielu"},
    defaults={
        "rope_theta": 12e6, "attention_bias": False, "rope_parameters": {
            "rope_type": "llama3", "rope_theta": 12e6, "factor": 8.0,
            "original_max_position_embeddings": 8192, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        },
    },
)  # fmt: skip
_LLAMAS: Final = (
    LLAMA,
    LLAMA_BODY,
    MISTRAL,
    MIXTRAL,
    GRANITE,
    GRANITE_SPEECH,
    SMOLLM3,
    SEED_OSS,
    EXAONE4,
    ARCEE,
    APERTUS,
)


def _rotated_dims(config: Config) -> int:
    share = config.rope.get("partial_rotary_factor", 1.0)
    return int(share * config.count("hidden_size")) // config.heads


PHI3: Final = Family(
    hf=("Phi3ForCausalLM",), architecture="phi3",
    keys={
        "rope.dimension_count": _rotated_dims,
        "rope.scaling.original_context_length": original_context,
        "rope.scaling.attn_factor": long_rope_attention,
        "rope.scaling.type": lambda config: None,
        "attention.sliding_window": lambda config: config.get("sliding_window", otherwise=0),
    },
    extra=long_rope_factors, vocabulary="phi3", pre="gpt-4o", ropes=(*PLAIN, "longrope", "su"),
    defaults={"original_max_position_embeddings": 4096}, assumed={
        **LONG_ROPE, "full_attn_mod": 1, "interpolate_factor": 1,
        # If given twice, transformers uses the outer one.
        "rope_parameters.original_max_position_embeddings": lambda config: config.peek(
            "original_max_position_embeddings"
        ),
    },
)  # fmt: skip
FAMILIES: Final = (
    *_LLAMAS,
    PHI3,
)

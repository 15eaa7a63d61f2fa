"""Conversion of settings to metadata: most architectures' keys, rotation, and sentence-transformers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from puna.convert.assumptions import one_of
from puna.convert.checkpoint import Checkpoint, Values
from puna.convert.config import Config
from puna.convert.family import Assumption, Family, Key
from puna.errors import ConversionError, shown


def llama3_factors(
    config: Config, rotated: int | None = None, base: float | None = None
) -> Mapping[str, Values]:
    """Return Llama 3.1's frequency divisors: the factor for slow ones, 1 for fast ones, blended between.

    `rotated` values of each head rotate, by default all, with frequencies of `base`, by default the
    rotation's.
    """
    rope = config.rope
    if str(rope.get("rope_type", "")).lower() != "llama3":
        return {}
    size = rotated or config.head_size
    base = base or float(rope.get("rope_theta", 10000.0))
    wavelengths = 2 * np.pi * base ** (np.arange(0, size, 2) / size)
    factor, context = (
        float(rope.get("factor", 8.0)),
        float(rope.get("original_max_position_embeddings", 8192)),
    )
    low, high = float(rope.get("low_freq_factor", 1.0)), float(rope.get("high_freq_factor", 4.0))
    with np.errstate(divide="ignore", invalid="ignore"):  # nothing lies between if the two are equal
        share = (context / wavelengths - low) / (high - low)
        between = 1 / ((1 - share) / factor + share)
    factors = np.select(
        [wavelengths < context / high, wavelengths > context / low], [np.ones_like(share), factor], between
    )
    return {"rope_freqs.weight": factors.astype(np.float32)}


def long_rope_factors(config: Config) -> Mapping[str, Values]:
    """Return LongRoPE's two tables of factors: up to the original context, and beyond it."""
    rope = config.rope
    return {
        f"rope_factors_{name}.weight": np.array(rope[f"{name}_factor"], np.float32)
        for name in ("long", "short")
        if rope.get("long_factor") and rope.get("short_factor")
    }


def long_rope_attention(config: Config) -> float | None:
    """Return the factor of cosines and sines; None without two tables of frequency factors."""
    if not config.rope.get("long_factor"):
        return None
    if (own := config.rope.get("attention_factor")) is not None:
        return float(own)
    original = original_context(config)
    scale = config.count("max_position_embeddings") / original
    return math.sqrt(1 + math.log(scale) / math.log(original)) if scale > 1 else 1.0


#: LongRoPE's factor, which follows from the two context lengths.
LONG_ROPE: Final[Mapping[str, Assumption]] = {
    "rope_parameters.factor": lambda config: (
        config.count("max_position_embeddings") / original_context(config)
        if "long_factor" in config.rope
        else config.rope.get("factor")
    ),
}


def original_context(config: Config) -> int:
    """Return the context length before it was extended."""
    given: Any = config.rope.get("original_max_position_embeddings")
    return int(given or config.count("max_position_embeddings"))


#: Pooling types by GGUF number.
_POOLINGS: Final = {
    "pooling_mode_mean_tokens": 1, "pooling_mode_cls_token": 2, "pooling_mode_lasttoken": 3,
}  # fmt: skip
_NAMES: Final = {"mean": 1, "cls": 2, "lasttoken": 3}


def module_metadata(checkpoint: Checkpoint) -> dict[str, int]:
    """Return `pooling_type` and the sizes of linear layers for the modules that the folder lists.

    Raises ConversionError for another pooling, and for a linear layer with an activation.
    """
    found: dict[str, int] = {}
    for kind, path in checkpoint.modules:
        settings = checkpoint.json(f"{path}/config.json")
        if kind == "Pooling":
            found.setdefault("pooling_type", _pooling(path, settings))
        if kind == "Dense":
            activation = str(settings.get("activation_function") or "Identity")
            if not activation.endswith("Identity"):
                raise ConversionError(
                    f"{path}/config.json: a linear layer with activation {shown(activation)} is not supported"
                )
            rows, columns = checkpoint.shape(f"{path}.linear.weight")
            number = path.partition("_")[0]
            found |= {f"dense_{number}_feat_in": columns, f"dense_{number}_feat_out": rows}
    return found


def _pooling(path: str, settings: dict[str, Any]) -> int:
    found = next((number for key, number in _POOLINGS.items() if settings.get(key)), None)
    found = found or _NAMES.get(str(settings.get("pooling_mode")))
    if found is None:
        raise ConversionError(f"{path}/config.json: only mean, cls and lasttoken pooling are supported")
    return found


_GATING: Final = {"softmax": 1, "sigmoid": 2, "sqrtsoftplus": 4}

_USUAL: Final[dict[str, Key]] = {
    "block_count": lambda config: config.layers + config.heads_ahead,
    "nextn_predict_layers": lambda config: config.heads_ahead or None,
    "context_length": (
        "max_position_embeddings", "n_ctx", "n_positions", "max_length", "max_sequence_length",
        "model_max_length",
    ),
    "embedding_length": ("hidden_size", "n_embd", "d_model"),
    "feed_forward_length": ("dense_intermediate_size", "intermediate_size", "n_inner"),
    "attention.head_count": ("num_attention_heads", "n_head"),
    "attention.head_count_kv": ("num_key_value_heads",),
    "attention.key_length": "head_dim",
    "attention.value_length": "head_dim",
    "attention.layer_norm_rms_epsilon": ("rms_norm_eps", "norm_eps"),
    "attention.layer_norm_epsilon": ("layer_norm_eps", "layer_norm_epsilon", "norm_epsilon"),
    "expert_count": ("num_local_experts", "num_experts", "n_routed_experts"),
    "expert_used_count": ("num_experts_per_tok", "num_experts_per_token", "top_k_experts"),
    "expert_group_count": "n_group",
    "expert_group_used_count": "topk_group",
    "expert_gating_func": lambda config: _gating(config),
    "attention.causal": lambda config: False if config.get("is_causal") is False else None,
    "rope.freq_base": lambda config: _float(config.rope.get("rope_theta")),
    "rope.freq_base_swa": lambda config: _float(config.local_rope_theta),
}  # fmt: skip

_OF_VISION: Final[dict[str, Key]] = {
    "has_vision_encoder": lambda config: True,
    "vision.projection_dim": lambda config: config.text.count("hidden_size", "n_embd"),
    "vision.image_size": lambda config: _first(config["image_size"]),
    "vision.patch_size": lambda config: _first(config["patch_size"]),
    "vision.embedding_length": ("hidden_size", "width", "embed_dim"),
    "vision.feed_forward_length": "intermediate_size",
    "vision.block_count": ("num_hidden_layers", "depth", "num_layers", "layers"),
    "vision.attention.head_count": ("num_attention_heads", "num_heads", "heads"),
    "vision.image_mean": lambda config: _normalised(config, "image_mean", 0.0),
    "vision.image_std": lambda config: _normalised(config, "image_std", 1.0),
}

_OF_AUDIO: Final[dict[str, Key]] = {
    "has_audio_encoder": lambda config: True,
    "audio.projection_dim": lambda config: config.text.count("hidden_size"),
    "audio.embedding_length": ("hidden_size", "d_model"),
    "audio.feed_forward_length": ("intermediate_size", "encoder_ffn_dim"),
    "audio.block_count": ("num_hidden_layers", "encoder_layers"),
    "audio.attention.head_count": ("num_attention_heads", "encoder_attention_heads"),
    "audio.attention.layer_norm_epsilon": lambda config: 1e-5,
    "audio.num_mel_bins": "num_mel_bins",
}

#: Prefixes of keys that every reader needs.
_NEEDED: Final = (
    "embedding_length", "attention.relative_buckets_count", "attention.cross_attention_layers", "ssm.",
    "shortconv.",
)  # fmt: skip

#: Keys that GGUF stores as floats even where config.json has an integer such as 10000.
_FLOATS: Final = (
    "epsilon",
    "freq_base",
    "freq_base_swa",
    "scaling.factor",
    "scale",
    "softcapping",
    "beta_fast",
    "beta_slow",
)

#: Keys with a value per layer or per axis.
_LISTS: Final = (
    "sections", "pattern", "head_count_kv", "feed_forward_length", "head_count", "multiplier",
    "sparsity_scale", "image_mean", "image_std", "deepstack_layers", "pinpoints", "layer_indexes",
    "attention_layers", "layers_indices", "recurrent_layers", "feature_layer",
    "swiglu_clamp_exp", "swiglu_clamp_shexp", "compress_ratios",
    "ple.layers", "ple.layer_multipliers", "ple.head_offsets", "ple.head_vocab_sizes",
    "indexer.types", "alignment_heads", "target_layers",
    "xielu.alpha_p", "xielu.alpha_n", "xielu.beta", "xielu.eps",
)  # fmt: skip


def metadata(config: Config, family: Family) -> dict[str, Any]:
    """Return the architecture's keys without its name; keys whose value is None are left out."""
    keys = {**_USUAL, **family.keys}
    found = {key: _value(config, given) for key, given in keys.items()}
    for key, given in keys.items():
        if found[key] is None and key.startswith(_NEEDED) and isinstance(given, str | tuple):
            raise ConversionError(f"config.json lacks '{given if isinstance(given, str) else given[0]}'")
    found = {
        **rope_scaling(config, family),
        **{key: value for key, value in found.items() if value is not None},
    }
    _check_rotated(found, config)
    return checked(found)


def _check_rotated(found: Mapping[str, Any], config: Config) -> None:
    """Raise ConversionError unless an even number of a head's values rotate and the axes share all pairs."""
    if (rotated := found.get("rope.dimension_count")) is not None and rotated % 2:
        raise ConversionError(
            f"config.json: {rotated} values of a head rotate, which is not an even number: "
            "'partial_rotary_factor' or 'head_dim' is missing or wrong"
        )
    if (sections := found.get("rope.dimension_sections")) is None:
        return
    size = found.get("rope.dimension_count") or found.get("attention.key_length") or config.head_size
    if sum(sections) != size // 2:
        raise ConversionError(
            f"config.json: 'mrope_section' divides {sum(sections)} pairs, but {size // 2} of a head rotate"
        )


def tower_metadata(config: Config, family: Family) -> dict[str, Any]:
    """Return the keys of a tower, without the prefix `clip`."""
    usual = _OF_AUDIO if family.sense == "audio" else _OF_VISION
    return checked({key: _value(config, given) for key, given in {**usual, **family.keys}.items()})


def plain_metadata(config: Config, family: Family) -> dict[str, Any]:
    """Return only the family's own keys, with their full names."""
    found = {key: _value(config, given) for key, given in family.keys.items()}
    return {key: value for key, value in found.items() if value is not None}


def checked(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys with values, as floats where required. Raises ConversionError for wrong types."""
    for key, value in found.items():
        _check(key, value)
    return {
        key: float(value) if key.endswith(_FLOATS) and type(value) is int else value
        for key, value in found.items()
        if value is not None
    }


def _check(key: str, value: Any) -> None:
    """Raise ConversionError for a string or list where a number is required."""
    texts = isinstance(value, str) and key.endswith((".type", "_type", "activation", "chat_template.rerank"))
    if key.endswith("output_labels") and isinstance(value, list) and all(isinstance(x, str) for x in value):
        return
    lists = isinstance(value, list) and key.endswith(_LISTS)
    numbers = value if lists else [value]
    if not texts and not all(number is None or isinstance(number, (int, float)) for number in numbers):
        raise ConversionError(f"config.json: '{key}' would be {shown(value)}, which is not a number")


def rope_scaling(config: Config, family: Family) -> dict[str, Any]:
    """Return the scaling of rotation for contexts beyond the training length. Raises ConversionError."""
    rope = config.rope
    kind = str(rope.get("rope_type") or "default").lower()
    # Readers that know this key derive the magnitude from it; llama.cpp multiplies by the factor as well.
    by_multiplier = "rope.scaling.yarn_log_multiplier" in family.keys
    sections = rope.get("mrope_section")
    found: dict[str, Any] = {}
    if isinstance(sections, list):
        found["rope.dimension_sections"] = [*sections, 0, 0, 0, 0][:4]
    if kind not in family.ropes:
        raise ConversionError(
            f"config.json: 'rope_type' is {shown(kind)}; a file of architecture {family.architecture} can "
            f"only have {one_of(family.ropes)}"
        )
    match kind:
        case "linear":
            found |= {"rope.scaling.type": "linear", "rope.scaling.factor": _scaling_factor(config)}
        case "yarn":
            found |= {
                "rope.scaling.type": "yarn",
                "rope.scaling.factor": _scaling_factor(config),
                "rope.scaling.original_context_length": rope.get("original_max_position_embeddings"),
                "rope.scaling.yarn_ext_factor": _float(rope.get("extrapolation_factor")),
                "rope.scaling.attn_factor": None if by_multiplier else _attention_factor(config),
                "rope.scaling.yarn_beta_fast": _float(rope.get("beta_fast")),
                "rope.scaling.yarn_beta_slow": _float(rope.get("beta_slow")),
            }
        case "su" | "longrope":
            found["rope.scaling.type"] = "longrope"
        case "dynamic":
            rope.get("factor")  # has no effect within the training context
    return found


def _scaling_factor(config: Config) -> float:
    factor = _float(config.rope.get("factor"))
    if factor is None:
        raise ConversionError("config.json: the rotation lacks 'factor', by which it is scaled")
    return factor


def layer_limits(name: str) -> Callable[[Config], list[float] | None]:
    """Return the function that reads the limit of each layer's activations from the list `name`; 0 is none.

    The list may be longer or shorter than the layers with the heads that follow them.
    """

    def limits(config: Config) -> list[float] | None:
        given, count = config.get(name), config.layers + config.heads_ahead
        return ([float(limit or 0) for limit in given] + [0.0] * count)[:count] if given else None

    return limits


def same_limit(name: str) -> Callable[[Config], list[float]]:
    """Return the function that reads the one limit of all layers' activations, which must be above 0."""

    def limits(config: Config) -> list[float]:
        most = config[name]
        if not isinstance(most, int | float) or not most > 0:
            raise ConversionError(f"config.json: '{name}' is {shown(most)}, but should be above 0")
        return [float(most)] * (config.layers + config.heads_ahead)

    return limits


def yarn_magnitude(factor: float, scale: float = 1.0) -> float:
    """Return YaRN's factor of cosines and sines (transformers' `get_mscale`)."""
    return 1.0 + 0.1 * scale * math.log(factor) if factor > 1 else 1.0


def _attention_factor(config: Config) -> float | None:
    """Return the factor readers apply on top of the magnitude derived from YaRN's factor; None if it is 1."""
    rope = config.rope
    factor = _float(rope.get("factor")) or 1.0
    own = _float(rope.get("attention_factor", rope.get("attn_factor")))
    scale, of_all = _float(rope.get("mscale")), _float(rope.get("mscale_all_dim"))
    if own is None and scale and of_all:
        own = yarn_magnitude(factor, scale) / yarn_magnitude(factor, of_all)
    if own is None:
        return None
    found = own / yarn_magnitude(factor)
    return None if math.isclose(found, 1.0, rel_tol=1e-6) else found


def _gating(config: Config) -> int | None:
    name = config.get("score_function", "scoring_func", "score_func", "moe_router_activation_func")
    if name is None:
        return None
    if name not in _GATING:
        raise ConversionError(f"config.json: experts chosen by {shown(name)} are not supported")
    return _GATING[name]


def _value(config: Config, given: Key) -> Any:
    if isinstance(given, str):
        return config.get(given)
    return config.get(*given) if isinstance(given, tuple) else given(config)


def _normalised(config: Config, name: str, otherwise: float) -> Any:
    """Return the mean or deviation that pixels are normalised by, or `otherwise` if they are not."""
    return config.image_setting(name) if config.image_setting("do_normalize", True) else [otherwise] * 3


def _first(value: Any) -> Any:
    """Return the first of height and width, which are equal."""
    return value[0] if isinstance(value, list) and value else value


def _float(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None

"""Gemma, whose norms lack the 1 that is added to them, and whose output is its input's table.

Of Gemma 3 that may be otherwise, if config.json says so.
"""

from __future__ import annotations

from typing import Any, Final

from puna.convert.config import Config
from puna.convert.family import Assumption, Family, Key
from puna.convert.plan import POST_NORMS
from puna.errors import ConversionError, shown

_THETA: Final = 10000.0
#: Files of the first models do not say it.
_ROTATION: Final[dict[str, Key]] = {
    "rope.freq_base": lambda config: (
        None if (theta := config.rope.get("rope_theta")) in (None, _THETA) else float(theta)
    )
}
_TANH: Final = "gelu_pytorch_tanh"
#: What all have in common.
ASSUMED: Final[dict[str, Assumption]] = {
    "hidden_act": lambda config: (
        config.peek("hidden_act") if config.peek("hidden_activation") else _TANH  # which comes first
    ),
    "hidden_activation": _TANH,
    "use_bidirectional_attention": False,
}
#: Where kinds of layers have rotations of their own, transformers does not read the old name of `rope_type`.
OLD_ROTATION: Final[dict[str, Assumption]] = {
    "rope_scaling.type": lambda config: config.peek("rope_scaling.rope_type") or "default",
}
#: Layers of the largest Gemma 2 and 3, whose queries readers divide otherwise.
_LARGEST: Final = {"gemma2": 46, "gemma3": 62}


def _divisor(architecture: str) -> Assumption:
    """What readers divide queries by before its root is taken, for which files have no key."""

    def divisor(config: Config) -> int:
        by_heads = config.layers == _LARGEST[architecture]
        return config.count("hidden_size") // config.heads if by_heads else config.head_size

    return divisor


def every_second_windowed(config: Config) -> list[str]:
    """What each layer sees, as readers of Gemma 2 and gpt-oss assume it."""
    return ["full_attention" if layer % 2 else "sliding_attention" for layer in range(config.layers)]


#: Layers of Gemma 3 as Google published it: readers slow rotation down by 8 in some of these, whatever the
#: file says, and take no cap in the smallest.
_SLOWED, _SMALLEST = (34, 48, 62), 26


def _base(config: Config) -> float:
    """The base of the rotation of a Gemma 3. Raises ConversionError where readers would slow it otherwise."""
    rope = config.rope
    kind, factor = rope.get("rope_type"), rope.get("factor")
    if config.layers in _SLOWED and kind != "yarn" and (kind, factor) != ("linear", 8):
        raise ConversionError(
            f"config.json: rotation of a Gemma 3 of {config.layers} layers is {shown(kind)} by {factor}; "
            "a file can only have 'linear' by 8"
        )
    return float(rope.get("rope_theta") or 1_000_000.0)


def _cap(config: Config) -> Any:
    """Return the cap of predictions, which transformers leaves out of models with a vision tower."""
    within = config.own is not config.whole
    return () if within or config.layers == _SMALLEST else config.get("final_logit_softcapping")


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

_DEFAULTS: Final = {"query_pre_attn_scalar": 256, "head_dim": 256}
FAMILIES: Final = (
    Family(
        hf=("GemmaForCausalLM",), architecture="gemma", keys={**_HEADS, **_ROTATION}, tied=True,
        norm_offset=1.0, vocabulary="gemma",
        assumed={**ASSUMED, "hidden_act": (_TANH, "gelu")},  # it means the same by both names
    ),
    Family(
        hf=("Gemma2ForCausalLM",), architecture="gemma2",
        keys={
            **_HEADS, **_ROTATION, **_CAPS,
            "attention.sliding_window": "sliding_window",
        },
        names=POST_NORMS, tied=True, norm_offset=1.0, vocabulary="gemma",
        defaults={
            "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "query_pre_attn_scalar": 256,
            "head_dim": 256, "sliding_window": 4096,
        },
        assumed={
            **ASSUMED, "query_pre_attn_scalar": _divisor("gemma2"),
            "sliding_window_size": lambda config: config["sliding_window"],
            "layer_types": every_second_windowed,
        },
    ),
    Family(
        hf=("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"), architecture="gemma3",
        keys={**GEMMA3, "attention.sliding_window_pattern": _windowed, "rope.freq_base": _base},
        names=POST_NORMS, tied=True, norm_offset=1.0, vocabulary="gemma", defaults=_DEFAULTS,
        assumed={
            **ASSUMED, **OLD_ROTATION, "query_pre_attn_scalar": _divisor("gemma3"),
            "attn_logit_softcapping": (),
            "final_logit_softcapping": _cap,
        },
    ),
    Family(
        hf=("Gemma3TextModel",), architecture="gemma-embedding",
        keys={**GEMMA3, "attention.sliding_window_pattern": _windowed, "rope.freq_base": _base},
        names={**POST_NORMS, "model.2_Dense.linear": "dense_2", "model.3_Dense.linear": "dense_3"},
        tied=True, norm_offset=1.0, vocabulary="gemma", prefix="model.",
        when=lambda config: bool(config.get("use_bidirectional_attention")), defaults=_DEFAULTS,
        assumed={
            **ASSUMED, **OLD_ROTATION, "query_pre_attn_scalar": _divisor("gemma3"),
            "attn_logit_softcapping": (),
            "final_logit_softcapping": _cap,
            "use_bidirectional_attention": True,
        },
    ),
)  # fmt: skip

"""The text models of MiniCPM-V before 4.6 and of MiniCPM-o: other families' models, by version."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from puna.convert.config import Config
from puna.convert.families.llama import LLAMA
from puna.convert.families.qwen import WINDOWS
from puna.convert.family import Family, Key

#: Hidden size of MiniCPM-V 2.0, whose settings give no version either.
_FIRST_SIZE: Final = 2304


def version(config: Config) -> str:
    """Return the version, which config.json has since 2.6."""
    given = config.whole.get("version")
    if given is not None:
        return str(given)
    return "2.0" if config.whole.get("hidden_size") == _FIRST_SIZE else "2.5"


def _is_version(*versions: str) -> Callable[[Config], bool]:
    return lambda config: version(config) in versions


def _is_llama(config: Config) -> bool:
    """Whether the text model is a plain Llama, unlike a MiniCPM 4 that scales residual branches."""
    return _is_version("2.5", "4.0", "4")(config) and config.get("scale_emb") in (None, 1)


def _text_model_name(name: str, config: Config) -> str:
    return name.removeprefix("llm.")


_COMMON: Final[dict[str, Any]] = {
    "rename": _text_model_name, "dropped": ("vpm.", "resampler.", "apm.", "audio_projection_layer.", "tts."),
}  # fmt: skip
#: Vision and audio settings, which are mixed with those of the text model.
_VISION: Final = (
    "slice_config", "slice_mode", "query_num", "patch_size", "use_image_id", "drop_vision_last_layer",
    "batch_*", "insert_layer_id", "stream_input", "init_*", "rope_scaling.short_mscale",
    "rope_scaling.long_mscale", "scale_depth", "dim_model_base", "mup_denominator",
)  # fmt: skip
_BOTH: Final = ("MiniCPMV", "MiniCPMO")

_SCALES: Final[dict[str, Key]] = {
    "embedding_scale": lambda config: float(config["scale_emb"]),
    "residual_scale": lambda config: config["scale_depth"] / math.sqrt(config.layers),
    "logit_scale": lambda config: config.count("hidden_size") / config["dim_model_base"],
}

FAMILIES: Final = (
    replace(
        LLAMA,
        hf=("MiniCPMForCausalLM",),
        architecture="minicpm",
        keys={**LLAMA.keys, **_SCALES},
        tied=True,
        defaults={
            "scale_emb": 1,
            "scale_depth": 1,
            "dim_model_base": 1,
            "rms_norm_eps": 1e-6,
            "rope_theta": 10000.0,
        },
        harmless=("mup_denominator", "rope_scaling.short_mscale", "rope_scaling.long_mscale"),
    ),
    replace(
        LLAMA,
        hf=("MiniCPMV",),
        when=_is_llama,
        **_COMMON,
        harmless=_VISION,
        assumed={
            **LLAMA.assumed,
            "scale_emb": 1,
        },
    ),
    Family(
        hf=_BOTH,
        architecture="qwen2",
        pre="qwen2",
        when=_is_version("2.6"),
        **_COMMON,
        harmless=(*_VISION, *WINDOWS),
    ),
    Family(
        hf=_BOTH,
        architecture="qwen3",
        pre="qwen2",
        when=_is_version("4.5"),
        **_COMMON,
        harmless=(*_VISION, *WINDOWS),
    ),
)

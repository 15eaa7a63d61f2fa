"""Which family a model belongs to."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from typing import Any, Final

from puna.convert.config import Config
from puna.convert.family import Family
from puna.errors import ConversionError, shown

_MODULES: Final = (
    "bert", "convolutional", "delta", "gemma", "gemma4", "hybrids", "kimi", "latent", "llama", "mamba",
    "mimo", "others", "phi", "qwen", "rwkv",
)  # fmt: skip


def family_of(config: Mapping[str, Any]) -> Family:
    """The family that `architectures` of config.json names. Raises ConversionError."""
    names = config.get("architectures")
    name = names[0] if isinstance(names, list) and names else None
    if not isinstance(name, str):
        raise ConversionError("unknown architecture: config.json does not say under 'architectures'")
    families = _families()
    if name not in families:
        near = get_close_matches(name[:100], families, n=1)
        nearest = f"; the nearest is {near[0]}" if near else ""
        raise ConversionError(
            f"unsupported architecture {shown(name)}: it cannot be converted{nearest}; if llama.cpp's "
            "convert_hf_to_gguf.py can convert it, or somebody has published a GGUF file of it, use that"
        )
    settings = Config(config)
    for family in families[name]:
        if family.when(settings):
            return family
    raise ConversionError(f"{name}: no kind of it that can be converted has such settings")


def convertible() -> list[str]:
    """All architectures, as config.json names them, sorted."""
    return sorted(_families())


@cache
def _families() -> dict[str, list[Family]]:
    found: dict[str, list[Family]] = {}
    for module in _MODULES:
        for family in importlib.import_module(f"puna.convert.families.{module}").FAMILIES:
            for name in family.hf:
                found.setdefault(name, []).append(family)
    return found

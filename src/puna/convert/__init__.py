"""Conversion of published models (a folder of safetensors, settings and a tokenizer) to GGUF files."""

from puna.convert.cache import Converted, converted, converted_whisper_cpp
from puna.convert.convert import (
    check_convertible,
    convert,
    convert_adapters,
    convert_tower,
    has_tower_alone,
)
from puna.convert.registry import convertible, convertible_towers, family_of

__all__ = [
    "Converted",
    "check_convertible",
    "convert",
    "convert_adapters",
    "convert_tower",
    "converted",
    "converted_whisper_cpp",
    "convertible",
    "convertible_towers",
    "family_of",
    "has_tower_alone",
]

"""Makes GGUF files of models as they are published: a folder of safetensors, settings and a tokenizer."""

from puna.convert.cache import Converted, converted
from puna.convert.convert import check_convertible, convert, convert_adapters, convert_tower
from puna.convert.registry import convertible, convertible_towers, family_of

__all__ = [
    "Converted",
    "check_convertible",
    "convert",
    "convert_adapters",
    "convert_tower",
    "converted",
    "convertible",
    "convertible_towers",
    "family_of",
]

"""Makes GGUF files of models as they are published: a folder of safetensors, settings and a tokenizer."""

from puna.convert.convert import convert
from puna.convert.registry import convertible, family_of

__all__ = ["convert", "convertible", "family_of"]

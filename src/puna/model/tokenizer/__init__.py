"""Tokenizers: text to token ids and back, with the vocabulary of a GGUF file."""

from puna.model.tokenizer.load import tokenizer_from_gguf
from puna.model.tokenizer.tokenizer import Tokenizer

__all__ = ["Tokenizer", "tokenizer_from_gguf"]

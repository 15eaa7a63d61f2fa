"""Text to token ids and back, from the vocabulary a GGUF file carries."""

from puna.model.tokenizer.load import tokenizer_from_gguf
from puna.model.tokenizer.tokenizer import Tokenizer

__all__ = ["Tokenizer", "tokenizer_from_gguf"]

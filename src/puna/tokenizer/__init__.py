"""Tokenizers: text to token ids and back, with the vocabulary of a GGUF file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from puna.tokenizer.tokenizer import Tokenizer

if TYPE_CHECKING:
    from puna.tokenizer.load import tokenizer_from_gguf

__all__ = ["Tokenizer", "tokenizer_from_gguf"]


def __getattr__(name: str) -> Any:
    # The server only looks up special tokens, so it should not wait for the tokenizer libraries to load.
    if name == "tokenizer_from_gguf":
        from puna.tokenizer.load import tokenizer_from_gguf

        return tokenizer_from_gguf
    raise AttributeError(f"module 'puna.tokenizer' has no attribute '{name}'")

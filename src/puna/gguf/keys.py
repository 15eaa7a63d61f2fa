"""Namespaces of metadata keys."""

from __future__ import annotations

_COMMON = frozenset(("general", "tokenizer", "adapter", "split", "quantize"))


def is_common(key: str) -> bool:
    """Whether `key` is in a namespace shared by all architectures."""
    return key.partition(".")[0] in _COMMON


def full_key(key: str, architecture: str) -> str:
    """The key as written in a file: `block_count` becomes `llama.block_count`.

    Common keys (`general.`, `tokenizer.`, ...) and keys that start with the architecture are unchanged.
    """
    return key if is_common(key) or key.startswith(architecture + ".") else f"{architecture}.{key}"

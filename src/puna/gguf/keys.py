"""Names of metadata keys."""

from __future__ import annotations

_COMMON = frozenset(("general", "tokenizer", "adapter", "split", "quantize"))


def is_common(key: str) -> bool:
    """Whether `key` is in a namespace that means the same in all models."""
    return key.partition(".")[0] in _COMMON


def full_key(key: str, architecture: str) -> str:
    """The key as it stands in a file: `block_count` is `llama.block_count`.

    Common keys (`general.`, `tokenizer.`, ...) and those that begin with the
    architecture are complete already.
    """
    return key if is_common(key) or key.startswith(architecture + ".") else f"{architecture}.{key}"

"""Bytes the store's tests are made of."""

from __future__ import annotations

import hashlib


def sha256(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def minimal_gguf() -> bytes:
    """Version 3, no tensors, one key `general.architecture` = `test`."""

    def text(value: str) -> bytes:
        return len(value).to_bytes(8, "little") + value.encode()

    head = b"GGUF" + (3).to_bytes(4, "little") + (0).to_bytes(8, "little") + (1).to_bytes(8, "little")
    return head + text("general.architecture") + (8).to_bytes(4, "little") + text("test")

"""GGUF files built byte by byte, so that they can be invalid in any way."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

UINT8, INT8, UINT16, INT16, UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY, UINT64, INT64, FLOAT64 = range(13)


def string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def key(name: str | bytes, kind: int, value: bytes) -> bytes:
    return string(name) + struct.pack("<I", kind) + value


def text_key(name: str, value: str | bytes) -> bytes:
    return key(name, STRING, string(value))


def uint_key(name: str, value: int) -> bytes:
    return key(name, UINT32, struct.pack("<I", value))


def array_key(name: str, kind: int, count: int, elements: bytes) -> bytes:
    return key(name, ARRAY, struct.pack("<IQ", kind, count) + elements)


def tensor(name: str | bytes, dimensions: Sequence[int], kind: int, offset: int) -> bytes:
    """Return a directory entry; dimensions are in file order, fastest-varying first."""
    count = len(dimensions)
    return string(name) + struct.pack(f"<I{count}QIQ", count, *dimensions, kind, offset)


def gguf(
    keys: Sequence[bytes] = (),
    tensors: Sequence[bytes] = (),
    data: bytes = b"",
    *,
    version: int = 3,
    key_count: int | None = None,
    tensor_count: int | None = None,
    alignment: int = 32,
) -> bytes:
    """Return a complete file; the counts default to the lengths of the lists."""
    head = b"GGUF" + struct.pack(
        "<IQQ",
        version,
        len(tensors) if tensor_count is None else tensor_count,
        len(keys) if key_count is None else key_count,
    )
    directory = head + b"".join(keys) + b"".join(tensors)
    return directory + bytes(-len(directory) % alignment) + data


def save(folder: Path, content: bytes, name: str = "model.gguf") -> Path:
    path = folder / name
    path.write_bytes(content)
    return path

"""Ternary formats: 256 elements, each -d, 0 or d."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from puna.gguf.blocks.layout import LAYOUTS, pack, unpack
from puna.gguf.blocks.search import inverse
from puna.gguf.types import GGMLType

Blocks = NDArray[Any]  # structured, [n]
Values = NDArray[np.float32]  # [n, 256]
Bytes = NDArray[np.uint8]

_PARTS = ((0, 32, 5), (32, 48, 5), (48, 52, 4))  # first byte, end, codes per byte (TQ1_0)


def _decode(blocks: Blocks, codes: Bytes) -> Values:
    values: Values = blocks["d"].astype(np.float32)[:, None] * (codes.astype(np.float32) - 1)
    return values


def _encode(values: Values, kind: GGMLType) -> tuple[Blocks, Bytes]:
    """Return blocks with their scale set, and codes 0, 1, 2 [n, 256]."""
    blocks = np.empty(len(values), LAYOUTS[kind])
    scale = np.abs(values).max(axis=1, keepdims=True)
    blocks["d"] = scale[:, 0]
    scaled = values * inverse(scale)
    return blocks, (np.trunc(2 * scaled) - np.trunc(scaled) + 1).astype(np.uint8)  # ties away from zero


def decode_tq1_0(blocks: Blocks) -> Values:
    """Decode five base-3 digits per byte (four in the last four bytes).

    A byte encodes its digits as a fraction: value / 243 * 256, rounded up. Multiplying it by a power of three
    modulo 256 moves a digit to the front; the upper byte of three times the result is that digit.
    """
    packed = np.concatenate([blocks["qs"], blocks["qh"]], axis=1)
    parts = []
    for first, end, digits in _PARTS:
        powers = (3 ** np.arange(digits)).astype(np.uint8)[:, None]
        shifted = packed[:, None, first:end] * powers  # modulo 256
        parts.append((shifted.astype(np.uint16) * 3 >> 8).astype(np.uint8).reshape(len(blocks), -1))
    return _decode(blocks, np.concatenate(parts, axis=1))


def encode_tq1_0(values: Values, measured: Values | None = None) -> Blocks:
    blocks, codes = _encode(values, GGMLType.TQ1_0)
    packed = np.empty((len(blocks), 52), np.uint8)
    place = 0
    for first, end, digits in _PARTS:
        count = (end - first) * digits
        part = codes[:, place : place + count].reshape(len(blocks), digits, end - first)
        weights = (3 ** np.arange(4, 4 - digits, -1)).astype(np.uint16)[:, None]
        number = (part * weights).sum(axis=1)
        packed[:, first:end] = (number * 256 + 242) // 243
        place += count
    blocks["qs"], blocks["qh"] = packed[:, :48], packed[:, 48:]
    return blocks


def decode_tq2_0(blocks: Blocks) -> Values:
    return _decode(blocks, unpack(blocks["qs"], 2, 32))


def encode_tq2_0(values: Values, measured: Values | None = None) -> Blocks:
    blocks, codes = _encode(values, GGMLType.TQ2_0)
    blocks["qs"] = pack(codes, 2, 32)
    return blocks

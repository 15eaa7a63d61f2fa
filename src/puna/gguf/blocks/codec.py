"""Conversion of bytes to float32 values and back, for every type, in pieces that fit the CPU's cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from puna.errors import GGUFError
from puna.gguf.blocks import iq, k, simple, ternary
from puna.gguf.blocks.layout import LAYOUTS
from puna.gguf.types import GGMLType

_PIECE = 1 << 17  # values converted at a time
_LARGEST = 1e12  # larger than any float16 scale allows, while the cube still fits float32

Decoder = Callable[[NDArray[Any]], NDArray[np.float32]]  # blocks [n] to values [n, block size]
Encoder = Callable[
    [NDArray[np.float32], NDArray[np.float32] | None], NDArray[Any]
]  # inverse; see `importance`

_NUMBERS = (GGMLType.F32, GGMLType.F16, GGMLType.F64, GGMLType.I8, GGMLType.I16, GGMLType.I32, GGMLType.I64)

_DECODERS: dict[GGMLType, Decoder] = {
    **dict.fromkeys(_NUMBERS, simple.decode_number),
    GGMLType.BF16: simple.decode_bf16,
    GGMLType.Q4_0: simple.decode_q4_0,
    GGMLType.Q4_1: simple.decode_q4_1,
    GGMLType.Q5_0: simple.decode_q5_0,
    GGMLType.Q5_1: simple.decode_q5_1,
    GGMLType.Q8_0: simple.decode_q8,
    GGMLType.Q8_1: simple.decode_q8,
    GGMLType.Q8_K: simple.decode_q8,
    GGMLType.Q2_K: k.decode_q2_k,
    GGMLType.Q3_K: k.decode_q3_k,
    GGMLType.Q4_K: k.decode_q4_k,
    GGMLType.Q5_K: k.decode_q5_k,
    GGMLType.Q6_K: k.decode_q6_k,
    GGMLType.IQ1_S: iq.decode_iq1_s,
    GGMLType.IQ1_M: iq.decode_iq1_m,
    GGMLType.IQ2_XXS: iq.decode_iq2_xxs,
    GGMLType.IQ2_XS: iq.decode_iq2_xs,
    GGMLType.IQ2_S: iq.decode_iq2_s,
    GGMLType.IQ3_XXS: iq.decode_iq3_xxs,
    GGMLType.IQ3_S: iq.decode_iq3_s,
    GGMLType.IQ4_NL: iq.decode_iq4_nl,
    GGMLType.IQ4_XS: iq.decode_iq4_xs,
    GGMLType.MXFP4: iq.decode_mxfp4,
    GGMLType.MXFP4_PAIRS: iq.decode_mxfp4_pairs,
    GGMLType.TQ1_0: ternary.decode_tq1_0,
    GGMLType.TQ2_0: ternary.decode_tq2_0,
}

_ENCODERS: dict[GGMLType, Encoder] = {
    GGMLType.F16: simple.encode_f16,
    GGMLType.BF16: simple.encode_bf16,
    GGMLType.Q4_0: simple.encode_q4_0,
    GGMLType.Q4_1: simple.encode_q4_1,
    GGMLType.Q5_0: simple.encode_q5_0,
    GGMLType.Q5_1: simple.encode_q5_1,
    GGMLType.Q8_0: simple.encode_q8_0,
    GGMLType.Q2_K: k.encode_q2_k,
    GGMLType.Q3_K: k.encode_q3_k,
    GGMLType.Q4_K: k.encode_q4_k,
    GGMLType.Q5_K: k.encode_q5_k,
    GGMLType.Q6_K: k.encode_q6_k,
    GGMLType.IQ4_NL: iq.encode_iq4_nl,
    GGMLType.IQ4_XS: iq.encode_iq4_xs,
    GGMLType.MXFP4: iq.encode_mxfp4,
    GGMLType.TQ1_0: ternary.encode_tq1_0,
    GGMLType.TQ2_0: ternary.encode_tq2_0,
}

_CAST = (GGMLType.F32, GGMLType.F64)

QUANTIZABLE = frozenset((*_CAST, *_ENCODERS))


def dequantize(data: NDArray[Any], type: GGMLType, count: int | None = None) -> NDArray[np.float32]:
    """Decode blocks of `type`: uint8 [..., bytes of a row] to float32 [..., values of a row].

    With `count`, only the first `count` values are decoded, to a 1-D array. Raises GGUFError if the bytes
    are not whole blocks or do not contain `count` values.
    """
    kind = GGMLType(type)
    raw = np.ascontiguousarray(data).view(np.uint8)
    if raw.ndim == 0 or raw.shape[-1] % kind.type_size:
        raise GGUFError(
            f"{raw.size} bytes are not a whole number of {kind.name} blocks of {kind.type_size} bytes"
        )
    if count is not None:
        blocks = -(-count // kind.block_size)
        raw = raw.reshape(-1)[: blocks * kind.type_size]
        if count < 0 or raw.size < blocks * kind.type_size:
            raise GGUFError(f"{data.nbytes} bytes of {kind.name} do not contain {count} values")
    blocks_in = raw.reshape(-1).view(LAYOUTS[kind])
    out = np.empty((len(blocks_in), kind.block_size), np.float32)
    decode, step = _DECODERS[kind], _PIECE // kind.block_size
    with np.errstate(invalid="ignore", over="ignore"):  # scales in a file may be infinite
        for start in range(0, len(blocks_in), step):
            out[start : start + step] = decode(blocks_in[start : start + step])
    if count is not None:
        return out.reshape(-1)[:count]
    return out.reshape(*raw.shape[:-1], raw.shape[-1] // kind.type_size * kind.block_size)


def quantize(
    values: NDArray[Any], type: GGMLType, measured: NDArray[np.float32] | None = None
) -> NDArray[np.uint8]:
    """Encode `values` [..., values of a row] as blocks of `type`: uint8 [..., bytes of a row].

    `measured` [values of a row] says how much each column matters: the mean square of the inputs it is
    multiplied by. Raises GGUFError if rows are not whole blocks, if values are not finite or too large for
    the type, or if the type cannot be written.
    """
    kind = GGMLType(type)
    if kind not in QUANTIZABLE:
        raise GGUFError(f"quantisation to {kind.name} is not supported")
    values = np.asarray(values)
    if values.ndim == 0 or values.shape[-1] % kind.block_size:
        raise GGUFError(
            f"rows of shape {values.shape} are not whole {kind.name} blocks of {kind.block_size} values"
        )
    rows = values.reshape(-1, kind.block_size)
    if kind in _CAST:
        out = rows[:, 0].astype(LAYOUTS[kind])
    else:
        out = np.empty(len(rows), LAYOUTS[kind])
        step = _PIECE // kind.block_size
        columns = None if measured is None else measured.astype(np.float32).reshape(-1, kind.block_size)
        for start in range(0, len(rows), step):
            piece = rows[start : start + step]
            weights = None
            if columns is not None:
                weights = columns[np.arange(start, start + len(piece)) % len(columns)]
            out[start : start + step] = _encode(kind, piece, weights)
    return out.view(np.uint8).reshape(
        *values.shape[:-1], values.shape[-1] // kind.block_size * kind.type_size
    )


def _encode(kind: GGMLType, rows: NDArray[Any], measured: NDArray[np.float32] | None) -> NDArray[Any]:
    """Return the blocks of one piece [n, block size]; `measured` has the same shape."""
    values = np.ascontiguousarray(rows, np.float32)
    if not kind.is_quantized:
        return _ENCODERS[kind](values, measured)
    if not np.isfinite(values).all():
        raise GGUFError(f"values that are not finite cannot be quantised to {kind.name}")
    too_large = np.abs(values).max(initial=0) > _LARGEST
    if not too_large:
        with np.errstate(over="ignore", invalid="ignore"):  # the check below catches these
            blocks = _ENCODERS[kind](values, measured)
        scales = [name for name in ("d", "m", "dmin") if name in (blocks.dtype.names or ())]
        too_large = not all(np.isfinite(blocks[name]).all() for name in scales)
    if too_large:
        raise GGUFError(f"values as large as {np.abs(values).max():.4g} cannot be quantised to {kind.name}")
    return blocks

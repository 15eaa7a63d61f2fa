"""How keys and values are stored: float32, float16, bfloat16, or quantised as in GGUF files.

Storage is a tensor that says itself what it holds: floats `[cells, heads, dim]` of their own dtype,
quantised numbers uint8 `[cells, heads, dim / 32, block bytes]`, a block being a float16 scale and the
codes of 32 numbers: 34 bytes in Q8_0, 18 in Q4_0. So cells are indexed and copied alike whatever they hold.
"""

from __future__ import annotations

import torch
from torch import Tensor

from puna.errors import NotSupportedError
from puna.gguf import GGMLType

KV_TYPES = (GGMLType.F32, GGMLType.F16, GGMLType.BF16, GGMLType.Q8_0, GGMLType.Q4_0)

_DTYPES = {GGMLType.F32: torch.float32, GGMLType.F16: torch.float16, GGMLType.BF16: torch.bfloat16}
_TYPES = {dtype: kind for kind, dtype in _DTYPES.items()}
_BLOCKS = {kind.type_size: kind for kind in (GGMLType.Q8_0, GGMLType.Q4_0)}
_BLOCK = 32
_LARGEST_SCALE = 65504.0


def kv_row_bytes(kind: GGMLType, dim: int) -> int:
    """Bytes of one head's key or value of `dim` numbers; `NotSupportedError` when it fills no blocks."""
    if dim % kind.block_size:
        raise NotSupportedError(
            f"heads of {dim} numbers do not fill {kind.name} blocks of {kind.block_size}; "
            "use f16, bf16 or f32 for this model's key/value cache"
        )
    return kind.nbytes(dim)


def kv_storage(kind: GGMLType, memory: Tensor, heads: int, dim: int) -> Tensor:
    """`memory` (uint8, contiguous, whole cells) as storage of `kind`; see the head of this file."""
    storage = memory.view(-1, heads, kv_row_bytes(kind, dim))
    if kind in _DTYPES:
        return storage.view(_DTYPES[kind])
    return storage.view(len(storage), heads, dim // kind.block_size, kind.type_size)


def kv_zeros(kind: GGMLType, cells: int, heads: int, dim: int) -> Tensor:
    """Storage of zeros."""
    return kv_storage(
        kind, torch.zeros(cells * heads * kv_row_bytes(kind, dim), dtype=torch.uint8), heads, dim
    )


def kv_type(storage: Tensor) -> GGMLType | None:
    """What `storage` holds; None when it is no storage of keys or values."""
    if storage.dtype is torch.uint8 and storage.dim() > 1:
        return _BLOCKS.get(storage.shape[-1])
    return _TYPES.get(storage.dtype)


def kv_shape(storage: Tensor) -> tuple[int, ...]:
    """The shape of the numbers in `storage`: [cells, heads, dim]."""
    if storage.dtype is torch.uint8 and storage.dim() > 1:
        return (*storage.shape[:-2], storage.shape[-2] * _BLOCK)
    return tuple(storage.shape)


def kv_unpack(storage: Tensor) -> Tensor:
    """The numbers in `storage` as float32, in the shape `kv_shape` gives."""
    kind = kv_type(storage)
    if kind not in (GGMLType.Q8_0, GGMLType.Q4_0):
        return storage.float()
    scales = storage[..., :2].contiguous().view(torch.float16).float()
    codes = storage[..., 2:]
    if kind is GGMLType.Q8_0:
        numbers = codes.contiguous().view(torch.int8).float()
    else:  # two codes to a byte, the first 16 in the low halves
        numbers = torch.cat([codes & 15, codes >> 4], dim=-1).float() - 8
    return (scales * numbers).view(kv_shape(storage))


def kv_pack(numbers: Tensor, kind: GGMLType) -> Tensor:
    """`numbers` [..., dim] stored as `kind`: the inverse of `kv_unpack`, but for rounding.

    Codes are the nearest for the scale as stored. The largest magnitude of a block is at most 127
    (Q8_0) or -8 (Q4_0) scales. A block with a number that is not finite becomes NaN.
    """
    if kind in _DTYPES:
        return numbers.to(_DTYPES[kind])
    blocks = numbers.float().reshape(*numbers.shape[:-1], -1, _BLOCK)
    high, low = blocks.amax(-1, keepdim=True), blocks.amin(-1, keepdim=True)
    if kind is GGMLType.Q8_0:
        least, most, scale = -127, 127, torch.maximum(high, -low) / 127
    else:
        least, most, scale = -8, 7, torch.where(high >= -low, high, low) / -8
    finite = blocks.isfinite().all(-1, keepdim=True)
    scale = scale.clamp(-_LARGEST_SCALE, _LARGEST_SCALE).where(finite, torch.nan).half()
    codes = (blocks / scale.float()).round().clamp(least, most).where(finite & (scale != 0), 0).to(torch.int8)
    if kind is GGMLType.Q8_0:
        data = codes.view(torch.uint8)
    else:
        shifted = (codes + 8).view(torch.uint8)
        data = shifted[..., :16] | shifted[..., 16:] << 4
    return torch.cat([scale.view(torch.uint8), data], dim=-1)

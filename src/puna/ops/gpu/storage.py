"""Storage on a torch device: the codes of rows, and for quantised types the scales of their blocks, apart.

A block of a file is 34 or 18 bytes, which no two threads read well side by side.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from puna.gguf import GGMLType
from puna.ops.gpu.planes import Plane, plane
from puna.ops.storage import Storage

_BLOCK = 32
_MAX_SCALE = 65504.0
_FLOATS = {GGMLType.F32: torch.float32, GGMLType.F16: torch.float16, GGMLType.BF16: torch.bfloat16}


class DeviceStorage(Storage):
    """Rows as `codes` [rows, ..., n] and, for quantised types, `scales` float16 [rows, ..., n / 32].

    Codes are the numbers themselves in float types, int8 [..., n] in Q8_0, and in Q4_0 uint8 [..., n / 2]:
    the 16 bytes of a block, whose lower halves are the first 16 numbers.
    """

    def __init__(self, kind: GGMLType, rows: int, row_shape: tuple[int, ...], device: torch.device) -> None:
        super().__init__(kind, rows, row_shape)
        self.device = device
        *outer, dim = row_shape
        dtype = _FLOATS.get(kind, torch.int8 if kind is GGMLType.Q8_0 else torch.uint8)
        width = dim // 2 if kind is GGMLType.Q4_0 else dim
        self._codes = plane(rows, (*outer, width), dtype, device)
        self._scales: Plane | None = None
        if kind not in _FLOATS:
            self._scales = plane(rows, (*outer, dim // _BLOCK), torch.float16, device)

    @property
    def codes(self) -> Tensor:
        return self._codes.values

    @property
    def scales(self) -> Tensor | None:
        return None if self._scales is None else self._scales.values

    @property
    def moves(self) -> int:
        return sum(each.moves for each in self._planes())

    def provide(self, rows: int) -> None:
        for each in self._planes():
            each.provide(rows)

    def give_back(self, begin: int, end: int) -> None:
        for each in self._planes():
            each.give_back(begin, end)

    def _planes(self) -> list[Plane]:
        return [self._codes] if self._scales is None else [self._codes, self._scales]

    def copy(self, sources: NDArray[np.integer], targets: NDArray[np.integer]) -> None:
        here, there = self._indices(sources), self._indices(targets)
        for each in self._planes():
            each.values[there] = each.values[here]

    def read(self, rows: NDArray[np.integer]) -> NDArray[Any]:
        codes = self.codes[self._indices(rows)].cpu()
        if self.scales is None:
            if self.kind is GGMLType.BF16:
                return codes.view(torch.int16).numpy().view(np.uint16)
            return codes.numpy()
        scales = self.scales[self._indices(rows)].cpu().unsqueeze(-1).view(torch.uint8)
        blocks = codes.view(torch.uint8).unflatten(-1, (scales.shape[-2], -1))
        return torch.cat([scales, blocks], -1).numpy()

    def write(self, rows: NDArray[np.integer], stored: NDArray[Any]) -> None:
        given = np.ascontiguousarray(stored)
        if self.kind is GGMLType.BF16:
            given = given.view(np.int16)
        values, at = torch.from_numpy(given.copy()), self._indices(rows)
        if self.scales is None:
            self.codes[at] = values.view(self.codes.dtype).to(self.device)
            return
        codes = values[..., 2:].flatten(-2).view(self.codes.dtype)
        self.codes[at] = codes.to(self.device)
        self.scales[at] = values[..., :2].contiguous().view(torch.float16).squeeze(-1).to(self.device)

    def numbers(self, rows: NDArray[np.integer]) -> Tensor:
        return self.at(self._indices(rows))

    def at(self, rows: Tensor) -> Tensor:
        """Return the numbers of `rows` [n] as float32 [n, ...]."""
        scales = None if self.scales is None else self.scales[rows]
        return decode(self.codes[rows], scales, self.kind)

    def put(self, rows: NDArray[np.integer], numbers: Tensor) -> None:
        self.put_at(self._indices(rows), numbers)

    def put_at(self, rows: Tensor, numbers: Tensor) -> None:
        """Set `rows` [n] to `numbers` [n, ...]."""
        codes, scales = encode(numbers, self.kind)
        self.codes[rows] = codes
        if self.scales is not None and scales is not None:
            self.scales[rows] = scales

    def _indices(self, rows: NDArray[np.integer]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(rows, np.int64)).to(self.device)

    def by_head(self) -> DeviceStorage:
        rows, heads, dim = self.shape
        found = copy.copy(self)
        found.shape, found.row_bytes = (rows * heads, 1, dim), self.row_bytes // heads
        found._codes = self._codes.by_head()
        found._scales = None if self._scales is None else self._scales.by_head()
        return found

    def close(self) -> None:
        for each in self._planes():
            each.close()


def decode(codes: Tensor, scales: Tensor | None, kind: GGMLType) -> Tensor:
    """Return the numbers that codes and scales stand for: the inverse of `encode`, except for rounding."""
    if scales is None:
        return codes.float()
    if kind is GGMLType.Q8_0:
        numbers = codes.float()
    else:
        halves = codes.unflatten(-1, (scales.shape[-1], -1))
        numbers = torch.cat([halves & 15, halves >> 4], -1).flatten(-2).float() - 8
    return (scales.float()[..., None] * numbers.unflatten(-1, (scales.shape[-1], _BLOCK))).flatten(-2)


def encode(numbers: Tensor, kind: GGMLType) -> tuple[Tensor, Tensor | None]:
    """Return codes and scales of `numbers` float32 [..., n], as `puna.ops.quantized.pack` defines them."""
    if kind in _FLOATS:
        return numbers.to(_FLOATS[kind]), None
    blocks = numbers.unflatten(-1, (-1, _BLOCK))
    high, low = blocks.amax(-1, keepdim=True), blocks.amin(-1, keepdim=True)
    if kind is GGMLType.Q8_0:
        min_code, max_code, scale = -127, 127, torch.maximum(high, -low) / 127
    else:
        min_code, max_code, scale = -8, 7, torch.where(high >= -low, high, low) / -8
    finite = blocks.isfinite().all(-1, keepdim=True)
    scale = torch.where(finite, scale.clamp(-_MAX_SCALE, _MAX_SCALE), torch.nan).half()
    rounded = (blocks / scale.float()).round().clamp(min_code, max_code)
    codes = torch.where(finite & (scale != 0), rounded, 0).to(torch.int8)
    if kind is GGMLType.Q8_0:
        return codes.flatten(-2), scale.squeeze(-1)
    shifted = (codes + 8).to(torch.uint8)
    halves = shifted[..., :16] | (shifted[..., 16:] << 4)
    return halves.flatten(-2), scale.squeeze(-1)

"""The tiles in which matrices are multiplied, by kind of device and of weights."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
import triton

from puna.ops.gpu.packed import PlaneFormat


@dataclass(frozen=True)
class FewTiles:
    """Tiles for few rows of x. The ways and splits order the sums: they must not depend on the rows of x."""

    rows: int  # of the matrix, in a program
    ways: int  # chunks that are multiplied side by side, a warp each
    stages: int
    programs: int = 256  # columns are split until there are so many: two for each multiprocessor of an H200
    max_splits: int = 8  # each of which writes its sums


@dataclass(frozen=True)
class ManyTiles:
    """Tiles for many rows of x."""

    rows: int  # of the matrix
    tokens: int
    warps: int
    stages: int
    programs: int = 0  # of `_many_rows`: as those of `FewTiles`
    max_splits: int = 8


@dataclass(frozen=True)
class Tiles:
    """The tiles of all kernels on one kind of device."""

    shared: int  # bytes that a block of threads can share there, at least
    few_tokens: int  # the least rows of x in a tile: 8, or the 16 that AMD's matrix cores multiply
    few: FewTiles
    few_wide: FewTiles  # for weights in chunks of 256 columns, as `many_wide`
    many: ManyTiles
    many_wide: ManyTiles
    dense: ManyTiles
    dense_parts: ManyTiles  # where activations are sums of two numbers
    exact: ManyTiles  # in float32

    def for_few(self, form: PlaneFormat) -> FewTiles:
        """Return the tiles for few rows of x and weights of a form."""
        return self.few if form.chunk == 128 else self.few_wide

    def for_many(self, form: PlaneFormat) -> ManyTiles:
        """Return the tiles for many rows of x and packed weights of a form."""
        return self.many if form.chunk == 128 else self.many_wide


#: By what blocks of threads can share, most first. On an H200, microseconds for matrices of 14336 x 4096:
#: `few` 20 for Q4_K at 1 row (other tiles 19 to 34); `many` 35 at 64 rows (35 to 306) and 103 at 256 (94 to
#: 123); `dense` 767 at 4096 rows (774 to 974). The wide ones, not measured, are the others for as many
#: columns in flight: `few_wide` has half the warps in twice the programs, `many_wide` a stage less. The tiles
#: of other devices are those that fit.
TILES = (
    Tiles(  # A100 (163 KiB); H100, H200, B200 (227 KiB)
        shared=160 << 10,
        few_tokens=8,
        few=FewTiles(rows=32, ways=4, stages=3),
        few_wide=FewTiles(rows=32, ways=2, stages=3, programs=512),
        many=ManyTiles(rows=128, tokens=64, warps=8, stages=3, programs=264),
        many_wide=ManyTiles(rows=128, tokens=64, warps=8, stages=2, programs=264),
        dense=ManyTiles(rows=128, tokens=256, warps=8, stages=3),
        dense_parts=ManyTiles(rows=128, tokens=128, warps=8, stages=3),
        exact=ManyTiles(rows=32, tokens=32, warps=4, stages=2),
    ),
    Tiles(  # NVIDIA's consumer devices (99 KiB)
        shared=96 << 10,
        few_tokens=8,
        few=FewTiles(rows=32, ways=4, stages=3),
        few_wide=FewTiles(rows=32, ways=2, stages=3, programs=512),
        many=ManyTiles(rows=128, tokens=64, warps=8, stages=3, programs=264),
        many_wide=ManyTiles(rows=128, tokens=64, warps=8, stages=2, programs=264),
        dense=ManyTiles(rows=128, tokens=128, warps=8, stages=3),
        dense_parts=ManyTiles(rows=128, tokens=64, warps=8, stages=3),
        exact=ManyTiles(rows=32, tokens=32, warps=4, stages=2),
    ),
    Tiles(  # AMD's (64 KiB, and 256 registers where a warp has 32 threads)
        shared=0,
        few_tokens=16,
        few=FewTiles(rows=32, ways=4, stages=2),
        few_wide=FewTiles(rows=32, ways=2, stages=2, programs=512),
        many=ManyTiles(rows=32, tokens=64, warps=4, stages=2, programs=264),
        many_wide=ManyTiles(rows=32, tokens=64, warps=4, stages=2, programs=264),
        dense=ManyTiles(rows=128, tokens=128, warps=8, stages=2),
        dense_parts=ManyTiles(rows=64, tokens=64, warps=4, stages=2),
        exact=ManyTiles(rows=32, tokens=32, warps=4, stages=2),
    ),
)


#: Tiles that were chosen by measuring them, by the index of a GPU.
_used: dict[int, Tiles] = {}


def tiles_for(device: torch.device) -> Tiles:
    """Return the tiles of kernels on a device. The interpreter has those of the first."""
    if device.type == "cpu":
        return TILES[0]
    index = _index_of(device)
    return _used.get(index) or _tiles_of(index)


def use(device: torch.device, tiles: Tiles) -> None:
    """Use other tiles on a GPU from now on, where no recording of kernels exists."""
    _used[_index_of(device)] = tiles


def _index_of(device: torch.device) -> int:
    return torch.cuda.current_device() if device.index is None else device.index


@cache
def _tiles_of(index: int) -> Tiles:
    if torch.version.hip is not None:  # some have more to share, but the matrix cores of all take 16 rows
        return TILES[-1]
    properties = triton.runtime.driver.active.utils.get_device_properties(index)
    return next(tiles for tiles in TILES if tiles.shared <= properties["max_shared_mem"])

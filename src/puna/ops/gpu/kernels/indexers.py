"""The choice of cells for sparse attention: scores of all, and for each row the largest of them.

One launch writes the scores of each row's cells or blocks as integers of the same order. Another finds the
smallest that is chosen, eight bits at a time, and writes the chosen cells in the order of the row's list.
Nothing is sorted, and the host waits for nothing, so that steps of decoding can be recorded.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from puna.gguf import GGMLType
from puna.ops.backend import list_width
from puna.ops.gpu.kernels import elementary
from puna.ops.gpu.kernels.cells import CODES, Q4_0, Q8_0, Planes
from puna.ops.gpu.kernels.variant import Variant

#: Keys of a tile, and their columns, some at a time.
_CELLS, _COLUMNS = 32, 32
#: Programs that score the cells of a batch, at most one for a tile: two for each multiprocessor of an H200.
_PROGRAMS = 264
#: Scores that are kept at once, 64 MB.
_MOST_SCORES = 1 << 24
#: Scores that are counted together, cells that are written together, and rows that are looked at together.
_COUNTED, _WRITTEN, _SEARCH = 2048, 2048, 128
_SCORING_WARPS, _SCORING_STAGES = 4, 2
_CHOOSING_WARPS = 8


@triton.jit
def _products(
    q, codes, scales, row, cells, listed,
    KIND: tl.constexpr, HEADS: tl.constexpr, DIM: tl.constexpr, HEADS_TILE: tl.constexpr,
    CELLS: tl.constexpr, COLUMNS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Return the products of a row's heads and the keys of `cells` int64: float32 [HEADS_TILE, CELLS]."""
    head = tl.arange(0, HEADS_TILE)
    total = tl.zeros((HEADS_TILE, CELLS), tl.float32)
    for begin in range(0, DIM, COLUMNS):
        column = begin + tl.arange(0, COLUMNS)
        at = (row.to(tl.int64) * HEADS + head)[:, None] * DIM + column[None, :]
        query = tl.load(q + at, (head < HEADS)[:, None] & (column < DIM)[None, :], 0.0)
        keys = _read_keys(codes, scales, cells, listed, column, KIND, DIM)
        total = tl.dot(query, tl.trans(keys), total, input_precision=PRECISION)
    return total


@triton.jit
def _read_keys(codes, scales, cells, listed, column, KIND: tl.constexpr, DIM: tl.constexpr):
    """Return columns of the keys of `cells` int64 as float32, zeros where nothing is `listed`."""
    column = column[None, :]
    inside = listed[:, None] & (column < DIM)
    if KIND == Q4_0:
        at = cells[:, None] * (DIM // 2) + column // 32 * 16 + column % 16
        pairs = tl.load(codes + at, inside, 0).to(tl.int32)
        numbers = ((pairs >> (column % 32 // 16 * 4)) & 15).to(tl.float32) - 8.0
    elif KIND == Q8_0:
        numbers = tl.load(codes + cells[:, None] * DIM + column, inside, 0).to(tl.float32)
    else:
        numbers = tl.load(codes + cells[:, None] * DIM + column, inside, 0.0).to(tl.float32)
    if KIND == Q8_0 or KIND == Q4_0:  # noqa: SIM109 - kernels know no tuples of constants
        scale = tl.load(scales + cells[:, None] * (DIM // 32) + column // 32, inside, 0.0)
        numbers *= scale.to(tl.float32)
    return numbers


@triton.jit
def _order_of(scores):
    """Return int32 whose bits, taken as unsigned, are larger for the larger score; NaN is infinity."""
    scores = tl.where(scores == scores, scores, float("inf"))
    return elementary.order_of(scores).to(tl.int32, bitcast=True)


@triton.jit(do_not_specialize=["first", "bound", "kept"])
def _score_cells_kernel(
    q, weights, codes, scales, cells, starts, counts, scores, first, bound, kept,
    KIND: tl.constexpr, HEADS: tl.constexpr, DIM: tl.constexpr, GROUP: tl.constexpr,
    HEADS_TILE: tl.constexpr, CELLS: tl.constexpr, COLUMNS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Score the groups of rows from `first` on that have more than `kept`: scores [rows, bound]."""
    row = first + tl.program_id(1)
    start = tl.load(starts + row)
    groups = tl.minimum(tl.load(counts + row) // GROUP, bound)
    groups = tl.where(groups <= kept, 0, groups)
    head = tl.arange(0, HEADS_TILE)
    real = head < HEADS
    weight = tl.load(weights + row.to(tl.int64) * HEADS + head, real, 0.0)
    scores += tl.program_id(1).to(tl.int64) * bound
    for begin in range(tl.program_id(0) * CELLS, groups, tl.num_programs(0) * CELLS):
        group = begin + tl.arange(0, CELLS)
        listed = group < groups
        cell = tl.load(cells + start + group * GROUP + (GROUP - 1), listed, 0).to(tl.int64)
        products = _products(
            q, codes, scales, row, cell, listed, KIND, HEADS, DIM, HEADS_TILE, CELLS, COLUMNS, PRECISION
        )
        # NaN stays; heads that are not there would make NaN of infinity.
        products = tl.where((products < 0) | ~real[:, None], 0.0, products)
        tl.store(scores + group, _order_of(tl.sum(weight[:, None] * products, 0)), listed)


@triton.jit(do_not_specialize=["first", "bound", "kept"])
def _score_blocks_kernel(
    q, codes, scales, cells, starts, counts, scores, first, bound, kept,
    KIND: tl.constexpr, HEADS: tl.constexpr, DIM: tl.constexpr, BLOCK: tl.constexpr, LOCAL: tl.constexpr,
    HEADS_TILE: tl.constexpr, CELLS: tl.constexpr, COLUMNS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Score the blocks of rows from `first` on that have more than `kept`: scores [rows, HEADS, bound].

    The last `LOCAL` blocks have the largest score there is.
    """
    row = first + tl.program_id(1)
    start, count = tl.load(starts + row), tl.load(counts + row)
    blocks = tl.minimum((count + BLOCK - 1) // BLOCK, bound)
    blocks = tl.where(blocks <= kept, 0, blocks)
    head = tl.arange(0, HEADS_TILE)
    scores += tl.program_id(1).to(tl.int64) * HEADS * bound
    for block in range(tl.program_id(0), blocks, tl.num_programs(0)):
        best = tl.full((HEADS_TILE,), float("-inf"), tl.float32)
        for begin in range(0, BLOCK, CELLS):
            member = begin + tl.arange(0, CELLS)
            place = block * BLOCK + member
            listed = (member < BLOCK) & (place < count)
            cell = tl.load(cells + start + place, listed, 0).to(tl.int64)
            products = _products(
                q, codes, scales, row, cell, listed, KIND, HEADS, DIM, HEADS_TILE, CELLS, COLUMNS, PRECISION
            )
            products = tl.where(products == products, products, float("inf"))
            best = tl.maximum(best, tl.max(tl.where(listed[None, :], products, float("-inf")), 1))
        order = tl.where(block >= blocks - LOCAL, -1, _order_of(best))
        tl.store(scores + head.to(tl.int64) * bound + block, order, head < HEADS)


@triton.jit
def _first_keeping(
    starts, counts, row, kept, GROUP: tl.constexpr, PARTIAL: tl.constexpr, SEARCH: tl.constexpr
):
    """Return the first of the neighbours up to `row` that keep all of one list, as `row` does."""
    start, found, at = tl.load(starts + row), -1, row
    while found < 0:
        other = at - tl.arange(0, SEARCH)
        before = other > 0
        count = tl.load(counts + other - 1, before, 0)
        groups = (count + GROUP - 1) // GROUP if PARTIAL else count // GROUP
        shares = before & (tl.load(starts + other - 1, before, -1) == start) & (groups <= kept)
        found = tl.max(tl.where(shares | (other < 0), -1, other))
        at -= SEARCH
    return found


@triton.jit(do_not_specialize=["first", "bound", "rows", "kept"])
def _choose_kernel(
    scores, cells, starts, counts, lists, begins, lengths, first, bound, rows, kept, width,
    HEADS: tl.constexpr, GROUP: tl.constexpr, PARTIAL: tl.constexpr, MEMBERS: tl.constexpr,
    COUNTED: tl.constexpr, WRITTEN: tl.constexpr, SEARCH: tl.constexpr,
):  # fmt: skip
    """Write a head's list of a row from `first` on: lists [HEADS, rows, width].

    It begins at `begins` [HEADS, rows], and has `lengths` [HEADS, rows] cells. The `kept` groups with the
    largest scores [rows, HEADS, bound] are chosen. A last group that is not whole can be chosen, too, if
    PARTIAL, and is kept beside them otherwise.
    """
    row, head = first + tl.program_id(0), tl.program_id(1)
    start, count = tl.load(starts + row), tl.load(counts + row)
    groups = (count + GROUP - 1) // GROUP if PARTIAL else count // GROUP
    groups = tl.minimum(groups, bound)
    chooses = groups > kept
    scored = tl.where(chooses, groups, 0)
    scores += (tl.program_id(0).to(tl.int64) * HEADS + head) * bound

    # The least order that is chosen, and how many of the groups that have it are: the first ones.
    least, ties, digit = tl.full((), 0, tl.uint32), kept, tl.arange(0, 256)
    for step in tl.static_range(4):
        found = tl.zeros((256,), tl.int32)
        for begin in range(0, scored, COUNTED):
            place = begin + tl.arange(0, COUNTED)
            order = tl.load(scores + place, place < scored, 0).to(tl.uint32, bitcast=True)
            order >>= 24 - 8 * step
            alike = (place < scored) & ((order >> 8) == least)
            found += tl.histogram((order & 255).to(tl.int32), 256, mask=alike)
        reaching = tl.sum(found) - tl.cumsum(found, 0) + found
        last = tl.sum((reaching >= ties).to(tl.int32)) - 1
        ties -= tl.sum(tl.where(digit > last, found, 0))
        least = (least << 8) | last.to(tl.uint32)

    of_list = (head * rows + row).to(tl.int64)
    list_of_row = lists + of_list * width
    member = tl.arange(0, MEMBERS)
    chosen_before, ties_before, length = 0, 0, 0
    GROUPS: tl.constexpr = WRITTEN // MEMBERS
    for begin in range(0, scored, GROUPS):
        group = begin + tl.arange(0, GROUPS)
        order = tl.load(scores + group, group < scored, 0).to(tl.uint32, bitcast=True)
        tied = (group < scored) & (order == least)
        tie = ties_before + tl.cumsum(tied.to(tl.int32), 0) - 1
        chosen = (group < scored) & ((order > least) | (tied & (tie < ties)))
        to = chosen_before + tl.cumsum(chosen.to(tl.int32), 0) - 1
        entry = group[:, None] * GROUP + member[None, :]
        written = chosen[:, None] & (member < GROUP)[None, :] & (entry < count)
        cell = tl.load(cells + start + entry, written, 0)
        tl.store(list_of_row + to[:, None] * GROUP + member[None, :], cell * HEADS + head, written)
        ties_before += tl.sum(tied.to(tl.int32))
        chosen_before += tl.sum(chosen.to(tl.int32))
        length += tl.sum(tl.sum(written.to(tl.int32), 1))
    if chooses:
        entry = groups * GROUP + member
        after = entry < (0 if PARTIAL else count)
        tl.store(list_of_row + length + member, tl.load(cells + start + entry, after, 0), after)
        length += tl.sum(after.to(tl.int32))
    else:
        of_list = head * rows + _first_keeping(starts, counts, row, kept, GROUP, PARTIAL, SEARCH).to(tl.int64)
        for begin in range(0, count, WRITTEN):
            entry = begin + tl.arange(0, WRITTEN)
            cell = tl.load(cells + start + entry, entry < count, 0)
            tl.store(lists + of_list * width + entry, cell * HEADS + head, entry < count)
        length = count
    tl.store(begins + head * rows + row, (of_list * width).to(tl.int32))
    tl.store(lengths + head * rows + row, length)


def choose_cells(
    q: Tensor,
    weights: Tensor,
    keys: Planes,
    cells: Tensor,
    starts: Tensor,
    counts: Tensor,
    most: int,
    group: int = 1,
) -> tuple[Tensor, Tensor, Tensor]:
    """Choose the cells of each row, as `Backend.choose_cells`."""
    codes, scales, kind = keys

    def score(scores: Tensor, first: int, rows: int, bound: int) -> None:
        programs = _programs(rows, triton.cdiv(bound, _CELLS))
        _score_cells_kernel[(programs, rows)](
            q, weights, codes, scales, cells, starts, counts, scores, first, bound, most // group,
            int(kind), *q.shape[1:], group, _tile_of(q.shape[1]), _CELLS, _COLUMNS, _precision(q),
            num_warps=_SCORING_WARPS, num_stages=_SCORING_STAGES,
        )  # fmt: skip

    width = list_width(most + group - 1)
    lists, begins, lengths = _choose(
        score,
        keys,
        cells,
        starts,
        counts,
        heads=1,
        group=group,
        kept=most // group,
        width=width,
        partial=False,
    )
    return lists, begins[0], lengths[0]


def choose_blocks(
    q: Tensor,
    keys: Planes,
    cells: Tensor,
    starts: Tensor,
    counts: Tensor,
    block: int,
    most: int,
    local: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Choose the blocks of each row's cells for each head, as `Backend.choose_blocks`."""
    codes, scales, kind = keys
    heads = q.shape[1]

    def score(scores: Tensor, first: int, rows: int, bound: int) -> None:
        _score_blocks_kernel[(_programs(rows, bound), rows)](
            q, codes, scales, cells, starts, counts, scores, first, bound, most,
            int(kind), *q.shape[1:], block, local, _tile_of(heads), _CELLS, _COLUMNS, _precision(q),
            num_warps=_SCORING_WARPS, num_stages=_SCORING_STAGES,
        )  # fmt: skip

    width = list_width(block * most)
    return _choose(
        score, keys, cells, starts, counts, heads=heads, group=block, kept=most, width=width, partial=True
    )


def _choose(
    score: Any, keys: Planes, cells: Tensor, starts: Tensor, counts: Tensor,
    *, heads: int, group: int, kept: int, width: int, partial: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return lists of `kept` groups by their scores: `score` writes those of some rows at once."""
    rows = len(starts)
    lists = cells.new_empty(heads * rows * width)
    begins, lengths = cells.new_empty(2, heads, rows)
    # The cells of a list are distinct.
    bound = max(triton.cdiv(min(len(cells), len(keys[0])), group), 1)
    together = min(max(_MOST_SCORES // (heads * bound), 1), rows)
    scores = cells.new_empty(together, heads, bound)
    members = triton.next_power_of_2(group)
    for first in range(0, rows, together or 1):
        some = min(together, rows - first)
        score(scores, first, some, bound)
        _choose_kernel[(some, heads)](
            scores, cells, starts, counts, lists, begins, lengths, first, bound, rows, kept, width,
            heads, group, partial, members, _COUNTED, max(_WRITTEN, 16 * members), _SEARCH,
            num_warps=_CHOOSING_WARPS,
        )  # fmt: skip
    return lists, begins, lengths


def _programs(rows: int, tiles: int) -> int:
    """Return the programs that share the tiles of a row. No score depends on them."""
    return max(1, min(_PROGRAMS // rows, tiles))


def _tile_of(heads: int) -> int:
    """Return the tile's heads, a power of two that tensor cores multiply."""
    return max(triton.next_power_of_2(heads), 16)


def _precision(x: Tensor) -> str:
    """Return how float32 numbers are multiplied: with all their bits, on NVIDIA's tensor cores too."""
    return "tf32x3" if x.is_cuda and torch.version.hip is None else "ieee"


#: Heads, columns and cells of a group of published indexers: DeepSeek V3.2, GLM 5.3 Flash, Qwen 3.8 Flash.
_CHOOSING_CELLS = ((64, 128, 1), (32, 128, 4), (16, 128, 16))
#: Heads, columns and cells of a block: MiniMax M3.
_CHOOSING_BLOCKS = ((4, 128, 128),)
#: Targets by how their tensor cores multiply float32 numbers (`_precision`).
_NVIDIA, _AMD = ("sm_80", "sm_90", "sm_100"), ("gfx942", "gfx1100")


def variants() -> Iterable[Variant]:
    """Return the forms for the indexers of published models."""
    lists = {"cells": "*i32", "starts": "*i32", "counts": "*i32", "scores": "*i32"}
    numbers = {"first": "i32", "bound": "i32", "kept": "i32"}
    forms = [(*each, False) for each in _CHOOSING_CELLS] + [(*each, True) for each in _CHOOSING_BLOCKS]
    for heads, dim, group, blocks in forms:
        for kind, codes in CODES.items():
            if kind is not GGMLType.F16 and (heads, dim, group) != _CHOOSING_CELLS[0]:
                continue  # keys of other types are read alike in all forms: one shows that they compile
            sizes = {
                "KIND": int(kind), "HEADS": heads, "DIM": dim, "HEADS_TILE": _tile_of(heads),
                "CELLS": _CELLS, "COLUMNS": _COLUMNS,
                **({"BLOCK": group, "LOCAL": 1} if blocks else {"GROUP": group}),
            }  # fmt: skip
            given = {
                "q": "*fp32", "codes": codes, "scales": "*fp16" if kind.is_quantized else "constexpr",
                **lists, **numbers, **({} if blocks else {"weights": "*fp32"}),
            }  # fmt: skip
            for precision, targets in (("tf32x3", _NVIDIA), ("ieee", _AMD)):
                constants = {**sizes, "PRECISION": precision}
                yield Variant(
                    f"scores of {heads} heads, {'blocks' if blocks else 'groups'} of {group}, {kind.name}",
                    _score_blocks_kernel if blocks else _score_cells_kernel,
                    {**given, **dict.fromkeys(constants, "constexpr")},
                    constants | ({} if kind.is_quantized else {"scales": None}),
                    _SCORING_WARPS,
                    _SCORING_STAGES,
                    targets=targets,
                )
        members = triton.next_power_of_2(group)
        constants = {
            "HEADS": heads if blocks else 1, "GROUP": group, "PARTIAL": blocks, "MEMBERS": members,
            "COUNTED": _COUNTED, "WRITTEN": max(_WRITTEN, 16 * members), "SEARCH": _SEARCH,
        }  # fmt: skip
        yield Variant(
            f"choice of {'blocks' if blocks else 'groups'} of {group}",
            _choose_kernel,
            {
                **lists, **numbers, "rows": "i32", "width": "i32", "lists": "*i32", "begins": "*i32",
                "lengths": "*i32", **dict.fromkeys(constants, "constexpr"),
            },
            constants,
            _CHOOSING_WARPS,
        )  # fmt: skip

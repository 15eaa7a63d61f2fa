"""Attention over lists of cells: tiles of query rows, split over the cells where rows are few.

A program has a tile of queries, neighbouring rows times the heads that share a key/value head, and reads the
cells that any of them sees in blocks aligned in the table, keeping a running softmax for each query (as in
FlashAttention 2, Dao, arXiv:2307.08691). Where rows are few, each row's blocks are divided among programs,
and a second kernel combines their results in a fixed order.

A row's blocks, their division and their order follow from its own range alone. Blocks that a row does not see
leave its state unchanged to the bit, so its result does not depend on the rows it shares a tile with.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from puna.gguf import GGMLType
from puna.ops.gpu.kernels.cells import BF16, CODES, F32, Planes, number_at, read_tile
from puna.ops.gpu.kernels.variant import Variant

_LOG2_E = 1.4426950408889634
LOG2_E = tl.constexpr(_LOG2_E)
NO_ENTRY = tl.constexpr(2**31 - 1)

#: Rows up to which a batch is one of decoding: each row is a tile of its own.
DECODING_ROWS = 16
#: Rows up to which the cells of a prompt are split too: with fewer tiles, most multiprocessors would be idle.
SHORT_ROWS = 256


@dataclass(frozen=True)
class Configuration:
    """The tiles in which one shape of batch is computed.

    Bits depend on everything here except `stages` and, where they choose no other instructions, `warps` and
    `queries`.
    """

    queries: int  # rows of a tile: tokens times heads
    block: int  # cells read at once
    splits: int  # programs among which the cells of a row are divided
    least: int  # blocks, at least, for each of them
    parts: int  # numbers of the keys' type whose sum stands for a query or a share
    warps: int
    stages: int  # Triton gives half of them to the table, from which addresses come: 5 are 2 blocks in flight
    alone: bool = False  # a tile has the heads of one row only
    sharing: int = 0  # rows of the tiles where two launches share the work (see `_tiles`)
    single: tuple[int, int, int] | None = None  # queries, warps and stages of the launch for single rows

    def launches(self, shape: Shape) -> list[Configuration]:
        """Return the configurations of one launch, or of two that share the work."""
        rows = self.queries // min(shape.group, self.queries)
        if self.single is None or rows == 1:
            return [replace(self, single=None)]
        queries, warps, stages = self.single
        others = replace(self, single=None, sharing=rows)
        return [replace(others, queries=queries, warps=warps, stages=stages, alone=True), others]


def attention(
    q: Tensor,
    keys: Planes,
    values: Planes | int,
    cells: Tensor,
    starts: Tensor,
    counts: Tensor,
    scale: float,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
    bias: Tensor | None = None,
    places: Tensor | None = None,
    configuration: Configuration | None = None,
) -> Tensor:
    """Return attention [T, heads, value_dim] as `Backend.attention` defines it, for `q` [T, heads, dim].

    Shapes are not checked. Up to `DECODING_ROWS` rows, queries and shares are sums of two float16 numbers
    (three bfloat16 ones), which is float32's accuracy; above, they are rounded to one float16 number, or two
    bfloat16 ones: errors of about 5e-4 of the largest result. Quantised numbers are rounded to float16
    before they are multiplied. float32 caches are multiplied with float32's accuracy, in bfloat16
    parts.
    """
    rows, heads, dim = q.shape
    key_codes, key_scales, key_kind = keys
    if isinstance(values, int):
        value_codes, value_scales, value_kind, value_dim = None, None, key_kind, values
    else:
        value_codes, value_scales, value_kind = values
        value_dim = value_codes.shape[2] * (2 if value_kind is GGMLType.Q4_0 else 1)
    kv_heads = key_codes.shape[1]
    result = torch.empty(rows, heads, value_dim, dtype=torch.float32, device=q.device)
    if not result.numel():
        return result
    shape = Shape(heads, kv_heads, dim, value_dim, key_kind, value_kind, isinstance(values, int))
    family = family_of(q.device)
    chosen = configuration or choose(shape, rows, family)
    if chosen.splits > 1:
        partial = torch.empty(rows, heads, chosen.splits, value_dim, dtype=torch.float32, device=q.device)
        states = torch.empty(2, rows, heads, chosen.splits, dtype=torch.float32, device=q.device)
        largest, sums = states[0], states[1]
    else:
        partial, largest, sums = result, None, None
    for part in chosen.launches(shape):
        constants = shape.constants(part, family)
        tiles, groups = triton.cdiv(rows, constants["ROWS"]), kv_heads * constants["HEAD_TILES"]
        # Several programs share the runs of a tile, or the splits of a single row, while there are
        # multiprocessors for them. In a batch of decoding, there always are.
        programs = 16 if q.device.type == "cpu" else _PROGRAMS
        if constants["ROWS"] > 1:
            slots = min(constants["ROWS"], max(1, programs // (tiles * groups * part.splits)))
            grid = (groups, part.splits * slots, tiles)
        else:
            slots = min(part.splits, max(1, programs // (tiles * groups))) if part.sharing else part.splits
            grid = (groups, slots, tiles)
        _tiles[grid](
            q, key_codes, key_scales, value_codes, value_scales, cells, starts, counts, sinks, bias, places,
            partial, largest, sums, rows, scale / softcap if softcap else scale * _LOG2_E, softcap,
            0 if bias is None else bias.shape[1] // 2, slots,
            **constants, CAPPED=softcap != 0, num_warps=part.warps, num_stages=part.stages,
        )  # fmt: skip
    if chosen.splits > 1:
        width = min(triton.next_power_of_2(value_dim), _COMBINED)
        _combine[(heads, rows, triton.cdiv(value_dim, width))](
            partial, largest, sums, starts, counts, sinks, result,
            HEADS=heads, VALUE_DIM=value_dim, BLOCK=chosen.block, SPLITS=chosen.splits, LEAST=chosen.least,
            COLUMNS=width, num_warps=4,
        )  # fmt: skip
    return result


#: Programs beyond which more of them would only wait for each other, on the largest devices.
_PROGRAMS = 2048
#: Values that a program combines: 64 splits of them are 64 registers in each thread of four warps.
_COMBINED = 128


@dataclass(frozen=True)
class Shape:
    """The heads of a call and the types of its cells."""

    heads: int
    kv_heads: int
    dim: int
    value_dim: int
    keys: GGMLType
    values: GGMLType
    shared: bool = False  # values are the end of keys

    @property
    def group(self) -> int:
        """Query heads for each key/value head."""
        return self.heads // self.kv_heads

    def constants(self, chosen: Configuration, family: str) -> dict[str, Any]:
        """Return the constants of the kernel `_tiles`, but for `CAPPED`."""
        together = min(self.group, chosen.queries)
        # Keys wider than values are read in two tiles, the second being the value where it is shared: 576
        # numbers are 512 + 64, not 1024.
        rest = self.dim - self.value_dim
        if rest < 0 or (self.keys.is_quantized and rest % 32):
            rest = 0
        return {
            "HEADS": self.heads,
            "KV_HEADS": self.kv_heads,
            "DIM": self.dim,
            "VALUE_DIM": self.value_dim,
            "KEYS": int(self.keys),
            "VALUES": int(self.values),
            "SHARED": self.shared,
            "REST": rest,
            "REST_TILE": _columns(rest, self.keys),
            "KEY_TILE": _columns(self.dim - rest, self.keys),
            "VALUE_TILE": _columns(self.value_dim, self.values),
            "QUERIES": chosen.queries,
            "TOGETHER": together,
            "HEAD_TILES": triton.cdiv(self.group, together),
            "ROWS": 1 if chosen.alone else chosen.queries // together,
            "BLOCK": chosen.block,
            "SPLITS": chosen.splits,
            "LEAST": chosen.least,
            "PARTS": chosen.parts,
            "WIDEN": family == "cpu",
            "SHARING": chosen.sharing,
        }


def _columns(width: int, kind: GGMLType) -> int:
    """Return the columns of a tile: a power of two that tensor cores and blocks can fill."""
    return max(1 << (width - 1).bit_length(), 32 if kind.is_quantized else 16) if width else 0


@functools.cache
def family_of(device: torch.device) -> str:
    """Return the devices that a device is configured like: a key of `FAMILIES`, or `cpu`, the interpreter."""
    if device.type == "cpu":
        return "cpu"
    driver = triton.runtime.driver.active
    if torch.version.hip:
        return "cdna" if driver.get_current_target().warp_size == 64 else "rdna"
    index = torch.cuda.current_device() if device.index is None else device.index
    shared = driver.utils.get_device_properties(index)["max_shared_mem"]
    if shared < 200 << 10:
        return "ampere"
    return "hopper" if torch.cuda.get_device_capability(index) < (10, 0) else "blackwell"


#: Families of devices, and those that are compiled for ahead of time: NVIDIA's with over 200 KB of shared
#: memory for a program, of two generations, and with 99 KB or more; AMD's with matrix cores, and with those
#: of its graphics cards: 64 KB.
FAMILIES = {
    "hopper": ("sm_90",),
    "blackwell": ("sm_100",),
    "ampere": ("sm_80",),
    "cdna": ("gfx942",),
    "rdna": ("gfx1100",),
}

#: Tiles by the device, the width of heads and the numbers multiplied: of decoding as (block, warps, stages),
#: of prompts as (queries, block, warps, stages). Those of bfloat16 are float16's where they are not named.
#: The H200's were measured; the others were chosen for registers and shared memory as compiled.
_DECODING = {
    ("hopper", "narrow", "float16"): (64, 4, 5),
    ("hopper", "wide", "float16"): (32, 4, 5),
    ("hopper", "latent", "float16"): (16, 4, 5),
    ("hopper", "narrow", "float32"): (32, 4, 5),
    ("hopper", "wide", "float32"): (32, 4, 5),
    ("hopper", "latent", "float32"): (16, 4, 2),
    ("ampere", "narrow", "float16"): (64, 4, 5),
    ("ampere", "wide", "float16"): (32, 4, 5),
    ("ampere", "latent", "float16"): (16, 4, 5),
    ("ampere", "narrow", "float32"): (32, 4, 2),
    ("ampere", "wide", "float32"): (16, 4, 2),
    ("ampere", "latent", "float32"): (16, 4, 2),
    ("cdna", "narrow", "float16"): (64, 4, 2),
    ("cdna", "wide", "float16"): (32, 4, 2),
    ("cdna", "latent", "float16"): (16, 4, 1),
    ("cdna", "narrow", "float32"): (32, 4, 1),
    ("cdna", "wide", "float32"): (16, 4, 1),
    ("cdna", "latent", "float32"): (16, 4, 1),
    ("rdna", "narrow", "float16"): (32, 8, 2),
    ("rdna", "wide", "float16"): (32, 8, 1),
    ("rdna", "latent", "float16"): (16, 8, 1),
    ("rdna", "narrow", "float32"): (16, 8, 1),
    ("rdna", "wide", "float32"): (16, 8, 1),
    ("rdna", "latent", "float32"): (16, 8, 1),
}
_PROMPTS = {
    # 255 registers are not enough for narrow and wide float16, but nothing is spilled within a loop over
    # blocks: at most 56 registers before it, once for a run.
    ("hopper", "narrow", "float16"): (128, 64, 8, 5),
    ("hopper", "narrow", "bfloat16"): (128, 64, 8, 3),
    ("hopper", "wide", "float16"): (128, 32, 8, 2),
    ("hopper", "latent", "float16"): (32, 32, 8, 2),
    ("hopper", "narrow", "float32"): (64, 32, 4, 2),
    ("hopper", "wide", "float32"): (64, 32, 8, 2),
    ("hopper", "latent", "float32"): (16, 16, 8, 2),
    ("ampere", "narrow", "float16"): (128, 32, 8, 3),
    ("ampere", "narrow", "bfloat16"): (64, 32, 4, 3),
    ("ampere", "wide", "float16"): (64, 32, 8, 2),
    ("ampere", "latent", "float16"): (32, 32, 8, 2),
    ("ampere", "latent", "bfloat16"): (16, 32, 8, 2),
    ("ampere", "narrow", "float32"): (32, 32, 4, 2),
    ("ampere", "wide", "float32"): (32, 16, 4, 2),
    ("ampere", "latent", "float32"): (16, 16, 4, 2),
    ("cdna", "narrow", "float16"): (64, 64, 4, 2),
    ("cdna", "narrow", "bfloat16"): (64, 32, 4, 2),
    ("cdna", "wide", "float16"): (64, 32, 8, 2),
    ("cdna", "latent", "float16"): (16, 32, 8, 1),
    ("cdna", "narrow", "float32"): (32, 32, 4, 1),
    ("cdna", "wide", "float32"): (32, 16, 8, 1),
    ("cdna", "latent", "float32"): (16, 16, 8, 1),
    ("rdna", "narrow", "float16"): (64, 32, 8, 2),
    ("rdna", "wide", "float16"): (32, 32, 8, 1),
    ("rdna", "latent", "float16"): (16, 16, 8, 1),
    ("rdna", "narrow", "float32"): (16, 16, 8, 1),
    ("rdna", "wide", "float32"): (16, 16, 8, 1),
    ("rdna", "latent", "float32"): (16, 16, 8, 1),
}


def choose(shape: Shape, rows: int, family: str) -> Configuration:
    """Return the configuration for batches of `rows` rows on a family of devices."""
    wide = max(shape.dim, shape.value_dim)
    width = "narrow" if wide <= 128 else "wide" if wide <= 256 else "latent"
    types = (shape.keys, shape.values)
    numbers = "float32" if GGMLType.F32 in types else "bfloat16" if GGMLType.BF16 in types else "float16"
    alone = rows <= DECODING_ROWS
    parts = (2 if alone else 1) + (GGMLType.BF16 in types)
    if family == "cpu":  # small, so that small tests have many of everything
        if alone:
            return Configuration(16, 16, 4, 2, parts, 4, 1, alone=True)
        if rows <= SHORT_ROWS:
            return Configuration(32, 16, 2, 2, parts, 4, 1, single=(16, 4, 1))
        return Configuration(32, 16, 1, 2, parts, 4, 1)
    named = "float16" if numbers == "bfloat16" else numbers
    hopper = family == "hopper"
    if family == "blackwell":  # not measured
        family = "hopper"
    if alone:
        queries = 16 if width == "latent" else min(64, max(16, triton.next_power_of_2(shape.group)))
        programs = shape.kv_heads * triton.cdiv(shape.group, queries)
        # About four programs for each multiprocessor of the largest devices if a single row is decoded.
        splits = min(64, max(8, triton.next_power_of_2(512 // programs)))
        block, warps, stages = _DECODING[family, width, named]
        return Configuration(queries, block, splits, 2, parts, warps, stages, alone=True)
    tiles = _PROMPTS.get((family, width, numbers)) or _PROMPTS[family, width, named]
    queries, block, warps, stages = tiles
    if rows > SHORT_ROWS:
        return Configuration(queries, block, 1, 4, parts, warps, stages)
    # For the same bits, single rows are multiplied by the same instructions, and their shares are added up in
    # the same order: those of four warps with 64 rows, on Hopper, of which a tile of 128 has two.
    few = min(64, queries) if hopper else queries
    ahead = stages if numbers == "float32" else _DECODING[family, width, named][2]
    single = few, warps * few // queries, ahead
    return Configuration(queries, block, 16, 4, parts, warps, stages, single=single)


# Forms that differ by the alignment of a view, or by whether a size is 1, would be compiled for nothing.
@triton.jit(
    do_not_specialize=["rows", "reach", "slots"],
    do_not_specialize_on_alignment=["starts", "counts", "places"],
)
def _tiles(
    q,  # [T, HEADS, DIM]
    key_codes, key_scales, value_codes, value_scales, cells, starts, counts, sinks, bias, places,
    partial,  # [T, HEADS, SPLITS, VALUE_DIM], or the result if SPLITS is 1
    largest, sums,  # [T, HEADS, SPLITS]
    rows,
    factor,  # of scores, so that they are logarithms to the base 2; with a cap, arguments of its tanh
    softcap,
    reach,
    slots,  # programs for the runs of one tile, or for the splits of a single row
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, VALUE_DIM: tl.constexpr,
    KEYS: tl.constexpr, VALUES: tl.constexpr, SHARED: tl.constexpr,
    REST: tl.constexpr, REST_TILE: tl.constexpr, KEY_TILE: tl.constexpr, VALUE_TILE: tl.constexpr,
    QUERIES: tl.constexpr, TOGETHER: tl.constexpr, HEAD_TILES: tl.constexpr, ROWS: tl.constexpr,
    BLOCK: tl.constexpr, SPLITS: tl.constexpr, LEAST: tl.constexpr, PARTS: tl.constexpr,
    WIDEN: tl.constexpr, SHARING: tl.constexpr, CAPPED: tl.constexpr,
):  # fmt: skip
    """Compute a tile of ROWS rows and TOGETHER heads, for one division of their cells and some of their runs.

    A run is neighbouring rows whose lists overlap. Where ROWS is 1, a program computes some divisions of its
    row. The keys' first REST numbers are read apart. Two launches may share the work: of tiles of SHARING
    rows, one with ROWS 1 computes the runs of single rows, and one with ROWS as large the others.
    """
    GROUP: tl.constexpr = HEADS // KV_HEADS
    # Prompts' later rows see more cells: they are started first.
    tile = tl.num_programs(2) - 1 - tl.program_id(2)
    kv_head = tl.program_id(0) // HEAD_TILES
    split, slot = tl.program_id(1) % SPLITS, tl.program_id(1) // (1 if ROWS == 1 else SPLITS)
    query = tl.arange(0, QUERIES)
    in_tile, own_head = query // TOGETHER, tl.program_id(0) % HEAD_TILES * TOGETHER + query % TOGETHER
    row = tile * ROWS + in_tile
    valid = (in_tile < ROWS) & (row < rows) & (own_head < GROUP)
    head = kv_head * GROUP + own_head
    start = tl.load(starts + row, valid, 0)
    end = start + tl.load(counts + row, valid, 0)
    if ROWS == 1:
        run = tl.zeros([QUERIES], tl.int32)
        cells_begin, cells_end = tl.load(starts + tile), tl.load(starts + tile) + tl.load(counts + tile)
        found = tl.cdiv(cells_end, BLOCK) - cells_begin // BLOCK
        runs = 1  # the divisions that have cells
        if SPLITS > 1:
            runs = tl.cdiv(found, _blocks_of_split(found, SPLITS, LEAST))
            if slot >= runs:
                return
        if SHARING > 0:
            alone = _apart(starts, counts, tile, tile % SHARING > 0)
            alone &= _apart(starts, counts, tile + 1, (tile + 1) % SHARING > 0 and tile + 1 < rows)
            if not alone:
                return
    else:
        apart = _apart(starts, counts, row, valid & (in_tile > 0))
        run = tl.cumsum((valid & apart & (query % TOGETHER == 0)).to(tl.int32), 0) - 1
        runs = tl.max(run, 0) + 1
        if SHARING > 0:
            last = (in_tile + 1 == ROWS) | (row + 1 == rows)
            valid &= ~(apart & _apart(starts, counts, row + 1, valid & ~last))
            if tl.max(valid.to(tl.int32), 0) == 0:
                return
    place = end - 1
    if places is not None:
        place = tl.load(places + row, valid, 0)
    seen_count = end - start
    list_start, list_end = start, end
    sees = valid
    if ROWS > 1:
        start, end, sees = _cells_of_split(start, end, split, BLOCK, SPLITS, LEAST)
        sees &= valid

    own = (row.to(tl.int64) * HEADS + head) * DIM
    column = tl.arange(0, KEY_TILE)
    main = tl.load(
        q + own[:, None] + REST + number_at(column, KEYS)[None, :],
        valid[:, None] & (column < DIM - REST)[None, :],
        0.0,
    )
    main *= factor
    reached = tl.max(tl.abs(main), 1)
    if REST > 0:
        column = tl.arange(0, REST_TILE)
        rest = tl.load(
            q + own[:, None] + number_at(column, KEYS)[None, :],
            valid[:, None] & (column < REST)[None, :],
            0.0,
        )
        rest *= factor
        reached = tl.maximum(reached, tl.max(tl.abs(rest), 1))
    else:
        rest = main
    # Queries are divided by a power of two, for float16's range; scores are multiplied by it again.
    unit = tl.full([QUERIES], 1.0, tl.float32)
    if KEYS != F32:
        exponent = reached.to(tl.int32, bitcast=True) & 0x7F800000
        exponent = tl.minimum(tl.maximum(exponent, 27 << 23), 227 << 23)
        unit = exponent.to(tl.float32, bitcast=True)
        inverse = ((254 << 23) - exponent).to(tl.float32, bitcast=True)
        main *= inverse[:, None]
        rest *= inverse[:, None]
    mains = _in_parts(main, KEYS, WIDEN)
    rests = _in_parts(rest, KEYS, WIDEN)
    bias_of_head = bias
    if bias is not None:
        bias_of_head = bias + head * (2 * reach + 1) + reach

    value_column = number_at(tl.arange(0, VALUE_TILE), VALUES)
    for index in range(slot, runs, slots):
        mine = sees & (run == index)
        if ROWS == 1:
            split = index
            start, end, mine = _cells_of_split(list_start, list_end, split, BLOCK, SPLITS, LEAST)
            mine &= valid
        begin = tl.min(tl.where(mine, start, NO_ENTRY), 0)
        stop = tl.max(tl.where(mine, end, 0), 0)
        first_block = tl.where(stop > 0, begin // BLOCK, 0)
        last_block = tl.cdiv(stop, BLOCK)
        top = tl.full([QUERIES], float("-inf"), tl.float32)
        total = tl.zeros([QUERIES], tl.float32)
        mixed = tl.zeros([QUERIES, VALUE_TILE], tl.float32)
        # Only blocks at the ends are not seen by all rows of the run.
        first_full = tl.cdiv(tl.max(tl.where(mine, start, 0), 0), BLOCK)
        first_full = tl.minimum(tl.maximum(first_full, first_block), last_block)
        last_full = tl.min(tl.where(mine, end, NO_ENTRY), 0) // BLOCK
        last_full = tl.minimum(tl.maximum(last_full, first_full), last_block)
        # The heads of a single row see the same.
        bounds = (first_block, last_block if ROWS == 1 else first_full, last_full, last_block)
        for phase in tl.static_range(1 if ROWS == 1 else 3):
            top, total, mixed = _attend(
                top, total, mixed, bounds[phase], bounds[phase + 1], mine, start, end, begin, stop, place,
                mains, rests, unit, key_codes, key_scales, value_codes, value_scales, cells, bias_of_head,
                softcap, reach, kv_head, phase != 1, KV_HEADS, DIM, VALUE_DIM, KEYS, VALUES, SHARED, REST,
                REST_TILE, KEY_TILE, VALUE_TILE, ROWS, BLOCK, PARTS, WIDEN, CAPPED,
            )  # fmt: skip
        at = row.to(tl.int64) * HEADS + head
        inside = (value_column < VALUE_DIM)[None, :]
        if SPLITS > 1:
            # Divisions without cells are not read either.
            tl.store(
                partial + (at * SPLITS + split)[:, None] * VALUE_DIM + value_column[None, :],
                mixed,
                mine[:, None] & inside,
            )
            tl.store(largest + at * SPLITS + split, top, mine)
            tl.store(sums + at * SPLITS + split, total, mine)
        else:
            if sinks is not None:
                sink = tl.load(sinks + head, valid, 0.0) * LOG2_E
                highest = tl.maximum(top, sink)
                shrink = tl.math.exp2(top - highest)
                total = total * shrink + tl.math.exp2(sink - highest)
                mixed *= shrink[:, None]
            divided = mixed / tl.where(seen_count > 0, total, 1.0)[:, None]
            divided = tl.where((seen_count > 0)[:, None], divided, 0.0)
            tl.store(
                partial + at[:, None] * VALUE_DIM + value_column[None, :],
                divided,
                (valid & (run == index))[:, None] & inside,
            )


@triton.jit
def _apart(starts, counts, row, follows):
    """Return whether the lists of rows `row` and `row - 1` have no entry in common, or neither `follows`."""
    start, before = tl.load(starts + row, follows, 0), tl.load(starts + row - 1, follows, 0)
    end = start + tl.load(counts + row, follows, 0)
    end_before = before + tl.load(counts + row - 1, follows, 0)
    return tl.maximum(start, before) >= tl.minimum(end, end_before)


@triton.jit
def _cells_of_split(start, end, split, BLOCK: tl.constexpr, SPLITS: tl.constexpr, LEAST: tl.constexpr):
    """Return the part of lists [start, end) that is one division of them, and whether it has cells."""
    first, blocks = start // BLOCK, tl.where(end > start, tl.cdiv(end, BLOCK) - start // BLOCK, 0)
    if SPLITS > 1:
        share = _blocks_of_split(blocks, SPLITS, LEAST)
        first += split * share
        blocks = tl.minimum(tl.maximum(blocks - split * share, 0), share)
        start = tl.maximum(start, first * BLOCK)
        end = tl.minimum(end, (first + blocks) * BLOCK)
    return start, end, blocks > 0


@triton.jit
def _blocks_of_split(blocks, SPLITS: tl.constexpr, LEAST: tl.constexpr):
    """Return into how many blocks each split a row's `blocks` are divided."""
    return tl.maximum(tl.cdiv(blocks, SPLITS), LEAST)


@triton.jit
def _attend(
    top, total, mixed,  # the running softmax: largest score, sum of shares, sum of shares times values
    first_block, last_block,
    mine, start, end,  # [QUERIES]
    begin, stop,  # all that rows of the run see
    place, mains, rests, unit,
    key_codes, key_scales, value_codes, value_scales, cells, bias_of_head, softcap, reach, kv_head,
    MASKED: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, VALUE_DIM: tl.constexpr,
    KEYS: tl.constexpr, VALUES: tl.constexpr, SHARED: tl.constexpr,
    REST: tl.constexpr, REST_TILE: tl.constexpr, KEY_TILE: tl.constexpr, VALUE_TILE: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr,
    WIDEN: tl.constexpr, CAPPED: tl.constexpr,
):  # fmt: skip
    """Add blocks [first_block, last_block) to the running softmax of the rows that are `mine`.

    Unless MASKED, all of them see all of these cells, and other rows are left with nonsense.
    """
    QUERIES: tl.constexpr = top.shape[0]
    for block in range(first_block, last_block):
        entry = block * BLOCK + tl.arange(0, BLOCK)
        listed = (entry >= begin) & (entry < stop) if MASKED else tl.full([BLOCK], True, tl.int1)
        cell = (tl.load(cells + entry, listed, 0) if MASKED else tl.load(cells + entry)).to(tl.int64)
        key = read_tile(
            key_codes, key_scales, cell, listed, kv_head, KEYS, KV_HEADS, DIM, REST, DIM - REST, BLOCK,
            KEY_TILE, WIDEN,
        )  # fmt: skip
        score = tl.zeros([QUERIES, BLOCK], tl.float32)
        if REST > 0:
            before = read_tile(
                key_codes, key_scales, cell, listed, kv_head, KEYS, KV_HEADS, DIM, 0, REST, BLOCK, REST_TILE,
                WIDEN,
            )  # fmt: skip
            score = _product(rests, tl.trans(before), score, PARTS, WIDEN)
        score = _product(mains, tl.trans(key), score, PARTS, WIDEN) * unit[:, None]
        if CAPPED:
            # tanh(x) is 1 - 2 / (1 + e^2x), also where e^2x overflows.
            # No product is last: it would be fused with the difference below unless MASKED, for other bits.
            limit = softcap * LOG2_E
            score = limit - 2.0 * limit / (1.0 + tl.math.exp2(score * (2.0 * LOG2_E)))
        if bias_of_head is not None:
            distance = tl.minimum(tl.maximum(entry[None, :] - place[:, None], -reach), reach)
            score += LOG2_E * tl.load(bias_of_head[:, None] + distance, mine[:, None], 0.0)
        if MASKED:
            seen = mine[:, None] & (entry >= start[:, None]) & (entry < end[:, None])
            score = tl.where(seen, score, float("-inf"))
        highest = tl.maximum(top, tl.max(score, 1))
        base = tl.where(highest == float("-inf"), 0.0, highest)
        shares = tl.math.exp2(score - base[:, None])
        shrink = tl.math.exp2(top - base)
        total = total * shrink + tl.sum(shares, 1)
        mixed *= shrink[:, None]
        top = highest
        if SHARED:
            value = key
        else:
            value = read_tile(
                value_codes, value_scales, cell, listed, kv_head, VALUES, KV_HEADS, VALUE_DIM, 0, VALUE_DIM,
                BLOCK, VALUE_TILE, WIDEN,
            )  # fmt: skip
        if MASKED and ROWS > 1:
            # A share of 0 times a value that is not finite would be NaN, for rows that do not see it.
            finite = value * 0.0 == 0.0
            spoils = tl.sum(tl.where(finite, 0.0, float("nan")), 1)
            total += tl.sum(tl.where(seen, spoils[None, :], 0.0), 1)
            value = tl.where(finite, value, 0.0).to(value.dtype)
        mixed = _product(_in_parts(shares, VALUES, WIDEN), value, mixed, PARTS, WIDEN)
    return top, total, mixed


@triton.jit
def _in_parts(x, KIND: tl.constexpr, WIDEN: tl.constexpr):
    """Return numbers of the type that tiles of KIND have, whose sum is nearly `x` float32.

    They are three, of which not all need be used. float32 is its own only part.
    """
    first = x
    second = x
    third = x
    if KIND != F32 and not (KIND == BF16 and WIDEN):
        TYPE: tl.constexpr = tl.bfloat16 if KIND == BF16 else tl.float16
        first = x.to(TYPE)
        left = x - first.to(tl.float32)
        second = left.to(TYPE)
        third = (left - second.to(tl.float32)).to(TYPE)
    return first, second, third


@triton.jit
def _product(parts, y, total, PARTS: tl.constexpr, WIDEN: tl.constexpr):
    """Return `total + x @ y`, x being the sum of the first PARTS of `parts`."""
    first, second, third = parts
    if y.dtype == tl.float32:
        # Six products of bfloat16 parts have float32's accuracy, on every kind of device.
        total = tl.dot(first, y, total, input_precision="ieee" if WIDEN else "bf16x6")
    else:
        total = tl.dot(first, y, total)
        if PARTS > 1:
            total = tl.dot(second, y, total)
        if PARTS > 2:
            total = tl.dot(third, y, total)
    return total


@triton.jit(do_not_specialize_on_alignment=["starts", "counts"])
def _combine(
    partial,  # [T, HEADS, SPLITS, VALUE_DIM]
    largest, sums,  # [T, HEADS, SPLITS]
    starts, counts, sinks, result,
    HEADS: tl.constexpr, VALUE_DIM: tl.constexpr, BLOCK: tl.constexpr, SPLITS: tl.constexpr,
    LEAST: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Add up what the splits of a row's cells found, for COLUMNS values of one head."""
    head, row = tl.program_id(0), tl.program_id(1)
    start, count = tl.load(starts + row), tl.load(counts + row)
    at = (row.to(tl.int64) * HEADS + head) * SPLITS
    column = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < VALUE_DIM
    target = result + (row.to(tl.int64) * HEADS + head) * VALUE_DIM + column
    blocks = tl.where(count > 0, tl.cdiv(start + count, BLOCK) - start // BLOCK, 0)
    split = tl.arange(0, SPLITS)
    used = split < tl.cdiv(blocks, _blocks_of_split(blocks, SPLITS, LEAST))
    top = tl.load(largest + at + split, used, float("-inf"))
    total = tl.load(sums + at + split, used, 0.0)
    mixed = tl.load(
        partial + (at + split)[:, None] * VALUE_DIM + column[None, :], used[:, None] & inside[None, :], 0.0
    )
    highest = tl.max(top, 0)
    sink = float("-inf")
    if sinks is not None:
        sink = tl.load(sinks + head) * LOG2_E
        highest = tl.maximum(highest, sink)
    base = tl.where(highest == float("-inf"), 0.0, highest)
    shrink = tl.math.exp2(top - base)
    whole = tl.sum(total * shrink, 0)
    if sinks is not None:
        whole += tl.math.exp2(sink - base)
    divided = tl.sum(mixed * shrink[:, None], 0) / tl.where(count > 0, whole, 1.0)
    tl.store(target, tl.where(count > 0, divided, 0.0), inside)


def variants() -> Iterable[Variant]:
    """Yield the kernels' forms: each pair of types that people use, and heads of models of each kind."""
    pairs = [(kind, kind) for kind in CODES] + [(GGMLType.Q8_0, GGMLType.Q4_0)]
    shapes = [Shape(32, 8, 128, 128, *pair) for pair in pairs]
    shapes += [Shape(32, 32, 80, 80, *pairs[1]), Shape(16, 8, 256, 256, *pairs[1])]
    shapes += [Shape(40, 8, 192, 128, *pairs[1]), Shape(64, 8, 64, 64, *pairs[1])]
    shapes += [Shape(heads, 1, 576, 512, kind, kind, True) for heads in (16, 128) for kind in CODES]
    for family in FAMILIES:
        for shape in shapes:
            for rows in (1, DECODING_ROWS + 1, SHORT_ROWS + 1):
                for part in choose(shape, rows, family).launches(shape):
                    yield _variant(family, shape, rows, part)
        for options in ({"softcap": True}, {"sinks": True}, {"bias": True, "places": True}):
            for rows in (1, SHORT_ROWS + 1):
                yield _variant(family, shapes[1], rows, choose(shapes[1], rows, family), **options)
    for value_dim in (128, 512):
        signature = {
            "partial": "*fp32", "largest": "*fp32", "sums": "*fp32", "starts": "*i32", "counts": "*i32",
            "sinks": "constexpr", "result": "*fp32",
        }  # fmt: skip
        constants = {
            "HEADS": 32, "VALUE_DIM": value_dim, "BLOCK": 64, "SPLITS": 64, "LEAST": 2,
            "COLUMNS": min(value_dim, _COMBINED),
        }  # fmt: skip
        signature |= dict.fromkeys(constants, "constexpr")
        yield Variant(f"combine {value_dim}", _combine, signature, {"sinks": None, **constants}, 4)


def _variant(
    family: str,
    shape: Shape,
    rows: int,
    chosen: Configuration,
    softcap: bool = False,
    sinks: bool = False,
    bias: bool = False,
    places: bool = False,
) -> Variant:
    """Return a form of `_tiles` that a call of `rows` rows compiles for a family of devices."""
    split, quantized = chosen.splits > 1, (shape.keys.is_quantized, shape.values.is_quantized)
    types: dict[str, str | None] = {
        "q": "*fp32", "key_codes": CODES[shape.keys], "key_scales": "*fp16" if quantized[0] else None,
        "value_codes": None if shape.shared else CODES[shape.values],
        "value_scales": "*fp16" if quantized[1] and not shape.shared else None,
        "cells": "*i32", "starts": "*i32", "counts": "*i32", "sinks": "*fp32" if sinks else None,
        "bias": "*fp32" if bias else None, "places": "*i32" if places else None, "partial": "*fp32",
        "largest": "*fp32" if split else None, "sums": "*fp32" if split else None, "rows": "i32",
        "factor": "fp32", "softcap": "fp32", "reach": "i32", "slots": "i32",
    }  # fmt: skip
    constants = {**shape.constants(chosen, family), "CAPPED": softcap}
    options = ("cap", softcap), ("sinks", sinks), ("bias", bias), ("single", chosen.alone and rows > 1)
    names = [name for name, on in options if on]
    heads = f"{shape.heads}/{shape.kv_heads} of {shape.dim}/{shape.value_dim}"
    return Variant(
        " ".join([f"attention {shape.keys.name} {shape.values.name} {heads}, {rows} rows", *names]),
        _tiles,
        {name: type or "constexpr" for name, type in types.items()} | dict.fromkeys(constants, "constexpr"),
        {name: None for name, type in types.items() if type is None} | constants,
        chosen.warps,
        chosen.stages,
        targets=FAMILIES[family],
    )

"""Layers with a state: short convolutions, pools of recent rows, linear attention and selective scans.

Row t continues the sequence that began at row `starts[t]` from the state `sources[t]`, and leaves its state
in `targets[t]` if that is not negative. Where a state depends on the one before it, the rows of a sequence
are computed one after another, so that a row has the same bits however its sequence is split into batches.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from puna.ops.gpu.kernels import elementary
from puna.ops.gpu.kernels.variant import Variant

#: The most segments that a batch's rows are split into; a program computes the sequences that begin in one.
#: Up to 64 sequences that decode are computed at once, and a prompt leaves few programs with nothing to do.
SEGMENTS = 64
#: Rows whose starts are looked at together.
_SEARCH = 128


# --- short convolutions --------------------------------------------------------------------------------


@dataclass(frozen=True)
class ConvTile:
    """The rows and channels of a program's tile, powers of two, and its warps."""

    rows: int
    channels: int = 256
    warps: int = 4


#: Few rows: more programs. Many: neighbours read the same inputs.
CONV_TILES = {"decode": ConvTile(1), "prompt": ConvTile(4)}


@triton.jit(do_not_specialize=["rows"])
def _short_conv_kernel(
    projected, weight, bias, states, starts, sources, targets, result, rows, channels,
    TAPS: tl.constexpr, GATED: tl.constexpr, ACTIVATED: tl.constexpr, ROWS: tl.constexpr,
    CHANNELS: tl.constexpr,
):  # fmt: skip
    """Convolve rows of `projected` [rows, channels], or [rows, 3 * channels].

    The states are [slots, TAPS - 1, channels].
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    real, wide = row < rows, row.to(tl.int64)
    inside = real[:, None] & (channel < channels)[None, :]
    stride = 3 * channels if GATED else channels
    start = tl.load(starts + row, real, 0)
    before = states + tl.load(sources + row, real, 0).to(tl.int64)[:, None] * (TAPS - 1) * channels
    target = tl.load(targets + row, real, -1)
    after = states + target.to(tl.int64)[:, None] * (TAPS - 1) * channels
    kept = inside & (target >= 0)[:, None]
    total = tl.zeros((ROWS, CHANNELS), tl.float32)
    if bias is not None:
        total += tl.load(bias + channel, channel < channels, 0.0)[None, :]
    for tap in tl.static_range(TAPS):
        other = row - (TAPS - 1) + tap
        own = inside & (other >= start)[:, None]
        at = projected + other.to(tl.int64)[:, None] * stride + channel[None, :]
        recent = tl.load(at, own, 0.0)
        if GATED:
            recent *= tl.load(at + 2 * channels, own, 0.0)
        if tap < TAPS - 1:
            place = other - start + (TAPS - 1)
            old = tl.load(before + place[:, None] * channels + channel[None, :], inside & ~own, 0.0)
            recent = tl.where(own, recent, old)
        if tap > 0:
            tl.store(after + (tap - 1) * channels + channel[None, :], recent, kept)
        factor = tl.load(weight + tap * channels + channel, channel < channels, 0.0)
        total = tl.fma(recent, factor[None, :], total)
    if GATED:
        at = projected + wide[:, None] * stride + channel[None, :]
        total *= tl.load(at + channels, inside, 0.0)
    elif ACTIVATED:
        total *= elementary.sigmoid(total)
    tl.store(result + wide[:, None] * channels + channel[None, :], total, inside)


def short_conv(
    projected: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    states: Tensor,
    starts: Tensor,
    sources: Tensor,
    targets: Tensor,
    *,
    gated: bool = True,
    activated: bool = True,
) -> Tensor:
    """Convolve channels over the rows of each sequence: [T, channels], as `Backend.short_conv`.

    projected [T, 3 * channels] if `gated`, else [T, channels]; weight [taps, channels]; bias [channels];
    states [slots, taps - 1, channels], updated; starts, sources and targets int32 [T].
    """
    taps, channels = weight.shape
    rows = len(projected)
    result = projected.new_empty(rows, channels)
    if rows:
        tile = CONV_TILES["decode" if rows <= 16 else "prompt"]
        _short_conv_kernel[(triton.cdiv(rows, tile.rows), triton.cdiv(channels, tile.channels))](
            projected, weight, bias, states, starts, sources, targets, result, rows, channels, taps, gated,
            activated, tile.rows, tile.channels, num_warps=tile.warps,
        )  # fmt: skip
    return result


# --- pools of recent rows ------------------------------------------------------------------------------


@triton.jit
def _recent(rows, states, own, inside, other, channel, channels, place, BEGIN: tl.constexpr):
    """Return a tile of `rows` [rows, channels], or before a batch's own ones of states [.., 2 * channels].

    BEGIN is 0 for the first half of the states' columns, and 1 for the second.
    """
    new = tl.load(rows + other.to(tl.int64)[:, None] * channels + channel[None, :], own, 0.0)
    at = place[:, None] * (2 * channels) + (BEGIN * channels + channel)[None, :]
    return tl.where(own, new, tl.load(states + at, inside & ~own, 0.0))


@triton.jit(do_not_specialize=["rows"])
def _pool_recent_kernel(
    values, gates, bias, states, starts, sources, targets, result, rows, channels,
    TAPS: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Pool each row of `values` [rows, channels] with the TAPS - 1 before it, by `gates` [rows, channels].

    The states are [slots, TAPS - 1, 2 * channels]: values, then gates.
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    real = row < rows
    inside = real[:, None] & (channel < channels)[None, :]
    start = tl.load(starts + row, real, 0)
    before = states + tl.load(sources + row, real, 0).to(tl.int64)[:, None] * (TAPS - 1) * (2 * channels)
    target = tl.load(targets + row, real, -1)
    after = states + target.to(tl.int64)[:, None] * (TAPS - 1) * (2 * channels) + channel[None, :]
    kept = inside & (target >= 0)[:, None]
    largest = tl.full((ROWS, CHANNELS), float("-inf"), tl.float32)
    for tap in range(TAPS):  # unrolled, it would need too many registers
        other = row - (TAPS - 1) + tap
        own, place = inside & (other >= start)[:, None], other - start + (TAPS - 1)
        gate = _recent(gates, before, own, inside, other, channel, channels, place, 1)
        tl.store(after + (tap - 1) * (2 * channels) + channels, gate, kept & (tap > 0))
        gate += tl.load(bias + tap * channels + channel, channel < channels, 0.0)[None, :]
        largest = tl.maximum(largest, gate)
    total = tl.zeros((ROWS, CHANNELS), tl.float32)
    pooled = tl.zeros((ROWS, CHANNELS), tl.float32)
    for tap in range(TAPS):
        other = row - (TAPS - 1) + tap
        own, place = inside & (other >= start)[:, None], other - start + (TAPS - 1)
        gate = _recent(gates, before, own, inside, other, channel, channels, place, 1)
        gate += tl.load(bias + tap * channels + channel, channel < channels, 0.0)[None, :]
        value = _recent(values, before, own, inside, other, channel, channels, place, 0)
        tl.store(after + (tap - 1) * (2 * channels), value, kept & (tap > 0))
        share = elementary.exp(gate - largest)
        total += share
        pooled = tl.fma(share, value, pooled)
    at = result + row.to(tl.int64)[:, None] * channels + channel[None, :]
    tl.store(at, tl.div_rn(pooled, total), inside)


def pool_recent(
    values: Tensor,
    gates: Tensor,
    bias: Tensor,
    states: Tensor,
    starts: Tensor,
    sources: Tensor,
    targets: Tensor,
) -> Tensor:
    """Pool each row with those before it: [T, channels], as `Backend.pool_recent`.

    values and gates [T, channels]; bias [taps, channels]; states [slots, taps - 1, 2 * channels], updated;
    starts, sources and targets int32 [T].
    """
    taps, channels = bias.shape
    rows, result = len(values), torch.empty_like(values)
    if result.numel():
        tile = CONV_TILES["decode" if rows <= 16 else "prompt"]
        _pool_recent_kernel[(triton.cdiv(rows, tile.rows), triton.cdiv(channels, tile.channels))](
            values, gates, bias, states, starts, sources, targets, result, rows, channels, taps,
            tile.rows, tile.channels, num_warps=tile.warps,
        )  # fmt: skip
    return result


# --- the sequences of a segment ------------------------------------------------------------------------


@triton.jit
def _first_start(starts, begin, end, rows, SEARCH: tl.constexpr):
    """Return the first row in [begin, end) that begins a sequence, or else `rows`."""
    found, at = rows, begin
    while at < end and found == rows:
        row = at + tl.arange(0, SEARCH)
        start = tl.load(starts + row, row < end, -1)
        found = tl.min(tl.where(start == row, row, rows))
        at += SEARCH
    return found


@triton.jit
def _rows_of_segment(starts, rows, segment, SEARCH: tl.constexpr):
    """Return the bounds of the rows of all sequences that begin in this program's segment."""
    begin = tl.program_id(0) * segment
    end = tl.minimum(begin + segment, rows)
    first = _first_start(starts, begin, end, rows, SEARCH)
    last = rows
    if first < rows:
        last = _first_start(starts, end, rows, rows, SEARCH)
    return first, last


def _segments(rows: int) -> tuple[int, int]:
    """Return the number of segments of a batch, and the rows of each."""
    each = triton.cdiv(rows, SEGMENTS)
    return triton.cdiv(rows, each), each


# --- linear attention ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class MemoryTile:
    """The columns of a memory that a program holds, a power of two, and its warps.

    One warp needs no barriers for its sums over keys. The tile must not depend on the batch: the order of the
    sums follows from it.
    """

    columns: int
    warps: int


def memory_tile_for(key_dim: int, value_dim: int) -> MemoryTile:
    """Return the tile for memories [key_dim, value_dim]: 32 registers for each thread of one warp.

    With heads of 128 keys and values, 32 of them are 512 warps: enough for the 132 times 4 schedulers of an
    H200. Columns take at least 16 bytes of each row of the memory.
    """
    keys = triton.next_power_of_2(key_dim)
    columns = min(triton.next_power_of_2(value_dim), max(4, 1024 // keys))
    return MemoryTile(columns, max(1, keys * columns // 2048))


@triton.jit
def _attention_row(
    queries, keys, values, decays, betas, probes, removals, starts, sources, targets, row, head, key_head, i,
    column, real, shown,
    HEADS: tl.constexpr, KEY_HEADS: tl.constexpr, KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr,
    OF_KEYS: tl.constexpr,
):  # fmt: skip
    """Load all that a row has but the memory. Absent arrays are replaced by others, which are not used."""
    wide = row.to(tl.int64)
    of_key, of_head = (wide * KEY_HEADS + key_head) * KEY_DIM + i, wide * HEADS + head
    query, key = tl.load(queries + of_key, real, 0.0), tl.load(keys + of_key, real, 0.0)
    value = tl.load(values + of_head * VALUE_DIM + column, shown, 0.0)
    if OF_KEYS:
        decay = tl.load(decays + of_head * KEY_DIM + i, real, 0.0)
    else:
        decay = tl.load(decays + of_head)
    beta = 1.0
    if betas is not None:
        beta = tl.load(betas + of_head)
    probe, removal = query, key
    if probes is not None:
        probe, removal = tl.load(probes + of_key, real, 0.0), tl.load(removals + of_key, real, 0.0)
    start, source, target = tl.load(starts + row), tl.load(sources + row), tl.load(targets + row)
    return query, key, value, decay, beta, probe, removal, start, source, target


@triton.jit
def _attend(
    memory, given, skip, states, result, row, head, cell, column, inside, shown,
    HEADS: tl.constexpr, KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr, OF_KEYS: tl.constexpr,
    DELTA: tl.constexpr, REMOVES: tl.constexpr,
):  # fmt: skip
    """Return the memory after a row that has `given`; store its result, and the memory if it has a target.

    A row needs only sums over the memory M before it, which do not wait for one another: with the factors f =
    exp(decay), M becomes f * M - outer(r, p @ M) + outer(k, added), so that the row's result, q @ M, is
    (q * f) @ M - (q @ r) * (p @ M) + (q @ k) * added.
    """
    query, key, value, decay, beta, probe, removal, start, source, target = given
    size: tl.constexpr = HEADS * KEY_DIM * VALUE_DIM
    if start == row:
        memory = tl.load(states + source.to(tl.int64) * size + cell, inside, 0.0)
    factor = elementary.exp(decay)
    factors = factor[:, None] if OF_KEYS else factor
    answer = tl.sum((query * factor)[:, None] * memory, 0)
    added = value
    if DELTA:
        added -= tl.sum((key * factor)[:, None] * memory, 0)
    added *= beta
    answer = tl.fma(tl.sum(query * key), added, tl.fma(skip, value, answer))
    after = tl.fma(key[:, None], added[None, :], factors * memory)
    if REMOVES:
        lost = tl.sum(probe[:, None] * memory, 0)
        answer = tl.fma(-tl.sum(query * removal), lost, answer)
        after = tl.fma(-removal[:, None], lost[None, :], after)
    tl.store(result + (row.to(tl.int64) * HEADS + head) * VALUE_DIM + column, answer, shown)
    if target >= 0:
        tl.store(states + target.to(tl.int64) * size + cell, after, inside)
    return after


@triton.jit(do_not_specialize=["rows", "segment"])
def _linear_attention_kernel(
    queries, keys, values, decays, betas, skips, probes, removals, states, starts, sources, targets, result,
    rows, segment,
    HEADS: tl.constexpr, KEY_HEADS: tl.constexpr, KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr,
    OF_KEYS: tl.constexpr, DELTA: tl.constexpr, TILED: tl.constexpr, KEYS: tl.constexpr,
    COLUMNS: tl.constexpr, SEARCH: tl.constexpr,
):  # fmt: skip
    """Compute some columns of a head of the sequences of a segment, with their memory in registers."""
    pieces: tl.constexpr = (VALUE_DIM + COLUMNS - 1) // COLUMNS
    REMOVES: tl.constexpr = probes is not None
    head, piece = tl.program_id(1) // pieces, tl.program_id(1) % pieces
    key_head = head % KEY_HEADS if TILED else head * KEY_HEADS // HEADS
    i, column = tl.arange(0, KEYS), piece * COLUMNS + tl.arange(0, COLUMNS)
    real, shown = i < KEY_DIM, column < VALUE_DIM
    inside = real[:, None] & shown[None, :]
    cell = head * KEY_DIM * VALUE_DIM + i[:, None] * VALUE_DIM + column[None, :]
    skip = 0.0 if skips is None else tl.load(skips + head)
    memory = tl.zeros((KEYS, COLUMNS), tl.float32)
    row, last = _rows_of_segment(starts, rows, segment, SEARCH)
    if row < last:
        # Two rows are computed while the next two are loaded, which takes longer than to compute one.
        first = _attention_row(
            queries, keys, values, decays, betas, probes, removals, starts, sources, targets, row, head,
            key_head, i, column, real, shown, HEADS, KEY_HEADS, KEY_DIM, VALUE_DIM, OF_KEYS,
        )  # fmt: skip
        second = _attention_row(
            queries, keys, values, decays, betas, probes, removals, starts, sources, targets,
            tl.minimum(row + 1, last - 1), head, key_head, i, column, real, shown, HEADS, KEY_HEADS, KEY_DIM,
            VALUE_DIM, OF_KEYS,
        )  # fmt: skip
        while row < last:
            third = _attention_row(
                queries, keys, values, decays, betas, probes, removals, starts, sources, targets,
                tl.minimum(row + 2, last - 1), head, key_head, i, column, real, shown, HEADS, KEY_HEADS,
                KEY_DIM, VALUE_DIM, OF_KEYS,
            )  # fmt: skip
            fourth = _attention_row(
                queries, keys, values, decays, betas, probes, removals, starts, sources, targets,
                tl.minimum(row + 3, last - 1), head, key_head, i, column, real, shown, HEADS, KEY_HEADS,
                KEY_DIM, VALUE_DIM, OF_KEYS,
            )  # fmt: skip
            memory = _attend(
                memory, first, skip, states, result, row, head, cell, column, inside, shown, HEADS, KEY_DIM,
                VALUE_DIM, OF_KEYS, DELTA, REMOVES,
            )  # fmt: skip
            if row + 1 < last:
                memory = _attend(
                    memory, second, skip, states, result, row + 1, head, cell, column, inside, shown, HEADS,
                    KEY_DIM, VALUE_DIM, OF_KEYS, DELTA, REMOVES,
                )  # fmt: skip
            first, second = third, fourth
            row += 2


def linear_attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    decays: Tensor,
    betas: Tensor | None,
    skips: Tensor | None,
    states: Tensor,
    starts: Tensor,
    sources: Tensor,
    targets: Tensor,
    *,
    delta: bool = False,
    removal: tuple[Tensor, Tensor] | None = None,
    tiled: bool = False,
) -> Tensor:
    """Compute attention with one matrix per head as its memory, as `Backend.linear_attention`.

    queries, keys and the two of `removal` [T, key_heads, key_dim]; values [T, heads, value_dim]; decays
    [T, heads], or [T, heads, key_dim]; betas [T, heads]; skips [heads]; states [slots, heads, key_dim,
    value_dim], updated; starts, sources and targets int32 [T]; result [T, heads, value_dim].
    """
    rows, heads, value_dim = values.shape
    key_heads, key_dim = keys.shape[1:]
    result = torch.empty_like(values)
    if rows:
        tile = memory_tile_for(key_dim, value_dim)
        segments, each = _segments(rows)
        probes, removals = (None, None) if removal is None else removal
        _linear_attention_kernel[(segments, heads * triton.cdiv(value_dim, tile.columns))](
            queries, keys, values, decays, betas, skips, probes, removals, states, starts, sources, targets,
            result, rows, each, heads, key_heads, key_dim, value_dim, decays.dim() == 3, delta, tiled,
            triton.next_power_of_2(key_dim), tile.columns, _SEARCH, num_warps=tile.warps,
        )  # fmt: skip
    return result


# --- selective scans -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class ScanTile:
    """The channels whose states a program holds, a power of two, and its warps; it depends on no batch."""

    channels: int = 32
    warps: int = 1


SCAN_TILE = ScanTile()


@triton.jit(do_not_specialize=["rows", "segment"])
def _selective_scan_kernel(
    x, steps, rates, keys, queries, skips, states, starts, sources, targets, result, rows, segment, channels,
    ENTRIES: tl.constexpr, ENTRIES_TILE: tl.constexpr, CHANNELS: tl.constexpr, SEARCH: tl.constexpr,
):  # fmt: skip
    """Compute some channels of the sequences of a segment, from states [slots, ENTRIES, channels]."""
    entry, channel = tl.arange(0, ENTRIES_TILE), tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    real, shown = entry < ENTRIES, channel < channels
    inside = real[:, None] & shown[None, :]
    cell = entry[:, None] * channels + channel[None, :]
    rate = tl.load(rates + cell, inside, 0.0)
    skip = tl.load(skips + channel, shown, 0.0)
    state = tl.zeros((ENTRIES_TILE, CHANNELS), tl.float32)
    row, last = _rows_of_segment(starts, rows, segment, SEARCH)
    while row < last:
        wide = row.to(tl.int64)
        if tl.load(starts + row) == row:
            source = tl.load(sources + row).to(tl.int64)
            state = tl.load(states + source * ENTRIES * channels + cell, inside, 0.0)
        number = tl.load(x + wide * channels + channel, shown, 0.0)
        step = tl.load(steps + wide * channels + channel, shown, 0.0)
        key = tl.load(keys + wide * ENTRIES + entry, real, 0.0)
        query = tl.load(queries + wide * ENTRIES + entry, real, 0.0)
        state = elementary.exp(step[None, :] * rate) * state + key[:, None] * (step * number)[None, :]
        answer = tl.sum(query[:, None] * state, 0) + skip * number
        tl.store(result + wide * channels + channel, answer, shown)
        target = tl.load(targets + row).to(tl.int64)
        if target >= 0:
            tl.store(states + target * ENTRIES * channels + cell, state, inside)
        row += 1


def selective_scan(
    x: Tensor,
    steps: Tensor,
    rates: Tensor,
    keys: Tensor,
    queries: Tensor,
    skips: Tensor,
    states: Tensor,
    starts: Tensor,
    sources: Tensor,
    targets: Tensor,
) -> Tensor:
    """Compute the recurrence of Mamba 1: [T, channels], as `Backend.selective_scan`.

    x and steps [T, channels]; rates [entries, channels]; keys and queries [T, entries]; skips [channels];
    states [slots, entries, channels], updated; starts, sources and targets int32 [T].
    """
    rows, channels = x.shape
    entries = len(rates)
    result = torch.empty_like(x)
    if rows:
        segments, each = _segments(rows)
        _selective_scan_kernel[(segments, triton.cdiv(channels, SCAN_TILE.channels))](
            x, steps, rates, keys, queries, skips, states, starts, sources, targets, result, rows, each,
            channels, entries, triton.next_power_of_2(entries), SCAN_TILE.channels, _SEARCH,
            num_warps=SCAN_TILE.warps,
        )  # fmt: skip
    return result


_POINTERS = {"states": "*fp32", "starts": "*i32", "sources": "*i32", "targets": "*i32", "result": "*fp32"}


def variants() -> Iterable[Variant]:
    """Return the forms for published models' layers."""
    for name, tile in CONV_TILES.items():
        for taps, gated in ((3, True), (4, False)):
            constants: dict[str, Any] = {
                "TAPS": taps, "GATED": gated, "ACTIVATED": True, "ROWS": tile.rows, "CHANNELS": tile.channels,
            }  # fmt: skip
            yield Variant(
                f"short_conv, {taps} taps{', gated' * gated}, {name}",
                _short_conv_kernel,
                {
                    "projected": "*fp32", "weight": "*fp32", "bias": "constexpr", **_POINTERS, "rows": "i32",
                    "channels": "i32", **dict.fromkeys(constants, "constexpr"),
                },
                constants | {"bias": None},
                tile.warps,
            )  # fmt: skip
    for name, tile in CONV_TILES.items():
        constants = {"TAPS": 16, "ROWS": tile.rows, "CHANNELS": tile.channels}
        yield Variant(
            f"pool_recent, 16 taps, {name}",
            _pool_recent_kernel,
            {
                **dict.fromkeys(("values", "gates", "bias"), "*fp32"), **_POINTERS, "rows": "i32",
                "channels": "i32", **dict.fromkeys(constants, "constexpr"),
            },
            constants,
            tile.warps,
        )  # fmt: skip
    for name, heads, key_heads, key_dim, value_dim, rule in (
        ("gated delta", 32, 16, 128, 128, "delta"),
        ("delta, decay of keys", 32, 32, 128, 128, "delta of keys"),
        ("Mamba 2", 80, 1, 128, 64, "skips"),
        ("RWKV 7", 64, 64, 64, 64, "removal of keys"),
    ):
        columns = memory_tile_for(key_dim, value_dim)
        constants = {
            "HEADS": heads, "KEY_HEADS": key_heads, "KEY_DIM": key_dim, "VALUE_DIM": value_dim,
            "OF_KEYS": "keys" in rule, "DELTA": "delta" in rule, "TILED": False,
            "KEYS": triton.next_power_of_2(key_dim), "COLUMNS": columns.columns, "SEARCH": _SEARCH,
        }  # fmt: skip
        absent = {"betas", "skips", "probes", "removals"}
        absent -= {"probes", "removals"} if "removal" in rule else {"betas"}
        absent -= {"skips"} if "skips" in rule else set()
        arrays = ("queries", "keys", "values", "decays", "betas", "skips", "probes", "removals")
        yield Variant(
            f"linear_attention, {name}",
            _linear_attention_kernel,
            {
                **{array: "constexpr" if array in absent else "*fp32" for array in arrays}, **_POINTERS,
                "rows": "i32", "segment": "i32", **dict.fromkeys(constants, "constexpr"),
            },
            constants | dict.fromkeys(absent),
            columns.warps,
        )  # fmt: skip
    constants = {"ENTRIES": 16, "ENTRIES_TILE": 16, "CHANNELS": SCAN_TILE.channels, "SEARCH": _SEARCH}
    yield Variant(
        "selective_scan, Mamba 1",
        _selective_scan_kernel,
        {
            **dict.fromkeys(("x", "steps", "rates", "keys", "queries", "skips"), "*fp32"), **_POINTERS,
            "rows": "i32", "segment": "i32", "channels": "i32", **dict.fromkeys(constants, "constexpr"),
        },
        constants,
        SCAN_TILE.warps,
    )  # fmt: skip

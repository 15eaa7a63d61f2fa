"""The largest logits of rows, after changes and masks, and the sum of exponentials.

Two launches serve all rows. The first reads the logits in chunks, and writes the largest logit of each group
of 32 tokens and the sum of each chunk's exponentials. At least k tokens reach the k-th largest maximum, in k
groups, and few others do. The second launch finds this limit bit by bit, and collects the tokens that reach
it, in ascending order, from the groups that have any.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray
from torch import Tensor

from puna.ops.gpu.kernels import elementary
from puna.ops.gpu.kernels.variant import Variant
from puna.ops.gpu.sampling import SMALL, Leading, Wanted
from puna.ops.gpu.staging import received, sent

#: Tokens of a group: the larger, the fewer maxima, and the more tokens to look at again.
GROUP = 32
#: Groups of a chunk, which one program reads.
GROUPS = 128
#: Columns of a plan, int64, with a line for each row: the address of its logits and that for the changed ones
#: (the same if nothing changes); its size; the number of its changes, and where they begin in the lists;
#: where its mask begins (-1: none); how many tokens are wanted; the token asked about; the bits of the
#: temperature. The last is unused: with an even number, lists after a plan are aligned.
COLUMNS = 10
#: Columns of a result before its ids: their number, whether they are all that are possible, and the bits of
#: the sums over the row and over these, and of the logit asked about. The rest is unused.
HEAD = 8
#: Groups that are looked at together.
_TILE = 32
#: Changes that are looked at together.
_CHANGES = 256


@triton.jit(do_not_specialize=["stride"])
def _maxima_kernel(
    plan, lists, maxima, sums, stride,
    COLUMNS: tl.constexpr, GROUP: tl.constexpr, GROUPS: tl.constexpr, CHANGES: tl.constexpr,
):  # fmt: skip
    """Read a chunk of a row, of up to `stride`: maxima [rows, stride * GROUPS], and sums [rows, stride, 2].

    The latter are a chunk's largest logit, and the sum of exponentials relative to that.
    """
    chunk, row = tl.program_id(0), tl.program_id(1)
    plan += row * COLUMNS
    source = tl.load(plan).to(tl.pointer_type(tl.float32))
    target = tl.load(plan + 1).to(tl.pointer_type(tl.float32))
    size = tl.load(plan + 2).to(tl.int32)
    count = tl.load(plan + 3).to(tl.int32)
    changes = lists + tl.load(plan + 4)
    mask = tl.load(plan + 5)
    temperature = tl.load(plan + 8).to(tl.int32).to(tl.float32, bitcast=True)
    begin = chunk * (GROUPS * GROUP)
    group = tl.arange(0, GROUPS)[:, None]
    token = begin + group * GROUP + tl.arange(0, GROUP)[None, :]
    inside = token < size
    x = tl.load(source + token, inside, float("-inf"))
    first, last = 0, 0  # changes of this chunk: a row's are ascending
    for at in range(0, count, CHANGES):
        place = at + tl.arange(0, CHANGES)
        tokens = tl.load(changes + place, place < count, 2147483647)
        first += tl.sum((tokens < begin).to(tl.int32))
        last += tl.sum((tokens < begin + GROUPS * GROUP).to(tl.int32))
    for i in range(first, last):
        which = tl.load(changes + i)
        added = tl.load(changes + count + i).to(tl.float32, bitcast=True)
        repeat = tl.load(changes + 2 * count + i).to(tl.float32, bitcast=True)
        lowered = tl.load(changes + 3 * count + i).to(tl.float32, bitcast=True)
        value = tl.load(source + which) + added
        value = tl.where(value < 0, value * repeat, tl.div_rn(value, repeat))
        value = tl.where(lowered == float("inf"), float("-inf"), value - lowered)
        x = tl.where(token == which, value, x)
    if mask >= 0:
        words = tl.load(lists + mask + token // 32, inside, 0)
        x = tl.where((words >> (token % 32)) & 1 != 0, x, float("-inf"))
    if count > 0 or mask >= 0:
        tl.store(target + token, x, inside)
    best = tl.max(x, 1)
    at = maxima + (row.to(tl.int64) * stride + chunk) * GROUPS + tl.arange(0, GROUPS)
    tl.store(at, best)
    most = tl.max(best)
    shift = tl.div_rn(tl.where(most == float("-inf"), 0.0, most), temperature)
    weights = elementary.exp(tl.div_rn(x, temperature) - shift)  # NaN for NaN, and for infinity - infinity
    tl.store(sums + 2 * (row * stride + chunk), most)
    tl.store(sums + 2 * (row * stride + chunk) + 1, tl.sum(tl.sum(weights, 1)))


@triton.jit(do_not_specialize=["stride"])
def _collect_kernel(
    plan, maxima, sums, chosen, result, stride,
    COLUMNS: tl.constexpr, HEAD: tl.constexpr, GROUP: tl.constexpr, GROUPS: tl.constexpr,
    CHUNKS: tl.constexpr, ROOM: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Collect a row's largest logits into `result` [rows, HEAD + 2 * ROOM]: a head, ids, logits.

    `chosen` [rows, stride * GROUPS] has room for the groups to look at.
    """
    IMPOSSIBLE: tl.constexpr = 0x007FFFFF
    row = tl.program_id(0).to(tl.int64)
    plan += row * COLUMNS
    source = tl.load(plan + 1).to(tl.pointer_type(tl.float32))
    size = tl.load(plan + 2).to(tl.int32)
    wanted = tl.load(plan + 6).to(tl.int32)
    asked = tl.load(plan + 7)
    temperature = tl.load(plan + 8).to(tl.int32).to(tl.float32, bitcast=True)
    maxima += row * stride * GROUPS
    chosen += row * stride * GROUPS
    result += row * (HEAD + 2 * ROOM)

    group = tl.arange(0, CHUNKS * GROUPS)
    order = elementary.order_of(tl.load(maxima + group, group < stride * GROUPS, float("-inf")))
    threshold = tl.full((), 0, tl.uint32)
    for i in range(32):
        higher = threshold | (tl.full((), 1, tl.uint32) << (31 - i))
        reached = tl.sum((order >= higher).to(tl.int32))
        threshold = tl.where(reached >= wanted, higher, threshold)
    whole = threshold <= IMPOSSIBLE
    threshold = tl.where(whole, tl.full((), IMPOSSIBLE + 1, tl.uint32), threshold)

    looked_at = order >= threshold
    tl.store(chosen + tl.cumsum(looked_at.to(tl.int32), 0) - 1, group, looked_at)
    groups = tl.sum(looked_at.to(tl.int32))
    tl.debug_barrier()  # other threads read them
    chunk = tl.arange(0, CHUNKS)
    largest = tl.load(sums + 2 * (row * stride + chunk), chunk < stride, float("-inf"))
    most = tl.max(largest)
    shift = tl.div_rn(tl.where(most == float("-inf"), 0.0, most), temperature)
    found, at, listed = 0, 0, tl.full((), 0.0, tl.float32)
    while (at < groups) & (found <= ROOM):
        place = at + tl.arange(0, TILE)
        some = tl.load(chosen + place, place < groups, 0)
        token = some[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
        inside = (place < groups)[:, None] & (token < size)
        x = tl.load(source + token, inside, float("-inf"))
        reaching = inside & (elementary.order_of(x) >= threshold)
        weights = tl.where(reaching, elementary.exp(tl.div_rn(x, temperature) - shift), 0.0)
        listed += tl.sum(tl.sum(weights, 1))
        kept = tl.reshape(reaching.to(tl.int32), (TILE * GROUP,))
        to = found + tl.cumsum(kept, 0) - 1
        stored = (kept != 0) & (to < ROOM)
        tl.store(result + HEAD + to, tl.reshape(token, (TILE * GROUP,)), stored)
        bits = tl.reshape(x, (TILE * GROUP,)).to(tl.int32, bitcast=True)
        tl.store(result + HEAD + ROOM + to, bits, stored)
        found += tl.sum(kept)
        at += TILE

    parts = tl.load(sums + 2 * (row * stride + chunk) + 1, chunk < stride, 0.0)
    scales = elementary.exp(tl.div_rn(largest, temperature) - shift)
    total = tl.sum(tl.where(parts == 0, 0.0, scales * parts))
    logit = tl.load(source + asked)
    tl.store(result, found)
    tl.store(result + 1, whole.to(tl.int32))
    tl.store(result + 2, total.to(tl.int32, bitcast=True))
    tl.store(result + 3, listed.to(tl.int32, bitcast=True))
    tl.store(result + 4, logit.to(tl.int32, bitcast=True))


def find(rows: Sequence[Wanted]) -> list[Leading]:
    """Return the leading tokens of each row; all rows are on one device."""
    if not rows:
        return []
    device = rows[0].logits.device
    logits = [row.logits.contiguous() for row in rows]  # stay alive until the results are here
    largest = max(map(len, logits))
    chunks = triton.cdiv(largest, GROUP * GROUPS)
    room = room_for(rows)
    changed = [row.changes is not None or row.allowed is not None for row in rows]
    kept = torch.empty(sum(changed), largest, device=device)
    plan, lists = plan_of(rows, logits, kept)
    there = sent(np.concatenate([plan.reshape(-1).view(np.int32), *lists]), device)
    of_rows = there[: 2 * plan.size].view(torch.int64)
    result = launch(of_rows, there[2 * plan.size :], len(rows), chunks, room)
    return _read(received(result), room)


def launch(plan: Tensor, lists: Tensor, rows: int, chunks: int, room: int) -> Tensor:
    """Return int32 [rows, HEAD + 2 * room] of the rows that the plan, int64 [rows * COLUMNS], describes.

    The longest row has `chunks` chunks, and `room` is that for tokens of each. `lists` int32 has changes (a
    row's tokens, then the bits of what is added, of divisors, and of what is subtracted) and masks.
    """
    maxima = torch.empty(rows, chunks * GROUPS, device=plan.device)
    sums = torch.empty(rows, chunks, 2, device=plan.device)
    chosen = torch.empty(rows, chunks * GROUPS, dtype=torch.int32, device=plan.device)
    result = torch.empty(rows, HEAD + 2 * room, dtype=torch.int32, device=plan.device)
    # Without fused products, changed logits are those of the host, to the bit.
    _maxima_kernel[(chunks, rows)](
        plan, lists, maxima, sums, chunks, COLUMNS, GROUP, GROUPS, _CHANGES,
        num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip
    tile = triton.next_power_of_2(chunks)
    _collect_kernel[(rows,)](
        plan, maxima, sums, chosen, result, chunks, COLUMNS, HEAD, GROUP, GROUPS, tile, room, _TILE,
        num_warps=_warps(tile),
    )  # fmt: skip
    return result


def _warps(chunks: int) -> int:
    """Return the warps that keep the maxima of a row in their registers, at most 16 a thread."""
    return min(max(chunks * GROUPS // 512, 4), 16)


def room_for(rows: Sequence[Wanted]) -> int:
    """Return the room for a row's tokens: several times the number wanted, hardly ever too little."""
    most = max(row.count if len(row.logits) > SMALL else SMALL for row in rows)
    return 256 if most <= 64 else 1024 if most <= 256 else 2048


def plan_of(
    rows: Sequence[Wanted], logits: Sequence[Tensor], kept: Tensor
) -> tuple[NDArray[np.int64], list[NDArray[np.int32]]]:
    """Return the plan [rows, COLUMNS], and the lists it refers to; changed logits go to rows of `kept`."""
    plan = np.zeros((len(rows), COLUMNS), np.int64)
    lists: list[NDArray[np.int32]] = []
    length, spare, width = 0, kept.data_ptr(), kept.shape[1] * kept.element_size()
    temperatures = np.array([row.temperature for row in rows], np.float32).view(np.int32)
    for line, row, values in zip(plan, rows, logits, strict=True):
        source = target = values.data_ptr()
        changes, masked, count = length, -1, 0
        if row.changes is not None:
            count = row.changes.tokens.size
            lists += [each.view(np.int32) for each in row.changes]
            length += 4 * count
        if row.allowed is not None:
            masked = length
            lists.append(row.allowed)
            length += row.allowed.size
        if count or masked >= 0:
            target, spare = spare, spare + width
        line[:8] = source, target, len(values), count, changes, masked, row.count, row.token
    plan[:, 8] = temperatures
    return plan, lists


def _read(result: NDArray[np.int32], room: int) -> list[Leading]:
    counts, whole = result[:, 0].tolist(), result[:, 1].tolist()
    floats = result.view(np.float32)
    return [
        Leading(
            ids=result[row, HEAD : HEAD + min(count, room)],
            logits=floats[row, HEAD + room : HEAD + room + min(count, room)],
            whole=bool(whole[row]),
            listed=float(floats[row, 3]),
            total=float(floats[row, 2]),
            logit=float(floats[row, 4]),
            cut=count > room,
        )
        for row, count in enumerate(counts)
    ]


#: Sizes of vocabularies of variants: Llama 2, Llama 3, Qwen 3, Gemma 3.
_VOCABULARIES = (32000, 128256, 151936, 262208)


def variants() -> Iterable[Variant]:
    """Return the forms for vocabularies of published models."""
    sizes = {"COLUMNS": COLUMNS, "GROUP": GROUP, "GROUPS": GROUPS}
    given = {"plan": "*i64", "maxima": "*fp32", "sums": "*fp32", "stride": "i32"}
    constants = {**sizes, "CHANGES": _CHANGES}
    yield Variant(
        "maxima of groups",
        _maxima_kernel,
        {**given, "lists": "*i32", **dict.fromkeys(constants, "constexpr")},
        constants,
        4,
    )
    for chunks in sorted({triton.cdiv(size, GROUP * GROUPS) for size in _VOCABULARIES}):
        tile = triton.next_power_of_2(chunks)
        for room in (256, 1024, 2048):
            constants = {**sizes, "HEAD": HEAD, "CHUNKS": tile, "ROOM": room, "TILE": _TILE}
            yield Variant(
                f"leading tokens, {tile} chunks, room for {room}",
                _collect_kernel,
                {**given, "chosen": "*i32", "result": "*i32", **dict.fromkeys(constants, "constexpr")},
                constants,
                _warps(tile),
            )

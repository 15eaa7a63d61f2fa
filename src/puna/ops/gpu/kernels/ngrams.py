"""The rows of a table of n-grams that tokens are hashed to."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import triton
import triton.language as tl
from torch import Tensor

from puna.ops.gpu.kernels.variant import Variant


@triton.jit(do_not_specialize=["boundary"])
def _ngram_rows_kernel(
    tokens, multipliers, sizes, offsets, boundary, states, starts, sources, targets, result,
    KEPT: tl.constexpr, OF_ORDER: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Hash a token with the KEPT before it to rows [T, KEPT * OF_ORDER], with states [slots, KEPT]."""
    row = tl.program_id(0)
    start = tl.load(starts + row)
    before = states + tl.load(sources + row).to(tl.int64) * KEPT
    target = tl.load(targets + row).to(tl.int64)
    head = tl.arange(0, TILE)
    token = tl.load(tokens + row)
    mixed = token.to(tl.int64) * tl.load(multipliers)
    ended = token != token
    for back in tl.static_range(1, KEPT + 1):
        tl.store(states + target * KEPT + (KEPT - back), (token - boundary).to(tl.float32), target >= 0)
        other = row - back
        own = other >= start
        new = tl.load(tokens + other, own, 0)
        old = tl.load(before + (KEPT + other - start), ~own, 0.0).to(tl.int32) + boundary
        token = tl.where(own, new, old)
        ended |= token == boundary
        mixed ^= tl.where(ended, boundary, token).to(tl.int64) * tl.load(multipliers + back)
        at = (back - 1) * OF_ORDER + head
        size = tl.load(sizes + at, head < OF_ORDER, 1)
        rest = mixed % size
        rest += tl.where(rest < 0, size, 0)  # a remainder has the sign of what is divided
        found = (tl.load(offsets + at, head < OF_ORDER, 0) + rest).to(tl.int32)
        tl.store(result + row.to(tl.int64) * (KEPT * OF_ORDER) + at, found, head < OF_ORDER)


def ngram_rows(
    tokens: Tensor,
    multipliers: Tensor,
    sizes: Tensor,
    offsets: Tensor,
    boundary: int,
    states: Tensor,
    starts: Tensor,
    sources: Tensor,
    targets: Tensor,
) -> Tensor:
    """Return the rows that n-grams are hashed to: int32 [T, heads], as `Backend.ngram_rows`."""
    kept, heads = len(multipliers) - 1, len(sizes)
    result = torch.empty(len(tokens), heads, dtype=torch.int32, device=tokens.device)
    if result.numel():
        of_order = heads // kept
        _ngram_rows_kernel[(len(tokens),)](
            tokens, multipliers, sizes, offsets, boundary, states, starts, sources, targets, result,
            kept, of_order, triton.next_power_of_2(of_order), num_warps=1,
        )  # fmt: skip
    return result


def variants() -> Iterable[Variant]:
    """Return the form for Qwen 3.8 Flash Next."""
    constants = {"KEPT": 2, "OF_ORDER": 8, "TILE": 8}
    given = {
        "tokens": "*i32",
        **dict.fromkeys(("multipliers", "sizes", "offsets"), "*i64"),
        "boundary": "i32",
    }
    lists = dict.fromkeys(("starts", "sources", "targets", "result"), "*i32")
    yield Variant(
        "rows of n-grams",
        _ngram_rows_kernel,
        {**given, "states": "*fp32", **lists, **dict.fromkeys(constants, "constexpr")},
        constants,
        1,
    )

"""The choice of each token's experts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

from puna.ops.gpu.kernels import elementary
from puna.ops.gpu.kernels.variant import Variant

if TYPE_CHECKING:
    from puna.ops.experts import Routing


@triton.jit
def _order_of(ranks, numbers):
    """Return int64 that are distinct, and larger for the larger rank, or for the lower number at equal ranks.

    NaN counts as infinity. All are above the least int64.
    """
    ranks = tl.where(ranks == ranks, ranks, float("inf"))
    bits = tl.where(ranks == 0, 0.0, ranks).to(tl.int32, bitcast=True)  # no -0
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return (ordered.to(tl.int64) << 32) | (0x7FFFFFFF - numbers).to(tl.int64)


@triton.jit
def _number_of(order):
    """Return the number that `_order_of` was given."""
    return 0x7FFFFFFF - (order & 0x7FFFFFFF).to(tl.int32)


@triton.jit
def _route_kernel(
    logits, bias, chosen, weights, scale,
    SCORING: tl.constexpr, NORMALIZE: tl.constexpr, EXPERTS: tl.constexpr, USED: tl.constexpr,
    GROUPS: tl.constexpr, USED_GROUPS: tl.constexpr, BEST_OF_GROUP: tl.constexpr,
    GROUPS_TILE: tl.constexpr, SIZE_TILE: tl.constexpr, USED_TILE: tl.constexpr,
):  # fmt: skip
    """Route one row of logits [T, EXPERTS], as a tile of its groups."""
    TAKEN: tl.constexpr = -(2**63)  # below all that can be chosen
    SIZE: tl.constexpr = EXPERTS // GROUPS
    row = tl.program_id(0).to(tl.int64)
    group, member = tl.arange(0, GROUPS_TILE), tl.arange(0, SIZE_TILE)
    inside = (group < GROUPS)[:, None] & (member < SIZE)[None, :]
    expert = group[:, None] * SIZE + member[None, :]
    logit = tl.load(logits + row * EXPERTS + expert, inside, float("-inf"))
    scores = _scores(logit, inside, SCORING)
    if bias is None:
        biased, ranks = scores, logit  # as the scores, but without ties that rounding makes
    else:
        biased = scores + tl.load(bias + expert, inside, 0.0)
        ranks = biased
    order = tl.where(inside, _order_of(ranks, expert), TAKEN)

    if USED_GROUPS < GROUPS:
        members = tl.where(inside, _order_of(biased, expert), TAKEN)
        sums = tl.zeros((GROUPS_TILE,), tl.float32)
        for _ in tl.static_range(BEST_OF_GROUP):
            best = members == tl.max(members, 1)[:, None]
            sums += tl.sum(tl.where(best & inside, tl.where(biased == biased, biased, float("inf")), 0.0), 1)
            members = tl.where(best, TAKEN, members)
        groups = tl.where(group < GROUPS, _order_of(sums, group), TAKEN)
        allowed = group < 0
        for _ in tl.static_range(USED_GROUPS):
            best = groups == tl.max(groups)
            allowed |= best
            groups = tl.where(best, TAKEN, groups)
        order = tl.where(allowed[:, None], order, TAKEN)

    place = tl.arange(0, USED_TILE)
    numbers = tl.zeros((USED_TILE,), tl.int32)
    shares = tl.zeros((USED_TILE,), tl.float32)
    for j in tl.static_range(USED):
        best = tl.max(order)
        found = order == best
        numbers = tl.where(place == j, _number_of(best), numbers)
        shares = tl.where(place == j, tl.sum(tl.where(found, scores, 0.0)), shares)
        order = tl.where(found, TAKEN, order)
    _store(row, numbers, shares, chosen, weights, scale, NORMALIZE, USED, USED_TILE)


@triton.jit
def _scores(logit, inside, SCORING: tl.constexpr):
    """Return the scores of a row of logits, which are -infinity where nothing is `inside`."""
    if SCORING == 1:
        scores = elementary.sigmoid(logit)
    elif SCORING == 2:
        scores = tl.sqrt_rn(elementary.softplus(logit))
    else:
        scores = tl.where(inside, elementary.exp(logit - tl.max(logit)), 0.0)
        scores = tl.div_rn(scores, tl.sum(scores))
    return scores


@triton.jit
def _store(
    row, numbers, shares, chosen, weights, scale,
    NORMALIZE: tl.constexpr, USED: tl.constexpr, USED_TILE: tl.constexpr,
):  # fmt: skip
    """Store a row's experts and their weights; `shares` are 0 beyond those used."""
    if NORMALIZE:
        total = tl.sum(shares)
        shares = tl.div_rn(shares, tl.where(total < 1e-20, 1e-20, total))  # all sigmoids may be 0
    place = tl.arange(0, USED_TILE)
    at = row * USED + place
    tl.store(chosen + at, numbers, place < USED)
    tl.store(weights + at, shares * scale, place < USED)


@triton.jit
def _route_by_table_kernel(
    logits, table, tokens, chosen, weights, scale,
    SCORING: tl.constexpr, NORMALIZE: tl.constexpr, EXPERTS: tl.constexpr, USED: tl.constexpr,
    TILE: tl.constexpr, USED_TILE: tl.constexpr,
):  # fmt: skip
    """Weigh the experts that the table [vocabulary, USED] has for one row of logits [T, EXPERTS]."""
    row = tl.program_id(0).to(tl.int64)
    place, expert = tl.arange(0, USED_TILE), tl.arange(0, TILE)
    inside = expert < EXPERTS
    scores = _scores(tl.load(logits + row * EXPERTS + expert, inside, float("-inf")), inside, SCORING)
    token = tl.load(tokens + row).to(tl.int64)
    numbers = tl.load(table + token * USED + place, place < USED, -1)
    shares = tl.sum(tl.where(numbers[:, None] == expert[None, :], scores[None, :], 0.0), 1)
    _store(row, numbers, shares, chosen, weights, scale, NORMALIZE, USED, USED_TILE)


def route(logits: Tensor, routing: Routing, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Choose experts for each row of logits [T, experts], by bias [experts]: int32 and float32 [T, used]."""
    rows, experts = logits.shape
    chosen = logits.new_empty(rows, routing.used, dtype=torch.int32)
    weights = logits.new_empty(rows, routing.used)
    if rows:
        _route_kernel[(rows,)](
            logits, bias, chosen, weights, float(routing.scale), routing.scoring, routing.normalize, experts,
            routing.used, routing.groups, routing.used_groups,
            min(routing.best_of_group, experts // routing.groups),
            *_tile_of(experts, routing.groups, routing.used), num_warps=1,
        )  # fmt: skip
    return chosen, weights


def route_by_table(logits: Tensor, routing: Routing, table: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Weigh the experts of tokens [T] in `table` [vocabulary, used], by logits [T, experts]."""
    (rows, experts), used = logits.shape, table.shape[1]
    chosen = logits.new_empty(rows, used, dtype=torch.int32)
    weights = logits.new_empty(rows, used)
    if rows:
        _route_by_table_kernel[(rows,)](
            logits, table, tokens, chosen, weights, float(routing.scale), routing.scoring,
            routing.normalize, experts, used, triton.next_power_of_2(experts),
            triton.next_power_of_2(used), num_warps=1,
        )  # fmt: skip
    return chosen, weights


def _tile_of(experts: int, groups: int, used: int) -> tuple[int, int, int]:
    """Return the tile's groups, their members, and the chosen ones, as powers of two."""
    power = triton.next_power_of_2
    return power(groups), power(experts // groups), power(used)


def variants() -> Iterable[Variant]:
    """Return the forms for the routers of published models."""
    for experts, used, groups, used_groups, scoring in (
        (32, 4, 1, 1, 0), (128, 8, 1, 1, 0), (512, 10, 1, 1, 0), (256, 8, 8, 4, 1), (256, 6, 1, 1, 2),
    ):  # fmt: skip
        groups_tile, size_tile, used_tile = _tile_of(experts, groups, used)
        constants = {
            "SCORING": scoring, "NORMALIZE": True, "EXPERTS": experts, "USED": used, "GROUPS": groups,
            "USED_GROUPS": used_groups, "BEST_OF_GROUP": 2, "GROUPS_TILE": groups_tile,
            "SIZE_TILE": size_tile, "USED_TILE": used_tile,
        }  # fmt: skip
        grouped = f", {used_groups} of {groups} groups" if groups > 1 else ""
        yield Variant(
            f"route, {used} of {experts}{grouped}",
            _route_kernel,
            {
                "logits": "*fp32", "bias": "*fp32" if scoring else "constexpr", "chosen": "*i32",
                "weights": "*fp32", "scale": "fp32", **dict.fromkeys(constants, "constexpr"),
            },
            constants | ({} if scoring else {"bias": None}),
            1,
        )  # fmt: skip
    constants = {"SCORING": 2, "NORMALIZE": True, "EXPERTS": 256, "USED": 6, "TILE": 256, "USED_TILE": 8}
    yield Variant(
        "route_by_table, 6 of 256",
        _route_by_table_kernel,
        {
            "logits": "*fp32", "weights": "*fp32", **dict.fromkeys(("table", "tokens", "chosen"), "*i32"),
            "scale": "fp32", **dict.fromkeys(constants, "constexpr"),
        },
        constants,
        1,
    )  # fmt: skip

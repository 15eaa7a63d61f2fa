"""Mixtures of experts: tokens grouped by their experts, and what happens between the products.

A pair is a token and one of its experts. `group` sorts the pairs by experts and cuts them into tiles of one
expert each; the products (`matmul.multiply`) read the weights of each tile's expert once. How many tiles are
used is known on the device only: launches have as many as there can be, and the rest end at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch
import triton
import triton.language as tl
from torch import Tensor

from puna.ops.experts import ACTIVATIONS
from puna.ops.gpu.kernels import activations
from puna.ops.gpu.kernels.matmul import (
    FEW_ROWS,
    ExpertGroups,
    PreparedRows,
    few_tokens,
    form_of,
    half_scale,
    multiply,
    prepare,
    two_parts,
)
from puna.ops.gpu.kernels.variant import Variant
from puna.ops.gpu.packed import PackedMatrix

#: Pairs that `_group` sorts in one program, by comparing each with each.
_COMPARED = 128
#: Pairs in a tile of a prompt: smaller if experts have fewer.
_TILE_SIZES = (16, 32, 64)


def experts(
    x: Tensor,
    chosen: Tensor,
    weights: Tensor,
    count: int,
    gate: PackedMatrix | None,
    up: PackedMatrix,
    down: PackedMatrix,
    activation: str,
    gate_bias: Tensor | None = None,
    up_bias: Tensor | None = None,
    down_bias: Tensor | None = None,
    scale_inputs: bool = False,
    limits: tuple[float, float] = (0.0, 0.0),
) -> Tensor:
    """Apply each token's chosen experts, as `Backend.experts` says: float32 [T, out].

    x float32 [T, in]; chosen int32 and weights float32 [T, used]; matrices are stacks of `count` experts:
    gate and up [count * width, in], down [count * out, width]; biases [count, width] or [count, out].
    """
    used = chosen.shape[1]
    groups = group(chosen, count)
    inputs = replace(groups, scale=weights) if scale_inputs else groups
    prepared: dict[torch.dtype, PreparedRows] = {}

    def project(matrix: PackedMatrix, bias: Tensor | None) -> Tensor:
        form = form_of(matrix.type)
        if form not in prepared:
            prepared[form] = prepare(x, form)
        return multiply(prepared[form], matrix, bias, inputs)

    risen = project(up, up_bias)
    gates = risen if gate is None else project(gate, gate_bias)
    inner = _activated(gates, risen, activation, limits, form_of(down.type))
    back = multiply(inner, down, down_bias, replace(groups, share=1))
    out = torch.empty((len(x), back.shape[1]), device=x.device)
    if out.numel():
        _combine[(len(x), -(-back.shape[1] // _COMBINED))](
            back, weights, out, back.shape[1], used, WEIGHTED=not scale_inputs, BLOCK=_COMBINED, num_warps=4
        )
    return out


#: Columns that a program of `_combine` adds up.
_COMBINED = 512


def expert_linear(
    x: Tensor, chosen: Tensor, weight: PackedMatrix, count: int, bias: Tensor | None = None
) -> Tensor:
    """Multiply each row by one expert's matrix: x float32 [T, in], chosen int32 [T], result [T, out].

    The matrix is a stack of `count` experts [count * out, in], and the bias is [count, out].
    """
    return multiply(prepare(x, form_of(weight.type)), weight, bias, group(chosen[:, None], count))


def group(chosen: Tensor, count: int) -> ExpertGroups:
    """Sort the pairs of tokens and their experts `chosen` int32 [T, used], below `count`."""
    tokens, used = chosen.shape
    total = tokens * used
    few = tokens <= FEW_ROWS
    if few:
        size = few_tokens(tokens, chosen.device)
    else:
        size = next((size for size in _TILE_SIZES if size * count >= total), _TILE_SIZES[-1])
    most = min(total, count) + total // size if total else 0
    flat = chosen.reshape(-1)
    if total <= _COMPARED:
        pairs = torch.empty(total, dtype=torch.int32, device=chosen.device)
        tiles = torch.empty((most, 3), dtype=torch.int32, device=chosen.device)
        if total:
            block = max(16, triton.next_power_of_2(max(total, most)))
            _group[(1,)](flat, pairs, tiles, total, most, SIZE=size, BLOCK=block, num_warps=8)
        return ExpertGroups(flat, pairs, tiles, size, used, count, few)
    ordered, pairs = torch.sort(flat, stable=True)
    numbers = torch.arange(count + 1, dtype=flat.dtype, device=flat.device)
    begins = torch.searchsorted(ordered, numbers)
    tiles_of = (begins.diff() + size - 1) // size
    ends = tiles_of.cumsum(0)
    index = torch.arange(most, device=flat.device)
    expert = torch.searchsorted(ends, index, right=True).clamp_(max=count - 1)
    first = begins[expert] + (index - ends[expert] + tiles_of[expert]) * size
    sizes = (begins[expert + 1] - first).clamp_(0, size)
    tiles = torch.stack([expert, first.clamp(max=total - 1), sizes], dim=1).to(torch.int32)
    return ExpertGroups(flat, pairs.to(torch.int32), tiles, size, used, count, few)


def _activated(
    gates: Tensor, risen: Tensor, activation: str, limits: tuple[float, float], form: torch.dtype
) -> PreparedRows:
    """Return the activation of `gates` and `risen` [pairs, width] in a form (see `PreparedRows`)."""
    rows, columns = risen.shape
    prepared = PreparedRows.empty(rows, columns, form, risen.device)
    width = prepared.width
    if prepared.values.numel():
        block = min(triton.next_power_of_2(width), _ACTIVATED)
        name = {torch.float32: "float", torch.float16: "half", torch.bfloat16: "parts"}[form]
        _activate[(rows,)](
            gates, risen, prepared.values, prepared.factors, rows, columns, width, *limits,
            ACTIVATION=activation, LIMITED=limits[1] > 0, FORM=name, BLOCK=block, num_warps=4,
        )  # fmt: skip
    return prepared


#: Columns that a program of `_activate` holds in registers.
_ACTIVATED = 4096


@triton.jit
def _group(chosen, pairs, tiles, total, most, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """Sort up to BLOCK pairs by their experts, and cut each expert's into tiles of SIZE."""
    i = tl.arange(0, BLOCK)
    expert = tl.load(chosen + i, mask=i < total, other=0x7FFFFFFF)  # the others come last
    smaller = expert[None, :] < expert[:, None]
    same = expert[None, :] == expert[:, None]
    earlier = same & (i[None, :] < i[:, None])
    place = tl.sum((smaller | earlier).to(tl.int32), axis=1)
    within = tl.sum(earlier.to(tl.int32), axis=1)
    tl.store(pairs + place, i, mask=i < total)
    begins = (within % SIZE == 0) & (i < total)
    before = (smaller | earlier) & begins[None, :]
    index = tl.sum(before.to(tl.int32), axis=1)
    left = tl.sum((same & (i < total)[None, :]).to(tl.int32), axis=1) - within
    tl.store(tiles + 3 * index, expert, mask=begins)
    tl.store(tiles + 3 * index + 1, place, mask=begins)
    tl.store(tiles + 3 * index + 2, tl.minimum(left, SIZE), mask=begins)
    unused = (i >= tl.sum(begins.to(tl.int32), axis=0)) & (i < most)
    for column in tl.static_range(3):
        tl.store(tiles + 3 * i + column, 0, mask=unused)


@triton.jit
def _activate(
    gates,
    risen,
    values,
    factors,
    rows,
    columns,
    width,
    gate_limit,
    up_limit,
    ACTIVATION: tl.constexpr,
    LIMITED: tl.constexpr,
    FORM: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Write the activation of a row in a form that `prepare` describes."""
    row = tl.program_id(0).to(tl.int64)
    places = tl.arange(0, BLOCK)
    scale = 1.0
    if FORM == "half":
        largest = tl.zeros([BLOCK], tl.int32)
        for begin in range(0, columns, BLOCK):
            inner = _activation(
                gates, risen, row, begin + places, columns, gate_limit, up_limit, ACTIVATION, LIMITED
            )
            largest = tl.maximum(largest, inner.to(tl.int32, bitcast=True) & 0x7FFFFFFF)
        scale, factor = half_scale(tl.max(largest, axis=0))
        tl.store(factors + row, factor)
    for begin in range(0, width, BLOCK):
        at = begin + places
        inner = _activation(gates, risen, row, at, columns, gate_limit, up_limit, ACTIVATION, LIMITED)
        if FORM == "parts":
            first, rest = two_parts(inner)
            tl.store(values + row * width + at, first, mask=at < width)
            tl.store(values + (rows + row) * width + at, rest, mask=at < width)
        else:
            tl.store(values + row * width + at, (inner * scale).to(values.dtype.element_ty), mask=at < width)


@triton.jit
def _activation(
    gates, risen, row, at, columns, gate_limit, up_limit, ACTIVATION: tl.constexpr, LIMITED: tl.constexpr
):
    """Return the activation of some columns, 0 beyond the last."""
    up = tl.load(risen + row * columns + at, mask=at < columns, other=0.0)
    if ACTIVATION == "squared_relu":
        inner = activations.squared_relu_of(up, up)
    elif ACTIVATION == "gelu":
        inner = activations.gelu_of(up, up)
    else:
        gate = tl.load(gates + row * columns + at, mask=at < columns, other=0.0)
        if LIMITED:  # comparisons keep NaN
            gate = tl.where(gate > gate_limit, gate_limit, gate)
            up = tl.where(up > up_limit, up_limit, tl.where(up < -up_limit, -up_limit, up))
        if ACTIVATION == "swiglu":
            inner = activations.swiglu_of(gate, up)
        elif ACTIVATION == "clamped_swiglu":
            inner = activations.clamped_swiglu_of(gate, up)
        elif ACTIVATION == "reglu":
            inner = activations.reglu_of(gate, up)
        else:
            tl.static_assert(ACTIVATION == "geglu")
            inner = activations.geglu_of(gate, up)
    return inner


@triton.jit
def _combine(back, weights, out, columns, used, WEIGHTED: tl.constexpr, BLOCK: tl.constexpr):
    """Add up the results of a token's experts, in the order in which it chose them."""
    token = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for place in range(used):
        pair = token * used + place
        given = tl.load(back + pair * columns + at, mask=at < columns, other=0.0)
        if WEIGHTED:
            given *= tl.load(weights + pair)
        total += given
    tl.store(out + token * columns + at, total, mask=at < columns)


def variants() -> Iterable[Variant]:
    """Yield the forms of the kernels beside the products, whose own are `matmul.variants`."""
    groups = {
        "chosen": "*i32", "pairs": "*i32", "tiles": "*i32", "total": "i32", "most": "i32",
        "SIZE": "constexpr", "BLOCK": "constexpr",
    }  # fmt: skip
    for size, block in ((8, 16), (8, 64), (16, _COMPARED), (64, _COMPARED)):
        yield Variant(f"group {block} by {size}", _group, groups, {"SIZE": size, "BLOCK": block}, 8)
    for activation in ACTIVATIONS:
        for form, name in (("fp32", "float"), ("fp16", "half"), ("bf16", "parts")):
            signature = {
                "gates": "*fp32", "risen": "*fp32", "values": f"*{form}", "factors": "*fp32", "rows": "i32",
                "columns": "i32", "width": "i32", "gate_limit": "fp32", "up_limit": "fp32",
                "ACTIVATION": "constexpr", "LIMITED": "constexpr", "FORM": "constexpr", "BLOCK": "constexpr",
            }  # fmt: skip
            constants = {"ACTIVATION": activation, "LIMITED": False, "FORM": name, "BLOCK": _ACTIVATED}
            yield Variant(f"activate {activation} {name}", _activate, signature, constants, 4)
            if activation == "swiglu":
                limited = {**constants, "LIMITED": True}
                yield Variant(f"activate limited {activation} {name}", _activate, signature, limited, 4)
    sums = {
        "back": "*fp32", "weights": "*fp32", "out": "*fp32", "columns": "i32", "used": "i32",
        "WEIGHTED": "constexpr", "BLOCK": "constexpr",
    }  # fmt: skip
    for weighted in (False, True):
        constants = {"WEIGHTED": weighted, "BLOCK": _COMBINED}
        yield Variant(f"combine {'' if weighted else 'un'}weighted", _combine, sums, constants, 4)

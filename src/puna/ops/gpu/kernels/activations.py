"""Activations, gates and caps: operations on each number by itself, and mixtures of rows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from puna.ops.gpu.kernels import elementary
from puna.ops.gpu.kernels.variant import Variant


@dataclass(frozen=True)
class Tile:
    """The numbers of a program's tile, a power of two, and its warps."""

    numbers: int = 1024
    warps: int = 4  # each thread loads 8 numbers, as two vectors of 16 bytes


TILE = Tile()

# --- of one number, or of a gate and what it lets through: also for the kernels of experts -------------


@triton.jit
def swiglu_of(gate, up):
    return gate * elementary.sigmoid(gate) * up


@triton.jit
def clamped_swiglu_of(gate, up):
    gate = tl.where(gate > 7.0, 7.0, gate)
    up = tl.where(up > 7.0, 7.0, tl.where(up < -7.0, -7.0, up))
    return gate * elementary.sigmoid(1.702 * gate) * (up + 1.0)


@triton.jit
def geglu_of(gate, up):
    # (1 + tanh(z)) / 2 is sigmoid(2 z), which is accurate where the tangent is nearly -1.
    inner = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)  # 2 sqrt(2 / pi)
    return gate * elementary.sigmoid(inner) * up


@triton.jit
def reglu_of(gate, up):
    return tl.where(gate < 0, 0.0, gate) * up


@triton.jit
def gelu_of(x, unused):
    return x * 0.5 * (1.0 + tl.erf(x * 0.7071067811865476))


@triton.jit
def squared_relu_of(x, unused):
    x = tl.where(x < 0, 0.0, x)
    return x * x


@triton.jit
def sigmoid_of(x, unused):
    return elementary.sigmoid(x)


@triton.jit
def sigmoid_gate_of(x, gate):
    return x * elementary.sigmoid(gate)


@triton.jit
def _pointwise_kernel(x, y, result, count, FUNCTION: tl.constexpr, BLOCK: tl.constexpr):
    """Apply a function to x and y [count]; y may be None, and is x then."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    first = tl.load(x + at, inside, 0.0)
    second = first if y is None else tl.load(y + at, inside, 0.0)
    tl.store(result + at, FUNCTION(first, second), inside)


def _pointwise(function: Any, x: Tensor, y: Tensor | None = None) -> Tensor:
    result = torch.empty_like(x)
    count = x.numel()
    if count:
        _pointwise_kernel[(triton.cdiv(count, TILE.numbers),)](
            x, y, result, count, function, TILE.numbers, num_warps=TILE.warps
        )
    return result


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """Return `silu(gate) * up`, both [T, n]."""
    return _pointwise(swiglu_of, gate, up)


def clamped_swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """Return `g * sigmoid(1.702 g) * (u + 1)`, where g is min(gate, 7) and u is up within ±7, both [T, n]."""
    return _pointwise(clamped_swiglu_of, gate, up)


def geglu(gate: Tensor, up: Tensor) -> Tensor:
    """Return `gelu(gate) * up`, both [T, n], by the approximation of GELU with a hyperbolic tangent."""
    return _pointwise(geglu_of, gate, up)


def reglu(gate: Tensor, up: Tensor) -> Tensor:
    """Return `max(gate, 0) * up`, both [T, n]."""
    return _pointwise(reglu_of, gate, up)


def gelu(x: Tensor) -> Tensor:
    """Return `x / 2 * (1 + erf(x / sqrt(2)))` of x, any shape."""
    return _pointwise(gelu_of, x)


def squared_relu(x: Tensor) -> Tensor:
    """Return `max(x, 0)²` of x, any shape."""
    return _pointwise(squared_relu_of, x)


def sigmoid(x: Tensor) -> Tensor:
    """Return `1 / (1 + e^-x)` of x, any shape."""
    return _pointwise(sigmoid_of, x)


# --- by a number for each row, for each column or for all ----------------------------------------------


@triton.jit
def _gate_rows_kernel(x, gate, result, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    at, inside = row * width + column, column < width
    tl.store(result + at, tl.load(x + at, inside, 0.0) * elementary.sigmoid(tl.load(gate + row)), inside)


def sigmoid_gate(x: Tensor, gate: Tensor) -> Tensor:
    """Return `x * sigmoid(gate)`: x [T, n], gate [T, n] or [T, 1]."""
    if gate.shape == x.shape:
        return _pointwise(sigmoid_gate_of, x, gate)
    result = torch.empty_like(x)
    if x.numel():
        width = x.shape[-1]
        grid = (len(x), triton.cdiv(width, TILE.numbers))
        _gate_rows_kernel[grid](x, gate, result, width, TILE.numbers, num_warps=TILE.warps)
    return result


@triton.jit
def _softplus_kernel(x, scale, result, width, BLOCK: tl.constexpr):
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    at, inside = tl.program_id(0).to(tl.int64) * width + column, column < width
    factor = tl.load(scale + column, inside, 0.0)
    tl.store(result + at, factor * elementary.softplus(tl.load(x + at, inside, 0.0)), inside)


def softplus(x: Tensor, scale: Tensor) -> Tensor:
    """Return `scale * ln(1 + e^x)` of x [T, n], scale [n]."""
    result = torch.empty_like(x)
    if x.numel():
        width = x.shape[-1]
        grid = (len(x), triton.cdiv(width, TILE.numbers))
        _softplus_kernel[grid](x, scale, result, width, TILE.numbers, num_warps=TILE.warps)
    return result


@triton.jit
def _softcap_kernel(x, result, count, cap, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    numbers = tl.load(x + at, inside, 0.0)
    tl.store(result + at, cap * elementary.tanh(tl.div_rn(numbers, cap)), inside)


def softcap(x: Tensor, cap: float) -> Tensor:
    """Return `cap * tanh(x / cap)` of x, any shape."""
    result = torch.empty_like(x)
    count = x.numel()
    if count:
        _softcap_kernel[(triton.cdiv(count, TILE.numbers),)](
            x, result, count, cap, TILE.numbers, num_warps=TILE.warps
        )
    return result


@triton.jit
def _temper_kernel(
    x, positions, width,
    SCALE: tl.constexpr, FLOOR_SCALE: tl.constexpr, FIRST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    at, inside = row * width + column, column < width
    # In float64, of which there is one division and logarithm for each row: the step must be the right one.
    position = (tl.load(positions + row).to(tl.int64) + FIRST).to(tl.float64)
    steps = tl.floor(position / FLOOR_SCALE)
    factor = (1.0 + SCALE * tl.log(1.0 + steps)).to(tl.float32)
    tl.store(x + at, tl.load(x + at, inside, 0.0) * factor, inside)


def temper_(x: Tensor, positions: Tensor, scale: float, floor_scale: float, first: int) -> None:
    """Multiply rows of x [T, ...] in place by `1 + scale * ln(1 + floor((position + first) / floor_scale))`.

    positions int32 [T].
    """
    if x.numel():
        width = x[0].numel()
        grid = (len(x), triton.cdiv(width, TILE.numbers))
        _temper_kernel[grid](
            x, positions, width, float(scale), float(floor_scale), first, TILE.numbers, num_warps=TILE.warps
        )


@triton.jit
def _mix_kernel(
    x, mixture, result, width, size, INPUTS: tl.constexpr, OUTPUTS: tl.constexpr, BLOCK: tl.constexpr
):
    """Mix the rows of x [INPUTS, T, width] to result [OUTPUTS, T, width], of `size` numbers each."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    at, inside = row * width + column, column < width
    for i in tl.static_range(OUTPUTS):
        total = tl.zeros((BLOCK,), tl.float32)
        for j in tl.static_range(INPUTS):
            share = tl.load(mixture + (row * OUTPUTS + i) * INPUTS + j)
            total = tl.fma(tl.load(x + j * size + at, inside, 0.0), share, total)
        tl.store(result + i * size + at, total, inside)


def mix(x: Sequence[Tensor], mixture: Tensor) -> list[Tensor]:
    """Return m weighted sums of n arrays x [T, d].

    mixture is [T, m * n]; its entry `i * n + j` is the weight of x[j] in the i-th result.
    """
    inputs = torch.stack(list(x))
    count, rows, width = inputs.shape
    outputs = mixture.shape[1] // count
    result = inputs.new_empty(outputs, rows, width)
    if result.numel():
        _mix_kernel[(rows, triton.cdiv(width, TILE.numbers))](
            inputs, mixture, result, width, rows * width, count, outputs, TILE.numbers, num_warps=TILE.warps
        )
    return list(result)


@triton.jit
def _balance_kernel(logits, result, eps, rounds, COUNT: tl.constexpr, TILE: tl.constexpr):
    """Balance one matrix [COUNT results, COUNT sources]."""
    number = tl.arange(0, TILE)
    inside = (number < COUNT)[:, None] & (number < COUNT)[None, :]
    at = tl.program_id(0).to(tl.int64) * COUNT * COUNT + number[:, None] * COUNT + number[None, :]
    numbers = tl.load(logits + at, inside, float("-inf"))
    shares = tl.where(inside, elementary.exp(numbers - tl.max(numbers, 0)[None, :]), 0.0)
    shares = tl.where(inside, tl.div_rn(shares, tl.sum(shares, 0)[None, :]) + eps, 0.0)
    shares = tl.where(inside, tl.div_rn(shares, (tl.sum(shares, 1) + eps)[:, None]), 0.0)
    for _ in range(rounds - 1):
        shares = tl.where(inside, tl.div_rn(shares, (tl.sum(shares, 0) + eps)[None, :]), 0.0)
        shares = tl.where(inside, tl.div_rn(shares, (tl.sum(shares, 1) + eps)[:, None]), 0.0)
    tl.store(result + at, shares, inside)


def balance(logits: Tensor, eps: float, rounds: int) -> Tensor:
    """Return matrices [T, n * n] whose rows and columns sum to nearly 1 (see `Backend`)."""
    result = torch.empty_like(logits)
    if result.numel():
        count = math.isqrt(logits.shape[1])
        _balance_kernel[(len(logits),)](
            logits, result, float(eps), rounds, count, triton.next_power_of_2(count), num_warps=1
        )
    return result


def variants() -> Iterable[Variant]:
    """Return the form of each kernel; gated ones take two arrays."""
    block: dict[str, Any] = {"BLOCK": TILE.numbers}
    for function, arrays in (
        (swiglu_of, 2), (clamped_swiglu_of, 2), (geglu_of, 2), (reglu_of, 2), (sigmoid_gate_of, 2),
        (gelu_of, 1), (squared_relu_of, 1), (sigmoid_of, 1),
    ):  # fmt: skip
        yield Variant(
            function.__name__.removesuffix("_of"),
            _pointwise_kernel,
            {
                "x": "*fp32", "y": "*fp32" if arrays == 2 else "constexpr", "result": "*fp32", "count": "i32",
                "FUNCTION": "constexpr", "BLOCK": "constexpr",
            },
            block | {"FUNCTION": function} | ({"y": None} if arrays == 1 else {}),
            TILE.warps,
        )  # fmt: skip
    rows = {"width": "i32", "BLOCK": "constexpr"}
    yield Variant(
        "sigmoid_gate of rows", _gate_rows_kernel,
        {"x": "*fp32", "gate": "*fp32", "result": "*fp32", **rows}, block, TILE.warps,
    )  # fmt: skip
    yield Variant(
        "softplus", _softplus_kernel,
        {"x": "*fp32", "scale": "*fp32", "result": "*fp32", **rows}, block, TILE.warps,
    )  # fmt: skip
    yield Variant(
        "softcap", _softcap_kernel,
        {"x": "*fp32", "result": "*fp32", "count": "i32", "cap": "fp32", "BLOCK": "constexpr"}, block,
        TILE.warps,
    )  # fmt: skip
    yield Variant(
        "temper",
        _temper_kernel,
        {
            "x": "*fp32", "positions": "*i32", "SCALE": "constexpr", "FLOOR_SCALE": "constexpr",
            "FIRST": "constexpr", **rows,
        },
        block | {"SCALE": 0.1, "FLOOR_SCALE": 8192.0, "FIRST": 1},
        TILE.warps,
    )  # fmt: skip
    yield Variant(
        "mix, 4 to 4",
        _mix_kernel,
        {
            "x": "*fp32", "mixture": "*fp32", "result": "*fp32", "size": "i32", "INPUTS": "constexpr",
            "OUTPUTS": "constexpr", **rows,
        },
        block | {"INPUTS": 4, "OUTPUTS": 4},
        TILE.warps,
    )  # fmt: skip
    yield Variant(
        "balance, 4 by 4",
        _balance_kernel,
        {
            "logits": "*fp32", "result": "*fp32", "eps": "fp32", "rounds": "i32", "COUNT": "constexpr",
            "TILE": "constexpr",
        },
        {"COUNT": 4, "TILE": 4},
        1,
    )  # fmt: skip

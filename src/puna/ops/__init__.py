"""The operations models are made of: one signature each, several implementations.

`reference` (plain torch, the specification) and `cpu` (C++ kernels). The functions here
hand on to the implementation chosen for this process: `cpu` when the extension is built,
unless `PUNA_OPS=reference`. This is the one place that decides.

Tensors are contiguous float32 on the CPU, indices int32, unless stated. `T` is the number
of tokens in the batch. What a token's row comes out as does not depend on the rest of the
batch, nor on the number of threads. The C++ kernels raise `ValueError` for wrong shapes or
dtypes and `IndexError` for indices out of range; the reference leaves that to torch.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from puna.config import env
from puna.ops.experts import Experts, ExpertWeights, Routing
from puna.ops.kv import KV_TYPES, kv_pack, kv_row_bytes, kv_shape, kv_storage, kv_type, kv_unpack, kv_zeros
from puna.ops.rope import Rope, Yarn
from puna.ops.threads import keep_freed_memory, set_threads, threads, use_one_torch_thread
from puna.ops.weight import Weight, packed_bytes

#: What models, caches and operations compute on.
Array = Tensor
#: What has the operations; every module of a model carries one. Here it is this package itself.
Backend = Any

__all__ = [
    "KV_TYPES",
    "Array",
    "Backend",
    "ExpertWeights",
    "Experts",
    "Rope",
    "Routing",
    "Weight",
    "Yarn",
    "add_rms_norm",
    "array",
    "attention",
    "concatenate",
    "embedding",
    "experts",
    "geglu",
    "gelu",
    "implementation",
    "keep_freed_memory",
    "kv_pack",
    "kv_row_bytes",
    "kv_shape",
    "kv_storage",
    "kv_type",
    "kv_unpack",
    "kv_zeros",
    "layer_norm",
    "leave_cores_to_kernels",
    "linear",
    "linear_many",
    "numpy",
    "packed_bytes",
    "pad",
    "rms_norm",
    "rope_",
    "route",
    "set_threads",
    "short_conv",
    "softcap",
    "store_rows",
    "swiglu",
    "temper_",
    "threads",
    "use",
]

IMPLEMENTATIONS = ("reference", "cpu")


def _load(name: str) -> ModuleType:
    if name not in IMPLEMENTATIONS:
        raise ValueError(
            f"ops implementation {name!r} is none of {', '.join(IMPLEMENTATIONS)} (see PUNA_OPS)"
        )
    return importlib.import_module(f"puna.ops.{name}")


def _choose() -> ModuleType:
    wanted = env("OPS")
    if wanted:
        return _load(wanted)
    try:
        return _load("cpu")
    except ImportError as error:
        warnings.warn(
            f"Puna's C++ kernels are not available ({error}); falling back to plain torch, which is many "
            "times slower. Install a C++ compiler and reinstall Puna, or set PUNA_OPS=reference to "
            "choose this without a warning.",
            RuntimeWarning,
            stacklevel=2,
        )
        return _load("reference")


if TYPE_CHECKING:
    # To a type checker every implementation looks like the one that is the specification.
    from puna.ops import reference as _active
else:
    _active = _choose()


def implementation() -> str:
    """Which implementation is in use: `reference` or `cpu`."""
    return _active.__name__.rpartition(".")[2]


def leave_cores_to_kernels() -> None:
    """Have torch use one thread for what the calling thread asks of it from now on, if there are kernels.

    What they leave to torch is little, a sum over the rows of a prompt at most, and after each piece of it
    torch's other threads go on looking for work, for milliseconds, on cores that the kernels need.
    """
    if implementation() == "cpu":
        use_one_torch_thread()


@contextmanager
def use(name: str) -> Iterator[None]:
    """Inside a `with` block use the implementation `name`, in the whole process (for comparisons)."""
    global _active
    before, _active = _active, _load(name)
    try:
        yield
    finally:
        _active = before


def array(values: np.ndarray) -> Array:
    """An array with `values` of the host, which must not change afterwards."""
    return torch.from_numpy(values)


def numpy(values: Array) -> np.ndarray:
    """The values of an array on the host, to be read only."""
    return values.numpy()


def concatenate(parts: Sequence[Array]) -> Array:
    """`parts` [n, ...] one after another: the sum of their rows."""
    return torch.cat(list(parts))


def pad(x: Array, width: int, value: float) -> Array:
    """The rows of `x` [T, n] followed by `value` up to a length of `width`."""
    return torch.nn.functional.pad(x, (0, width - x.shape[1]), value=value)


def embedding(tokens: Tensor, weight: Weight) -> Tensor:
    """Rows `tokens` [T] of `weight` [vocabulary, width], dequantised: [T, width]."""
    return _active.embedding(tokens, weight)


def linear(x: Tensor, weight: Weight, bias: Tensor | None = None) -> Tensor:
    """`x @ weight.T + bias`: x [T, in], weight [out, in], bias [out], result [T, out]."""
    return _active.linear(x, weight, bias)


def linear_many(
    x: Tensor, weights: Sequence[Weight], biases: Sequence[Tensor | None] | None = None
) -> list[Tensor]:
    """`linear` of the same `x` with several weights, preparing `x` once."""
    return _active.linear_many(x, weights, biases)


def route(logits: Tensor, routing: Routing, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Which experts each token goes through, and how much each counts.

    Of `logits` [T, experts] the scores are the softmax or the sigmoids. The `routing.used` best are those
    with the largest logits or, where there is a `bias` [experts], the largest score + bias; equal ones by
    number. Returns `chosen` int32 and `shares` float32, both [T, used] and best first: a share is the score,
    divided by the sum of the chosen ones where `routing.normalize`, times `routing.scale`.
    """
    return _active.route(logits, routing, bias)


def experts(x: Tensor, chosen: Tensor, shares: Tensor, layer: Experts) -> Tensor:
    """Every token through its chosen experts: x [T, in], chosen and shares [T, used], result [T, out].

    The sum over a token's experts of `share * down(activation(gate(x), up(x)))`, or of
    `down(activation(gate(share * x), up(share * x)))` where `layer.scale_inputs`. The activation `swiglu`
    is `silu(gate) * up`; `clamped_swiglu` is gpt-oss's `g * sigmoid(1.702 g) * (u + 1)` with gates g of at
    most 7 and ups u within -7 and 7.
    """
    return _active.experts(x, chosen, shares, layer)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """`x / sqrt(mean(x²) + eps) * weight` over the last axis: x [..., d], weight [d]."""
    return _active.rms_norm(x, weight, eps)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """`total = x + residual` and `rms_norm(total)`: x and residual [..., d]; returns (total, normed)."""
    return _active.add_rms_norm(x, residual, weight, eps)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    """`(x - mean(x)) / sqrt(var(x) + eps) * weight + bias` over the last axis: x [..., d], weight, bias [d].

    The variance is that of the d values themselves (divided by d, not by d - 1).
    """
    return _active.layer_norm(x, weight, bias, eps)


def rope_(x: Tensor, positions: Tensor, rope: Rope) -> None:
    """Turn the heads of `x` [T, heads, head_dim] by their `positions` (may be negative), in place.

    `positions` are [T], or [T, rope.axis_count] where pairs are turned by positions on several axes.
    """
    _active.rope_(x, positions, rope)


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """`silu(gate) * up`, both [T, n]."""
    return _active.swiglu(gate, up)


def geglu(gate: Tensor, up: Tensor) -> Tensor:
    """`gelu(gate) * up`, both [T, n]; GELU as `x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x³)))`."""
    return _active.geglu(gate, up)


def gelu(x: Tensor) -> Tensor:
    """`x / 2 * (1 + erf(x / sqrt(2)))` of x [T, n]: GELU itself, not its approximation with tanh."""
    return _active.gelu(x)


def softcap(x: Tensor, cap: float) -> Tensor:
    """`cap * tanh(x / cap)` of x [T, n]: nearly x where that is small, never beyond `cap`, which is not 0."""
    return _active.softcap(x, cap)


def temper_(x: Tensor, positions: Tensor, scale: float, floor_scale: float) -> None:
    """Multiply rows of `x` [T, ...] by `1 + scale * ln(1 + floor((position + 1) / floor_scale))`, in place.

    What sharpens the attention of queries at late `positions` [T], which have more keys to choose from: the
    temperature tuning of Llama 4, after Nakanishi, arXiv:2501.19399.
    """
    _active.temper_(x, positions, scale, floor_scale)


def short_conv(
    projected: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    states: Tensor,
    starts: Tensor,
    sources: Tensor,
    targets: Tensor,
) -> Tensor:
    """A gated short convolution of each channel over the rows of each sequence: [T, channels].

    `projected` [T, 3 * channels] holds b, c and x. Row t comes out as `c * (bias + sum of weight * recent)`,
    `recent` being the products `b * x` of that row and the `taps - 1` before it, the latest last: weight
    [taps, channels], bias [channels].

    The sequence of row t has the rows from `starts[t]` on. What precedes them, zeros at first, is the state
    `sources[t]` of `states` [slots, taps - 1, channels]. State `targets[t]` becomes what precedes the row
    after t; -1: none does. States that are written are distinct, and none of them is read. starts, sources
    and targets are [T]. A row's result is the same bits however its sequence is cut into batches.
    """
    return _active.short_conv(projected, weight, bias, states, starts, sources, targets)


def store_rows(target: Tensor, cells: Tensor, rows: Tensor) -> None:
    """`target[cells] = rows`: rows [T, heads, dim], target as `kv_zeros` makes it, cells [T] distinct.

    Rows are rounded or quantised to what the target stores (see `kv_pack`).
    """
    _active.store_rows(target, cells, rows)


def attention(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    cells: Tensor,
    starts: Tensor,
    counts: Tensor,
    scale: float,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
) -> Tensor:
    """Attention where every row has its own list of cells.

    Row t of `q` [T, heads, head_dim] sees `cells[starts[t] : starts[t] + counts[t]]` of
    `keys` [capacity, kv_heads, head_dim] and `values` [capacity, kv_heads, value_dim], each
    stored as any of `KV_TYPES` (see `kv_zeros`). Query head h reads key/value head
    `h * kv_heads // heads`. The result [T, heads, value_dim] is `softmax(scale * q k) v`; where
    `softcap` is not 0 the scores go through `softcap * tanh(score / softcap)` first, and `sinks`
    [heads] join the softmax's denominator as one more score per head. A row with a count of 0 gives zeros.

    Neighbouring rows that see parts of the same stretch of `cells` share the work on it: a prompt
    (one start, growing counts), a sliding window (both growing), an image (equal ranges). A row's
    result is the same bits whatever else is in the batch, wherever the cells lie, and wherever the
    list begins as long as that is the same modulo 512.
    """
    return _active.attention(q, keys, values, cells, starts, counts, scale, softcap, sinks)

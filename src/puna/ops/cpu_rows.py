"""The C++ versions of everything but matrix products: checks what is passed, then calls the kernels."""

from __future__ import annotations

import torch
from torch import Tensor

from puna import _native
from puna.gguf import GGMLType
from puna.ops.kv import KV_TYPES, kv_shape, kv_type
from puna.ops.rope import Rope


def address(tensor: Tensor, dtype: torch.dtype, name: str) -> int:
    """Where the values of `tensor` lie; raises `ValueError` unless they are contiguous CPU `dtype`."""
    if tensor.dtype is not dtype or not tensor.is_contiguous() or not tensor.is_cpu:
        layout = "contiguous" if tensor.is_contiguous() else "strided"
        raise ValueError(
            f"{name}: expected contiguous {dtype} on the CPU, got {layout} {tensor.dtype} on {tensor.device}"
        )
    return tensor.data_ptr()


def misfit(operation: str, **shapes: Tensor) -> ValueError:
    """The error for tensors whose shapes do not go together."""
    given = ", ".join(f"{name} {list(tensor.shape)}" for name, tensor in shapes.items())
    return ValueError(f"{operation}: shapes do not fit together: {given}")


def _kv_type(storage: Tensor, name: str) -> GGMLType:
    kind = kv_type(storage)
    if kind is None:
        types = ", ".join(kind.name for kind in KV_TYPES)
        raise ValueError(f"{name}: {storage.dtype} {list(storage.shape)} stores none of {types}")
    return kind


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    width = weight.numel()
    if not x.dim() or x.shape[-1] != width:
        raise misfit("rms_norm", x=x, weight=weight)
    result = torch.empty_like(x)
    _native.rms_norm(
        address(x, torch.float32, "rms_norm x"), 0, address(weight, torch.float32, "rms_norm weight"),
        eps, x.numel() // max(width, 1), width, 0, result.data_ptr(),
    )  # fmt: skip
    return result


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    width = weight.numel()
    if x.shape != residual.shape or not x.dim() or x.shape[-1] != width:
        raise misfit("add_rms_norm", x=x, residual=residual, weight=weight)
    total, result = torch.empty_like(x), torch.empty_like(x)
    _native.rms_norm(
        address(x, torch.float32, "add_rms_norm x"),
        address(residual, torch.float32, "add_rms_norm residual"),
        address(weight, torch.float32, "add_rms_norm weight"), eps, x.numel() // max(width, 1), width,
        total.data_ptr(), result.data_ptr(),
    )  # fmt: skip
    return total, result


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    width = weight.numel()
    if not x.dim() or x.shape[-1] != width:
        raise misfit("layer_norm", x=x, weight=weight)
    if bias is not None and bias.shape != weight.shape:
        raise misfit("layer_norm", weight=weight, bias=bias)
    result = torch.empty_like(x)
    _native.layer_norm(
        address(x, torch.float32, "layer_norm x"), address(weight, torch.float32, "layer_norm weight"),
        0 if bias is None else address(bias, torch.float32, "layer_norm bias"), eps,
        x.numel() // max(width, 1), width, result.data_ptr(),
    )  # fmt: skip
    return result


def rope_(x: Tensor, positions: Tensor, rope: Rope) -> None:
    axes = rope.axes if positions.dim() == 2 else None
    axis_count = 1 if axes is None else rope.axis_count
    expected = x.shape[:1] if axes is None else (*x.shape[:1], axis_count)
    if x.dim() != 3 or positions.shape != expected or 2 * rope.pairs > x.shape[2]:
        raise misfit("rope_", x=x, positions=positions, frequencies=rope.frequencies)
    rows, heads, dim = x.shape
    _native.rope(
        address(x, torch.float32, "rope_ x"), address(positions, torch.int32, "rope_ positions"),
        0 if axes is None else axes.data_ptr(), rope.frequencies.data_ptr(), rope.magnitude, rope.neox,
        rows, heads, dim, rope.pairs, axis_count,
    )  # fmt: skip


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    if gate.shape != up.shape:
        raise misfit("swiglu", gate=gate, up=up)
    result = torch.empty_like(gate)
    _native.swiglu(
        address(gate, torch.float32, "swiglu gate"), address(up, torch.float32, "swiglu up"),
        gate.numel(), result.data_ptr(),
    )  # fmt: skip
    return result


def geglu(gate: Tensor, up: Tensor) -> Tensor:
    if gate.shape != up.shape:
        raise misfit("geglu", gate=gate, up=up)
    result = torch.empty_like(gate)
    _native.geglu(
        address(gate, torch.float32, "geglu gate"), address(up, torch.float32, "geglu up"),
        gate.numel(), result.data_ptr(),
    )  # fmt: skip
    return result


def gelu(x: Tensor) -> Tensor:
    result = torch.empty_like(x)
    _native.gelu(address(x, torch.float32, "gelu x"), x.numel(), result.data_ptr())
    return result


def softcap(x: Tensor, cap: float) -> Tensor:
    result = torch.empty_like(x)
    _native.softcap(address(x, torch.float32, "softcap x"), cap, x.numel(), result.data_ptr())
    return result


def temper_(x: Tensor, positions: Tensor, scale: float, floor_scale: float) -> None:
    if not x.dim() or positions.shape != x.shape[:1]:
        raise misfit("temper_", x=x, positions=positions)
    rows = x.shape[0]
    _native.temper(
        address(x, torch.float32, "temper_ x"), address(positions, torch.int32, "temper_ positions"),
        scale, floor_scale, rows, x.numel() // max(rows, 1),
    )  # fmt: skip


def short_conv(
    projected: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    states: Tensor,
    starts: Tensor,
    sources: Tensor,
    targets: Tensor,
) -> Tensor:
    fits = weight.dim() == 2 and projected.dim() == 2 and states.dim() == 3 and len(weight) > 0
    if fits:
        (taps, channels), rows = weight.shape, len(projected)
        fits = projected.shape[1] == 3 * channels and states.shape[1:] == (taps - 1, channels)
        fits = fits and starts.shape == sources.shape == targets.shape == (rows,)
    if not fits:
        raise misfit(
            "short_conv", projected=projected, weight=weight, states=states, starts=starts, sources=sources,
            targets=targets,
        )  # fmt: skip
    if bias is not None and bias.shape != (channels,):
        raise misfit("short_conv", weight=weight, bias=bias)
    result = torch.empty(rows, channels)
    _native.short_conv(
        address(projected, torch.float32, "short_conv projected"),
        address(weight, torch.float32, "short_conv weight"),
        0 if bias is None else address(bias, torch.float32, "short_conv bias"),
        address(states, torch.float32, "short_conv states"),
        address(starts, torch.int32, "short_conv starts"),
        address(sources, torch.int32, "short_conv sources"),
        address(targets, torch.int32, "short_conv targets"),
        result.data_ptr(), rows, channels, taps, len(states),
    )  # fmt: skip
    return result


def store_rows(target: Tensor, cells: Tensor, rows: Tensor) -> None:
    kind = _kv_type(target, "store_rows target")
    if not target.dim() or cells.dim() != 1 or rows.shape != (cells.shape[0], *kv_shape(target)[1:]):
        raise misfit("store_rows", target=target, cells=cells, rows=rows)
    if not cells.numel():
        return
    _native.store_rows(
        address(target, target.dtype, "store_rows target"), int(kind),
        address(cells, torch.int32, "store_rows cells"), address(rows, torch.float32, "store_rows rows"),
        cells.numel(), rows.numel() // cells.numel(), target.shape[0],
    )  # fmt: skip


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
    key_type, value_type = _kv_type(keys, "attention keys"), _kv_type(values, "attention values")
    key_shape, value_shape = kv_shape(keys), kv_shape(values)
    fits = q.dim() == len(key_shape) == len(value_shape) == 3
    if fits:
        rows, heads, dim = q.shape
        capacity, kv_heads, value_dim = value_shape
        fits = key_shape == (capacity, kv_heads, dim) and kv_heads > 0 and heads % kv_heads == 0
        fits = fits and starts.shape == counts.shape == (rows,) and cells.dim() == 1
        fits = fits and (sinks is None or sinks.shape == (heads,))
    if not fits:
        raise misfit("attention", q=q, keys=keys, values=values, cells=cells, starts=starts, counts=counts)
    result = torch.empty(rows, heads, value_dim)
    _native.attention(
        address(q, torch.float32, "attention q"),
        address(keys, keys.dtype, "attention keys"), int(key_type),
        address(values, values.dtype, "attention values"), int(value_type),
        address(cells, torch.int32, "attention cells"), address(starts, torch.int32, "attention starts"),
        address(counts, torch.int32, "attention counts"),
        0 if sinks is None else address(sinks, torch.float32, "attention sinks"), result.data_ptr(),
        rows, heads, kv_heads, dim, value_dim, capacity, cells.numel(), scale, softcap,
    )  # fmt: skip
    return result

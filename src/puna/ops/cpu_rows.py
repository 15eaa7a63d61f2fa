"""The C++ versions of everything but matrix products: checks what is passed, then calls the kernels."""

from __future__ import annotations

import torch
from torch import Tensor

from puna import _native
from puna.ops.rope import Rope


def address(tensor: Tensor, dtype: torch.dtype, name: str) -> int:
    """Where the values of `tensor` lie; raises `ValueError` unless they are contiguous CPU `dtype`."""
    if tensor.dtype is not dtype or not tensor.is_contiguous() or tensor.device.type != "cpu":
        layout = "contiguous" if tensor.is_contiguous() else "strided"
        raise ValueError(
            f"{name}: expected contiguous {dtype} on the CPU, got {layout} {tensor.dtype} on {tensor.device}"
        )
    return tensor.data_ptr()


def _check(right: bool, operation: str, **shapes: Tensor) -> None:
    if not right:
        given = ", ".join(f"{name} {list(tensor.shape)}" for name, tensor in shapes.items())
        raise ValueError(f"{operation}: shapes do not fit together: {given}")


def _is_half(tensor: Tensor, name: str) -> bool:
    if tensor.dtype not in (torch.float16, torch.float32):
        raise ValueError(f"{name}: expected float16 or float32, got {tensor.dtype}")
    return tensor.dtype is torch.float16


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    width = weight.numel()
    _check(x.dim() > 0 and x.shape[-1] == width, "rms_norm", x=x, weight=weight)
    result = torch.empty_like(x)
    _native.rms_norm(
        address(x, torch.float32, "rms_norm x"), 0, address(weight, torch.float32, "rms_norm weight"),
        eps, x.numel() // max(width, 1), width, 0, result.data_ptr(),
    )  # fmt: skip
    return result


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    width = weight.numel()
    right = x.shape == residual.shape and x.dim() > 0 and x.shape[-1] == width
    _check(right, "add_rms_norm", x=x, residual=residual, weight=weight)
    total, result = torch.empty_like(x), torch.empty_like(x)
    _native.rms_norm(
        address(x, torch.float32, "add_rms_norm x"),
        address(residual, torch.float32, "add_rms_norm residual"),
        address(weight, torch.float32, "add_rms_norm weight"), eps, x.numel() // max(width, 1), width,
        total.data_ptr(), result.data_ptr(),
    )  # fmt: skip
    return total, result


def rope_(x: Tensor, positions: Tensor, rope: Rope) -> None:
    right = x.dim() == 3 and positions.shape == x.shape[:1] and 2 * rope.pairs <= x.shape[2]
    _check(right, "rope_", x=x, positions=positions, frequencies=rope.frequencies)
    rows, heads, dim = x.shape
    _native.rope(
        address(x, torch.float32, "rope_ x"), address(positions, torch.int32, "rope_ positions"),
        rope.frequencies.data_ptr(), rope.magnitude, rope.neox, rows, heads, dim, rope.pairs,
    )  # fmt: skip


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    _check(gate.shape == up.shape, "swiglu", gate=gate, up=up)
    result = torch.empty_like(gate)
    _native.swiglu(
        address(gate, torch.float32, "swiglu gate"), address(up, torch.float32, "swiglu up"),
        gate.numel(), result.data_ptr(),
    )  # fmt: skip
    return result


def store_rows(target: Tensor, cells: Tensor, rows: Tensor) -> None:
    right = target.dim() > 0 and cells.dim() == 1 and rows.shape == (cells.shape[0], *target.shape[1:])
    _check(right, "store_rows", target=target, cells=cells, rows=rows)
    if not cells.numel():
        return
    _native.store_rows(
        address(target, target.dtype, "store_rows target"), _is_half(target, "store_rows target"),
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
    right = q.dim() == keys.dim() == values.dim() == 3 and keys.shape[:2] == values.shape[:2]
    right = right and q.shape[2] == keys.shape[2] and keys.shape[1] > 0 and q.shape[1] % keys.shape[1] == 0
    right = right and starts.shape == counts.shape == q.shape[:1] and cells.dim() == 1
    right = right and (sinks is None or sinks.shape == q.shape[1:2])
    if not right:
        _check(right, "attention", q=q, keys=keys, values=values, cells=cells, starts=starts, counts=counts)
    if keys.dtype is not values.dtype:
        raise ValueError(f"attention: keys are {keys.dtype}, values {values.dtype}")
    rows, heads, dim = q.shape
    capacity, kv_heads, value_dim = values.shape
    result = torch.empty(rows, heads, value_dim)
    _native.attention(
        address(q, torch.float32, "attention q"), address(keys, keys.dtype, "attention keys"),
        address(values, values.dtype, "attention values"), _is_half(keys, "attention keys"),
        address(cells, torch.int32, "attention cells"), address(starts, torch.int32, "attention starts"),
        address(counts, torch.int32, "attention counts"),
        0 if sinks is None else address(sinks, torch.float32, "attention sinks"), result.data_ptr(),
        rows, heads, kv_heads, dim, value_dim, capacity, cells.numel(), scale, softcap,
    )  # fmt: skip
    return result

"""The C++ versions of routing and experts: checks what is passed, then calls the kernels."""

from __future__ import annotations

import torch
from torch import Tensor

from puna import _native
from puna.ops.cpu_rows import address, misfit
from puna.ops.experts import ACTIVATIONS, Experts, Routing


def route(logits: Tensor, routing: Routing, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
    if logits.dim() != 2 or not 0 < routing.used <= logits.shape[1]:
        raise ValueError(f"route: cannot choose {routing.used} experts by logits {list(logits.shape)}")
    tokens, count = logits.shape
    if bias is not None and bias.shape != (count,):
        raise misfit("route", logits=logits, bias=bias)
    chosen = torch.empty(tokens, routing.used, dtype=torch.int32)
    shares = torch.empty(tokens, routing.used)
    _native.route(
        address(logits, torch.float32, "route logits"), _bias_address(bias, "route bias"), tokens, count,
        routing.used, routing.sigmoid, routing.normalize, routing.scale, chosen.data_ptr(), shares.data_ptr(),
    )  # fmt: skip
    return chosen, shares


def experts(x: Tensor, chosen: Tensor, shares: Tensor, layer: Experts) -> Tensor:
    gate = layer.gate
    if x.dim() != 2 or x.shape[1] != gate.shape[2]:
        raise ValueError(
            f"experts: x {list(x.shape)} does not fit weight '{gate.weight.name}' {list(gate.shape)}"
        )
    if chosen.dim() != 2 or len(chosen) != len(x) or shares.shape != chosen.shape:
        raise misfit("experts", x=x, chosen=chosen, shares=shares)
    result = torch.empty(len(x), layer.down.shape[1])
    _native.experts(
        gate.weight.matrix, layer.up.weight.matrix, layer.down.weight.matrix,
        _bias_address(layer.gate_bias, "experts gate bias"), _bias_address(layer.up_bias, "experts up bias"),
        _bias_address(layer.down_bias, "experts down bias"), gate.shape[0],
        ACTIVATIONS.index(layer.activation), layer.scale_inputs, address(x, torch.float32, "experts x"),
        address(chosen, torch.int32, "experts chosen"), address(shares, torch.float32, "experts shares"),
        len(x), chosen.shape[1], result.data_ptr(),
    )  # fmt: skip
    return result


def _bias_address(bias: Tensor | None, name: str) -> int:
    return 0 if bias is None else address(bias, torch.float32, name)

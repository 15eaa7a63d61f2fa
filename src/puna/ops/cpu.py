"""The C++ kernels behind the operations. Signatures and meanings are those of `puna.ops`."""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch
from torch import Tensor

from puna import _native
from puna.config import env_int
from puna.errors import OptionError
from puna.ops.cpu_experts import experts, route
from puna.ops.cpu_rows import (
    add_rms_norm,
    address,
    attention,
    geglu,
    gelu,
    layer_norm,
    rms_norm,
    rope_,
    short_conv,
    softcap,
    store_rows,
    swiglu,
    temper_,
)
from puna.ops.weight import Weight

__all__ = [
    "add_rms_norm",
    "attention",
    "embedding",
    "experts",
    "geglu",
    "gelu",
    "layer_norm",
    "linear",
    "linear_many",
    "rms_norm",
    "rope_",
    "route",
    "short_conv",
    "softcap",
    "store_rows",
    "swiglu",
    "temper_",
]

if (_level := os.environ.get("PUNA_CPU")) and _level not in _native.cpu_levels():
    raise OptionError(
        f"PUNA_CPU: '{_level}' names no kernels that this processor runs; use one of "
        f"{', '.join(_native.cpu_levels())}, or leave it out for the best"
    )

if (_threads := env_int("NUM_THREADS", 0)) > 0:
    _native.set_threads(_threads)


def embedding(tokens: Tensor, weight: Weight) -> Tensor:
    data = weight.data
    if data is None or not _native.can_decode(int(weight.type)):
        return weight.rows(tokens)
    ids, count = address(tokens, torch.int32, "embedding tokens"), tokens.numel()
    result = torch.empty(count, weight.shape[1])
    try:
        _native.embed(data.ctypes.data, int(weight.type), *weight.shape, ids, count, result.data_ptr())
    except IndexError:
        weight.check_rows(tokens)  # says which weight
        raise
    return result


def linear(x: Tensor, weight: Weight, bias: Tensor | None = None) -> Tensor:
    return linear_many(x, (weight,), (bias,))[0]


def linear_many(
    x: Tensor, weights: Sequence[Weight], biases: Sequence[Tensor | None] | None = None
) -> list[Tensor]:
    if biases is None:
        biases = (None,) * len(weights)
    elif len(biases) != len(weights):
        raise ValueError(f"linear: {len(weights)} weights and {len(biases)} biases")
    if x.dim() != 2:
        raise ValueError(f"linear: expected x [tokens, in], got {list(x.shape)}")
    tokens, columns = x.shape
    results, bias_addresses = [], []
    for weight, bias in zip(weights, biases, strict=True):
        if weight.shape[1] != columns:
            raise ValueError(
                f"linear: x {list(x.shape)} does not fit weight '{weight.name}' {list(weight.shape)}"
            )
        if bias is not None and bias.shape != (weight.shape[0],):
            raise ValueError(f"linear: bias {list(bias.shape)} does not fit weight '{weight.name}'")
        bias_addresses.append(0 if bias is None else address(bias, torch.float32, "linear bias"))
        results.append(torch.empty(tokens, weight.shape[0]))
    _native.linear(
        [weight.matrix for weight in weights], bias_addresses, address(x, torch.float32, "linear x"),
        tokens, columns, [result.data_ptr() for result in results],
    )  # fmt: skip
    return results

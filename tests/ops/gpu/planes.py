"""Caches as the planes of codes and scales that kernels are given."""

from __future__ import annotations

import torch
from torch import Tensor

from puna.gguf import GGMLType
from tests.ops.torch_ops import kv_type


def planes(held: Tensor) -> tuple[Tensor, Tensor | None, GGMLType]:
    """Return codes, scales and type of a tensor laid out like storage."""
    kind = kv_type(held)
    if not kind.is_quantized:
        return held, None, kind
    codes, scales = held[..., 2:].flatten(-2).contiguous(), held[..., :2].contiguous()
    dtype = torch.int8 if kind is GGMLType.Q8_0 else torch.uint8
    return codes.view(dtype), scales.view(torch.float16).squeeze(-1), kind

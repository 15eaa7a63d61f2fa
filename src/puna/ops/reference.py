"""The operations in plain torch: short, obviously right, and therefore the specification.

`T` is the number of tokens in a batch. Everything is computed in the dtype of the
activations, which is float32 in use and float64 when a test wants the exact answer.
Indices are taken as they are: negative or out-of-range ones are the caller's mistake.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from puna.ops.experts import Experts, ExpertWeights, Routing
from puna.ops.kv import kv_pack, kv_shape, kv_type, kv_unpack
from puna.ops.rope import Rope
from puna.ops.weight import Weight


def embedding(tokens: Tensor, weight: Weight) -> Tensor:
    return weight.rows(tokens)


def linear(x: Tensor, weight: Weight, bias: Tensor | None = None) -> Tensor:
    result = x @ weight.dequantize().to(x.dtype).T
    return result if bias is None else result + bias


def linear_many(
    x: Tensor, weights: Sequence[Weight], biases: Sequence[Tensor | None] | None = None
) -> list[Tensor]:
    return [
        linear(x, weight, bias) for weight, bias in zip(weights, biases or [None] * len(weights), strict=True)
    ]


def route(logits: Tensor, routing: Routing, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
    scores = torch.sigmoid(logits) if routing.sigmoid else torch.softmax(logits, dim=-1)
    ranks = logits if bias is None else scores + bias
    chosen = ranks.sort(dim=-1, descending=True, stable=True).indices[:, : routing.used]
    shares = scores.gather(1, chosen)
    if routing.normalize:
        shares = shares / shares.sum(dim=-1, keepdim=True).clamp_min(1e-20)
    return chosen.int(), shares * routing.scale


def experts(x: Tensor, chosen: Tensor, shares: Tensor, layer: Experts) -> Tensor:
    result = x.new_zeros(len(x), layer.down.shape[1])
    activate = {"swiglu": swiglu, "clamped_swiglu": _clamped_swiglu}[layer.activation]
    for expert in sorted(set(chosen.flatten().tolist())):
        tokens, places = torch.where(chosen == expert)
        share = shares[tokens, places, None].to(x.dtype)
        given = x[tokens] * share if layer.scale_inputs else x[tokens]
        gate = _of_expert(given, layer.gate, layer.gate_bias, expert)
        up = _of_expert(given, layer.up, layer.up_bias, expert)
        back = _of_expert(activate(gate, up), layer.down, layer.down_bias, expert)
        result.index_add_(0, tokens, back if layer.scale_inputs else back * share)
    return result


def _of_expert(x: Tensor, weights: ExpertWeights, biases: Tensor | None, expert: int) -> Tensor:
    result = x @ weights.dequantize(expert).to(x.dtype).T
    return result if biases is None else result + biases[expert].to(x.dtype)


def _clamped_swiglu(gate: Tensor, up: Tensor) -> Tensor:
    gate = gate.clamp(max=7)
    return gate * torch.sigmoid(1.702 * gate) * (up.clamp(-7, 7) + 1)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / torch.sqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    total = x + residual
    return total, rms_norm(total, weight, eps)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    given = None if bias is None else bias.to(x.dtype)
    return F.layer_norm(x, weight.shape, weight.to(x.dtype), given, eps)


def rope_(x: Tensor, positions: Tensor, rope: Rope) -> None:
    # Angles in float64: at position 100,000 a float32 angle is off by up to 0.004.
    at = positions.double()
    at = at[:, None] if rope.axes is None or at.dim() == 1 else at[:, rope.axes.long()]
    angles = at * rope.frequencies.double()  # [T, pairs]
    cos = (angles.cos() * rope.magnitude).to(x.dtype)[:, None]  # [T, 1, pairs]
    sin = (angles.sin() * rope.magnitude).to(x.dtype)[:, None]
    pairs = rope.frequencies.numel()
    if rope.neox:
        first, second = x[..., :pairs], x[..., pairs : 2 * pairs]
    else:
        first, second = x[..., 0 : 2 * pairs : 2], x[..., 1 : 2 * pairs : 2]
    turned = first * cos - second * sin, first * sin + second * cos
    first.copy_(turned[0])
    second.copy_(turned[1])


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(gate) * up


def geglu(gate: Tensor, up: Tensor) -> Tensor:
    return F.gelu(gate, approximate="tanh") * up


def gelu(x: Tensor) -> Tensor:
    return x / 2 * torch.erfc(-x / math.sqrt(2))


def softcap(x: Tensor, cap: float) -> Tensor:
    return cap * torch.tanh(x / cap)


def temper_(x: Tensor, positions: Tensor, scale: float, floor_scale: float) -> None:
    factors = 1 + scale * torch.log1p(torch.floor((positions.double() + 1) / floor_scale))  # [T]
    x.mul_(factors.to(x.dtype).view(-1, *[1] * (x.dim() - 1)))


def short_conv(
    projected: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    states: Tensor,
    starts: Tensor,
    sources: Tensor,
    targets: Tensor,
) -> Tensor:
    taps, channels = weight.shape
    b, c, x = projected.view(len(projected), 3, channels).unbind(1)
    products, result = b * x, x.new_empty(x.shape)
    for t, (start, source, target) in enumerate(
        zip(starts.tolist(), sources.tolist(), targets.tolist(), strict=True)
    ):
        recent = torch.cat([states[source], products[start : t + 1]])[-taps:]
        total = (weight * recent).sum(0)
        result[t] = c[t] * (total if bias is None else total + bias)
        if target >= 0:
            states[target] = recent[1:]
    return result


def store_rows(target: Tensor, cells: Tensor, rows: Tensor) -> None:
    kind = kv_type(target)
    if kind is None:
        raise ValueError(f"store_rows: nothing is stored as {target.dtype} {list(target.shape)}")
    target[cells.long()] = kv_pack(rows, kind)


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
    rows, heads, _ = q.shape
    group = heads // keys.shape[1]
    result = q.new_zeros(rows, heads, kv_shape(values)[2])
    for t, (start, count) in enumerate(zip(starts.tolist(), counts.tolist(), strict=True)):
        if count == 0:
            continue
        seen = cells[start : start + count].long()
        key = kv_unpack(keys[seen]).to(q.dtype).repeat_interleave(group, dim=1)  # [count, heads, head_dim]
        value = kv_unpack(values[seen]).to(q.dtype).repeat_interleave(group, dim=1)
        scores = torch.einsum("hd,nhd->hn", q[t], key) * scale
        if softcap:
            scores = softcap * torch.tanh(scores / softcap)
        if sinks is not None:  # one more logit per head that takes its share and gives nothing
            scores = torch.cat([scores, sinks.to(q.dtype)[:, None]], dim=1)
        shares = torch.softmax(scores, dim=1)[:, :count]
        result[t] = torch.einsum("hn,nhd->hd", shares, value)
    return result

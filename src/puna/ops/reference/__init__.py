"""The operations in plain numpy: short, obviously right, and therefore the specification.

Everything is computed in the dtype of the activations: float32 in use, float64 when a test wants the exact
answer. Indices are not checked: negative or out-of-range ones are the caller's mistake.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from puna.gguf import GGMLType
from puna.ops import quantized
from puna.ops.backend import Backend, list_width
from puna.ops.experts import ExpertNetworks, ExpertWeights, Routing
from puna.ops.host import HostBuffer, HostStorage
from puna.ops.rope import Rope
from puna.ops.weight import Weight

Array = NDArray[Any]

#: NaN and infinity propagate, as on every backend, without numpy's warnings.
_without_warnings = np.errstate(all="ignore")


class Reference(Backend):
    """The reference backend: numpy on one thread of this process."""

    name = "reference"
    kernels = "numpy"

    def array(self, values: Array) -> Array:
        return values

    def numpy(self, array: Array) -> Array:
        return array

    def index_buffer(self, *shape: int) -> HostBuffer:
        return HostBuffer(shape)

    def number_buffer(self, *shape: int) -> HostBuffer:
        return HostBuffer(shape, np.float32)

    def concatenate(self, arrays: Sequence[Array]) -> Array:
        return np.concatenate(arrays)

    def join(self, arrays: Sequence[Array]) -> Array:
        return np.concatenate(arrays, axis=-1)

    def pad(self, x: Array, width: int, value: float) -> Array:
        return np.pad(x, [(0, 0), (0, width - x.shape[1])], constant_values=value)

    def split(self, x: Array, parts: int) -> list[Array]:
        return [np.ascontiguousarray(columns) for columns in np.split(x, parts, axis=1)]

    def pack(self, weight: Weight) -> None:
        """Do nothing: this backend reads the file's bytes."""

    def packed_bytes(self, type: GGMLType, shape: tuple[int, ...]) -> int:
        return type.nbytes(shape[0] * shape[1])

    def storage(self, kind: GGMLType, rows: int, row_shape: tuple[int, ...]) -> HostStorage:
        return HostStorage(kind, rows, row_shape)

    def embedding(self, tokens: Array, weight: Weight) -> Array:
        return weight.rows(tokens)

    @_without_warnings
    def linear(self, x: Array, weight: Weight, bias: Array | None = None) -> Array:
        result = x @ weight.values().astype(x.dtype, copy=False).T
        return result if bias is None else result + bias

    @_without_warnings
    def linear_many(
        self, x: Array, weights: Sequence[Weight], biases: Sequence[Array | None] | None = None
    ) -> list[Array]:
        biases = biases or [None] * len(weights)
        return [self.linear(x, weight, bias) for weight, bias in zip(weights, biases, strict=True)]

    @_without_warnings
    def linear_heads(self, x: Array, weights: Sequence[Weight]) -> Array:
        heads = [self.linear(x[:, head], weight) for head, weight in enumerate(weights)]
        return np.stack(heads, axis=1)

    @_without_warnings
    def route(self, logits: Array, routing: Routing, bias: Array | None = None) -> tuple[Array, Array]:
        scores = _scores(logits, routing)
        biased = scores if bias is None else scores + bias
        ranks = _ranks(logits if bias is None else biased)
        size = logits.shape[1] // routing.groups
        by_group = np.sort(_ranks(biased).reshape(len(logits), routing.groups, size), axis=-1)
        groups = _best(_ranks(by_group[..., -routing.best_of_group :].sum(-1)), routing.used_groups)
        allowed = (np.arange(routing.groups) == groups[..., None]).any(1).repeat(size, axis=1)
        chosen = np.lexsort((-ranks, ~allowed))[:, : routing.used]
        return chosen.astype(np.int32), _shares(scores, chosen, routing)

    @_without_warnings
    def route_by_table(
        self, logits: Array, routing: Routing, table: Array, tokens: Array
    ) -> tuple[Array, Array]:
        chosen = table[tokens]
        return chosen, _shares(_scores(logits, routing), chosen, routing)

    @_without_warnings
    def experts(self, x: Array, chosen: Array, weights: Array, layer: ExpertNetworks) -> Array:
        result = np.zeros((len(x), layer.down.shape[1]), x.dtype)
        activate = getattr(self, layer.activation)
        for expert in np.unique(chosen).tolist():
            tokens, places = np.nonzero(chosen == expert)
            weight = weights[tokens, places, None].astype(x.dtype)
            given = x[tokens] * weight if layer.scale_inputs else x[tokens]
            inner = [_of_expert(given, layer.up, layer.up_bias, expert)]
            if layer.gate is not None:
                inner.insert(0, _of_expert(given, layer.gate, layer.gate_bias, expert))
            if layer.up_limit:
                gate, up = inner
                inner = [np.minimum(gate, layer.gate_limit), np.clip(up, -layer.up_limit, layer.up_limit)]
            back = _of_expert(activate(*inner), layer.down, layer.down_bias, expert)
            np.add.at(result, tokens, back if layer.scale_inputs else back * weight)
        return result

    @_without_warnings
    def expert_linear(
        self, x: Array, chosen: Array, weights: ExpertWeights, bias: Array | None = None
    ) -> Array:
        result = np.empty((len(x), weights.shape[1]), x.dtype)
        for expert in np.unique(chosen).tolist():
            result[chosen == expert] = _of_expert(x[chosen == expert], weights, bias, expert)
        return result

    @_without_warnings
    def rms_norm(self, x: Array, weight: Array, eps: float) -> Array:
        return x / np.sqrt(np.square(x).mean(-1, keepdims=True) + x.dtype.type(eps)) * weight

    @_without_warnings
    def add_rms_norm(self, x: Array, residual: Array, weight: Array, eps: float) -> tuple[Array, Array]:
        total = x + residual
        return total, self.rms_norm(total, weight, eps)

    @_without_warnings
    def layer_norm(self, x: Array, weight: Array, bias: Array | None, eps: float) -> Array:
        centred = x - x.mean(-1, keepdims=True)
        normed = centred / np.sqrt(np.square(centred).mean(-1, keepdims=True) + x.dtype.type(eps)) * weight
        return normed if bias is None else normed + bias

    @_without_warnings
    def rope_(self, x: Array, positions: Array, rope: Rope) -> None:
        # Angles in float64: at position 100,000 a float32 angle is off by up to 0.004.
        at = positions.astype(np.float64)
        at = at[:, None] if rope.axes is None or at.ndim == 1 else at[:, rope.axes]
        angles = at * rope.frequencies.astype(np.float64)  # [T, pairs]
        cos = (np.cos(angles) * rope.magnitude).astype(x.dtype)[:, None]  # [T, 1, pairs]
        sin = (np.sin(angles) * rope.magnitude).astype(x.dtype)[:, None]
        pairs, x = rope.pairs, x[..., rope.begin :]
        if rope.neox:
            first, second = x[..., :pairs], x[..., pairs : 2 * pairs]
        else:
            first, second = x[..., 0 : 2 * pairs : 2], x[..., 1 : 2 * pairs : 2]
        first[:], second[:] = first * cos - second * sin, first * sin + second * cos

    @_without_warnings
    def swiglu(self, gate: Array, up: Array) -> Array:
        return gate * _sigmoid(gate) * up

    @_without_warnings
    def clamped_swiglu(self, gate: Array, up: Array) -> Array:
        gate = np.minimum(gate, 7)
        return gate * _sigmoid(gate.dtype.type(1.702) * gate) * (up.clip(-7, 7) + 1)

    @_without_warnings
    def geglu(self, gate: Array, up: Array) -> Array:
        inner = np.sqrt(2 / np.pi).astype(gate.dtype) * (gate + gate.dtype.type(0.044715) * gate**3)
        return gate / 2 * (1 + np.tanh(inner)) * up

    @_without_warnings
    def reglu(self, gate: Array, up: Array) -> Array:
        return np.maximum(gate, 0) * up

    @_without_warnings
    def gelu(self, x: Array) -> Array:
        return x / 2 * _erfc(-x / x.dtype.type(math.sqrt(2)))

    @_without_warnings
    def squared_relu(self, x: Array) -> Array:
        return np.square(np.maximum(x, 0))

    @_without_warnings
    def above(self, x: Array, deviations: float) -> Array:
        cutoff = x.mean(-1, keepdims=True) + x.dtype.type(deviations) * x.std(-1, keepdims=True)
        return np.maximum(x - cutoff, 0)

    @_without_warnings
    def mix(self, x: Sequence[Array], mixture: Array) -> list[Array]:
        weights = mixture.reshape(len(mixture), mixture.shape[1] // len(x), len(x))
        return [np.ascontiguousarray(y) for y in np.einsum("tmn,ntd->mtd", weights, np.stack(x))]

    @_without_warnings
    def balance(self, logits: Array, eps: float, rounds: int) -> Array:
        count = math.isqrt(logits.shape[1])
        found = (
            _softmax(logits.reshape(len(logits), count, count).swapaxes(1, 2)) + eps
        )  # [T, source, result]
        found = found / (found.sum(1, keepdims=True) + eps)
        for _ in range(rounds - 1):
            found = found / (found.sum(2, keepdims=True) + eps)
            found = found / (found.sum(1, keepdims=True) + eps)
        return np.ascontiguousarray(found.swapaxes(1, 2)).reshape(logits.shape)

    @_without_warnings
    def match_rms(self, x: Array, like: Array, floor: float) -> Array:
        own = np.maximum(np.square(x).mean(-1, keepdims=True), x.dtype.type(floor))
        return x * np.sqrt(np.square(like).mean(-1, keepdims=True) / own)

    @_without_warnings
    def sigmoid_gate(self, x: Array, gate: Array) -> Array:
        return x * _sigmoid(gate)

    @_without_warnings
    def softplus(self, x: Array, scale: Array) -> Array:
        return scale * np.logaddexp(x, 0)

    @_without_warnings
    def sigmoid(self, x: Array) -> Array:
        return _sigmoid(x)

    @_without_warnings
    def signed_root(self, x: Array, floor: float) -> Array:
        return np.sign(x) * np.sqrt(np.maximum(np.abs(x), x.dtype.type(floor)))

    @_without_warnings
    def softcap(self, x: Array, cap: float) -> Array:
        return cap * np.tanh(x / x.dtype.type(cap))

    @_without_warnings
    def temper_(self, x: Array, positions: Array, scale: float, floor_scale: float, first: int) -> None:
        at = positions.astype(np.float64)
        factors = 1 + scale * np.log1p(np.floor((at + first) / floor_scale))  # [T]
        x *= factors.astype(x.dtype).reshape(-1, *[1] * (x.ndim - 1))

    @_without_warnings
    def short_conv(
        self,
        projected: Array,
        weight: Array,
        bias: Array | None,
        states: HostStorage,
        starts: Array,
        sources: Array,
        targets: Array,
        *,
        gated: bool = True,
        activated: bool = True,
    ) -> Array:
        taps, channels = weight.shape
        products, c = projected, None
        if gated:
            b, c, x = projected.reshape(len(projected), 3, channels).transpose(1, 0, 2)
            products = b * x
        result = np.empty(products.shape, products.dtype)
        for t, (start, source, target) in enumerate(zip(starts, sources, targets, strict=True)):
            recent = np.concatenate([states.stored[source], products[start : t + 1]])[-taps:]
            total = (weight * recent).sum(0)
            total = total if bias is None else total + bias
            if c is not None:
                total = c[t] * total
            elif activated:
                total = total * _sigmoid(total)
            result[t] = total
            if target >= 0:
                states.stored[target] = recent[1:]
        return result

    @_without_warnings
    def pool_recent(
        self,
        values: Array,
        gates: Array,
        bias: Array,
        states: HostStorage,
        starts: Array,
        sources: Array,
        targets: Array,
    ) -> Array:
        taps, channels = bias.shape
        rows, result = np.concatenate([values, gates], axis=1), np.empty(values.shape, values.dtype)
        for t, (start, source, target) in enumerate(zip(starts, sources, targets, strict=True)):
            recent = np.concatenate([states.stored[source], rows[start : t + 1]])[-taps:]
            shares = _softmax((recent[:, channels:] + bias).T)  # [channels, taps]
            result[t] = (shares.T * recent[:, :channels]).sum(0)
            if target >= 0:
                states.stored[target] = recent[1:]
        return result

    @_without_warnings
    def linear_attention(
        self,
        queries: Array,
        keys: Array,
        values: Array,
        decays: Array,
        betas: Array | None,
        skips: Array | None,
        states: HostStorage,
        starts: Array,
        sources: Array,
        targets: Array,
        *,
        delta: bool = False,
        removal: tuple[Array, Array] | None = None,
        tiled: bool = False,
    ) -> Array:
        heads, key_heads = values.shape[1], keys.shape[1]
        of_head = np.arange(heads) % key_heads if tiled else np.arange(heads) * key_heads // heads
        factors = np.exp(decays[..., None] if decays.ndim == 3 else decays[..., None, None])
        result = np.empty(values.shape, values.dtype)
        memory = states.stored[:0]
        for t, (start, source, target) in enumerate(zip(starts, sources, targets, strict=True)):
            query, key = queries[t, of_head], keys[t, of_head]  # [heads, key_dim]
            before = states.stored[source] if start == t else memory
            memory = before * factors[t]
            if removal is not None:
                probe, taken = (each[t, of_head] for each in removal)
                memory = memory - taken[:, :, None] * np.einsum("hk,hkv->hv", probe, before)[:, None, :]
            value = values[t] - np.einsum("hk,hkv->hv", key, memory) if delta else values[t]
            value = value if betas is None else betas[t, :, None] * value
            memory = memory + key[:, :, None] * value[:, None, :]
            result[t] = np.einsum("hk,hkv->hv", query, memory)
            if skips is not None:
                result[t] += skips[:, None] * values[t]
            if target >= 0:
                states.stored[target] = memory
        return result

    @_without_warnings
    def selective_scan(
        self,
        x: Array,
        steps: Array,
        rates: Array,
        keys: Array,
        queries: Array,
        skips: Array,
        states: HostStorage,
        starts: Array,
        sources: Array,
        targets: Array,
    ) -> Array:
        result, state = np.empty(x.shape, x.dtype), states.stored[:0]
        for t, (start, source, target) in enumerate(zip(starts, sources, targets, strict=True)):
            state = np.exp(steps[t] * rates) * (states.stored[source] if start == t else state)
            state = state + np.outer(keys[t], steps[t] * x[t])
            result[t] = queries[t] @ state + skips * x[t]
            if target >= 0:
                states.stored[target] = state
        return result

    def ngram_rows(
        self,
        tokens: Array,
        multipliers: Array,
        sizes: Array,
        offsets: Array,
        boundary: int,
        states: HostStorage,
        starts: Array,
        sources: Array,
        targets: Array,
    ) -> Array:
        kept = len(multipliers) - 1
        orders = np.repeat(np.arange(kept), len(sizes) // kept)  # of each head, from bigrams on
        result = np.empty((len(tokens), len(sizes)), np.int32)
        for t, (start, source, target) in enumerate(zip(starts, sources, targets, strict=True)):
            before = states.stored[source].astype(np.int64) + boundary
            recent = np.concatenate([before, tokens[start : t + 1]])[-kept - 1 :]
            if target >= 0:
                states.stored[target] = recent[1:] - boundary
            earlier = recent[-2::-1]  # the latest first
            seen = np.where(np.cumsum(earlier == boundary) > 0, boundary, earlier)
            products = np.concatenate([recent[-1:], seen]) * multipliers
            result[t] = offsets + np.bitwise_xor.accumulate(products)[1:][orders] % sizes
        return result

    def store_rows(self, target: HostStorage, cells: Array, rows: Array) -> None:
        target.put(cells, rows)

    @_without_warnings
    def attention(
        self,
        q: Array,
        keys: HostStorage,
        values: HostStorage | int,
        cells: Array,
        starts: Array,
        counts: Array,
        scale: float,
        softcap: float = 0.0,
        sinks: Array | None = None,
        bias: Array | None = None,
        places: Array | None = None,
    ) -> Array:
        rows, heads, _ = q.shape
        group = heads // keys.shape[1]
        result = np.zeros((rows, heads, values if isinstance(values, int) else values.shape[2]), q.dtype)
        for t, (start, count) in enumerate(zip(starts, counts, strict=True)):
            if count == 0:
                continue
            seen = cells[start : start + count]
            key = quantized.unpack(keys.stored[seen], keys.kind).astype(q.dtype).repeat(group, axis=1)
            if isinstance(values, int):
                value = key[..., key.shape[2] - values :]
            else:
                value = quantized.unpack(values.stored[seen], values.kind).astype(q.dtype)
                value = value.repeat(group, axis=1)
            scores = np.einsum("hd,nhd->hn", q[t], key) * scale
            if softcap:
                scores = softcap * np.tanh(scores / softcap)
            if bias is not None:
                reach, place = bias.shape[1] // 2, start + count - 1 if places is None else places[t]
                distances = np.arange(start, start + count) - place
                scores = scores + bias[:, distances.clip(-reach, reach) + reach].astype(q.dtype)
            if sinks is not None:  # one more logit per head, which takes a share and contributes no value
                scores = np.concatenate([scores, sinks.astype(q.dtype)[:, None]], axis=1)
            shares = _softmax(scores)[:, :count]
            result[t] = np.einsum("hn,nhd->hd", shares, value)
        return result

    @_without_warnings
    def choose_cells(
        self,
        q: Array,
        weights: Array,
        keys: HostStorage,
        cells: Array,
        starts: Array,
        counts: Array,
        most: int,
        group: int = 1,
    ) -> tuple[Array, Array, Array]:
        width = list_width(most + group - 1)
        lists = np.zeros((len(q), width), np.int32)
        begins = np.arange(len(q), dtype=np.int32) * np.int32(width)
        keeps_all = counts // group <= most // group
        for t, (start, count) in enumerate(zip(starts, counts, strict=True)):
            seen = cells[start : start + count]
            if keeps_all[t]:
                if t and starts[t - 1] == start and keeps_all[t - 1]:
                    begins[t] = begins[t - 1]
                lists[begins[t] // width, :count] = seen
                continue
            whole = count - count % group
            last = seen[group - 1 : whole : group]
            key = quantized.unpack(keys.stored[last], keys.kind)[:, 0].astype(q.dtype)
            scores = weights[t] @ np.maximum(q[t] @ key.T, 0)
            best = np.sort(_best(_ranks(scores)[None], most // group)[0])
            lists[t, :most] = seen[:whole].reshape(-1, group)[best].reshape(-1)
            lists[t, most : most + count - whole] = seen[whole:]
        return lists.reshape(-1), begins, np.where(keeps_all, counts, most + counts % group).astype(np.int32)

    @_without_warnings
    def choose_blocks(
        self,
        q: Array,
        keys: HostStorage,
        cells: Array,
        starts: Array,
        counts: Array,
        block: int,
        most: int,
        local: int,
    ) -> tuple[Array, Array, Array]:
        rows, heads, _ = q.shape
        width = list_width(block * most)
        lists = np.zeros((heads, rows, width), np.int32)
        begins = np.arange(heads * rows, dtype=np.int32).reshape(heads, rows) * np.int32(width)
        lengths = np.minimum(counts, block * most) + np.zeros((heads, 1), np.int32)
        kept_all = -1  # number of the row whose list the rows after it share
        for t, (start, count) in enumerate(zip(starts, counts, strict=True)):
            seen = cells[start : start + count]
            if count <= block * most:
                shared = t and starts[t - 1] == start and counts[t - 1] <= block * most
                kept_all = kept_all if shared else t
                begins[:, t] = begins[:, kept_all]
                lists[:, kept_all, :count] = seen * heads + np.arange(heads)[:, None]
                continue
            key = quantized.unpack(keys.stored[seen], keys.kind)[:, 0].astype(q.dtype)
            firsts = np.arange(0, count, block)
            scores = np.maximum.reduceat(_ranks(q[t] @ key.T), firsts, axis=1)
            own = np.arange(len(firsts)) >= len(firsts) - local
            for h in range(heads):
                best = np.lexsort((-scores[h], ~own))[:most]  # stable: the first of equal ones
                chosen = np.flatnonzero(np.isin(np.arange(count) // block, best))
                lists[h, t, : len(chosen)] = seen[chosen] * heads + h
                lengths[h, t] = len(chosen)
        return lists.reshape(-1), begins, lengths

    @_without_warnings
    def pool_groups(
        self,
        rows: HostStorage,
        cells: Array,
        starts: Array,
        counts: Array,
        bias: Array,
        *,
        overlapping: bool = False,
    ) -> Array:
        group, width = bias.shape
        dim = width // 2 if overlapping else width
        result = np.zeros((len(counts), dim), bias.dtype)
        for t, (start, count) in enumerate(zip(starts, counts, strict=True)):
            if count != group and not (overlapping and count == 2 * group):
                continue
            found = rows.stored[cells[start : start + count], 0].astype(bias.dtype)
            values, gates = found[:, :width], found[:, width:] + np.tile(bias, (count // group, 1))
            if overlapping:
                own = np.arange(count)[:, None] >= count - group
                values, gates = (np.where(own, each[:, dim:], each[:, :dim]) for each in (values, gates))
            result[t] = (_softmax(gates.T).T * values).sum(0)
        return result

    def join_lists(
        self, first: tuple[Array, Array, Array], second: tuple[Array, Array, Array], most: int
    ) -> tuple[Array, Array, Array]:
        rows, width = len(first[1]), list_width(most)
        lists = np.zeros((rows, width), np.int32)
        for t in range(rows):
            parts = [cells[starts[t] : starts[t] + counts[t]] for cells, starts, counts in (first, second)]
            lists[t, : sum(map(len, parts))] = np.concatenate(parts)
        return lists.reshape(-1), np.arange(rows, dtype=np.int32) * np.int32(width), first[2] + second[2]


def _scores(logits: Array, routing: Routing) -> Array:
    if routing.sigmoid:
        return _sigmoid(logits)
    if routing.sqrt_softplus:
        result: Array = np.sqrt(np.logaddexp(logits, 0))
        return result
    return _softmax(logits)


def _shares(scores: Array, chosen: Array, routing: Routing) -> Array:
    """Return the weights of the `chosen` experts [T, used]."""
    weights = np.take_along_axis(scores, chosen, axis=1)
    if routing.normalize:
        weights = weights / np.maximum(weights.sum(axis=-1, keepdims=True), 1e-20)
    return weights * routing.scale


def _ranks(scores: Array) -> Array:
    """Return the values to rank by: NaN counts as the largest."""
    result: Array = np.where(np.isnan(scores), np.inf, scores)
    return result


def _best(ranks: Array, count: int) -> Array:
    """Return the indices of the `count` largest of each row, best first; the lower index wins a tie."""
    result: Array = np.argsort(-ranks, axis=-1, kind="stable")[:, :count]
    return result


def _of_expert(x: Array, weights: ExpertWeights, biases: Any, expert: int) -> Array:
    result: Array = x @ weights.values(expert).astype(x.dtype, copy=False).T
    return result if biases is None else result + biases[expert].astype(x.dtype, copy=False)


def _erfc(x: Array) -> Array:
    result: Array = np.asarray(np.frompyfunc(math.erfc, 1, 1)(x)).astype(x.dtype)
    return result


def _sigmoid(x: Array) -> Array:
    result: Array = 1 / (1 + np.exp(-x))
    return result


def _softmax(x: Array) -> Array:
    weights = np.exp(x - x.max(axis=-1, keepdims=True))
    result: Array = weights / weights.sum(axis=-1, keepdims=True)
    return result

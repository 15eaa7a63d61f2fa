"""Every operation in plain torch, on any of its devices: what the kernels are tested against.

It is the backend of torch's CPU device, on which everything above the kernels can be tested without a GPU.
Rows are multiplied one by one there, so that a row's result does not depend on its neighbours.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from puna.gguf import GGMLType
from puna.ops import processor_backend
from puna.ops.backend import Backend, list_width
from puna.ops.experts import ExpertNetworks, ExpertWeights, Routing
from puna.ops.gpu import sampling
from puna.ops.gpu.host_parts import HostParts
from puna.ops.gpu.process_group import ProcessGroup
from puna.ops.gpu.sampling import Leading, Wanted
from puna.ops.gpu.staging import received, send, sent
from puna.ops.gpu.storage import DeviceStorage
from puna.ops.rope import Rope
from puna.ops.sampling import Draw, Likeliest
from puna.ops.weight import Weight

#: Ranges of indices shorter than this are uploaded together.
_SHORT = 256

#: Numbers of a cache that are gathered at once, 64 MB.
_MOST_GATHERED = 1 << 24


class DeviceBuffer:
    """Numbers or indices on the host, and the copy on the device that operations see."""

    mirrored = True

    def __init__(self, shape: Sequence[int], device: torch.device, kind: type[Any] = np.int32) -> None:
        self.host: NDArray[Any] = np.zeros(shape, kind)
        self.array = torch.from_numpy(self.host.copy()).to(device)
        self._flat = self.array.view(-1)

    def upload(self, ranges: Sequence[tuple[int, int]] | None = None) -> None:
        flat = self.host.reshape(-1)
        ranges = [(0, flat.size)] if ranges is None else ranges
        short = [each for each in ranges if each[1] - each[0] < _SHORT] if len(ranges) > 2 else []
        for begin, end in ranges:
            if not short or end - begin >= _SHORT:
                send(flat[begin:end], self._flat[begin:end])
        if short:  # in two copies: a step of many sequences adds an entry to each one's list
            places = np.concatenate([np.arange(*each) for each in short])
            device = self.array.device
            self._flat.scatter_(0, sent(places, device), sent(flat[places], device))


class TorchBackend(Backend):
    """The operations on a device of torch."""

    name = "gpu"

    def __init__(self, device: torch.device, name: str = "", limit: int | None = None) -> None:
        """`name` is that of the device for people; of its memory, at most `limit` bytes are used.

        A processor that stands in for a GPU counts no bytes: it always has `limit` more.
        """
        self.place = device
        named = "CPU" if device.type == "cpu" else f"GPU {device.index or 0}"
        self.device = name or named  # type: ignore[misc]
        self._limit = limit

    @property
    def kernels(self) -> str:
        return f"torch on {self.place}"

    @property
    def host(self) -> Backend:
        return processor_backend()

    @cached_property
    def _on_host(self) -> HostParts:
        return HostParts(self.host)

    def available_memory(self, promised: int = 0) -> int:
        if self.place.type == "cpu":
            return super().available_memory(promised) if self._limit is None else self._limit
        free, total = torch.cuda.mem_get_info(self.place)
        if self._limit is not None:  # what any process takes counts
            free -= max(total - self._limit, 0)
        unused = torch.cuda.memory_reserved(self.place) - torch.cuda.memory_allocated(self.place)
        return max(free + unused, 0)

    def set_threads(self, count: int) -> None:
        super().set_threads(count)
        if count:  # of what stays on the host
            self.host.set_threads(count)

    def is_lost(self, error: BaseException) -> bool:
        return isinstance(error, torch.AcceleratorError)  # an error of the device itself stays

    def join_ranks(self, meeting: Path, rank: int, count: int, timeout_s: float) -> ProcessGroup:
        return ProcessGroup(self.place, meeting, rank, count, timeout_s)

    # --- sampling --------------------------------------------------------------------------------------

    def finish(self) -> None:
        if self.place.type != "cpu":
            torch.cuda.current_stream(self.place).synchronize()

    def _find(self, rows: Sequence[Wanted]) -> list[Leading]:
        """Return the largest logits of rows."""
        return sampling.find_in_torch(rows)

    def choose(self, rows: Sequence[Draw]) -> list[int | None]:
        return sampling.choose(rows, self._find, self.host, self)

    def likeliest(self, rows: Sequence[tuple[Any, int]], count: int) -> list[Likeliest]:
        return sampling.likeliest(rows, count, self._find, self.host, self)

    def top_k(self, logits: NDArray[np.float32], k: int) -> NDArray[np.int64]:
        return self.host.top_k(logits, k)

    def sum_of_exponentials(self, logits: NDArray[np.float32], largest: float) -> float:
        return self.host.sum_of_exponentials(logits, largest)

    # --- arrays ----------------------------------------------------------------------------------------

    def array(self, values: NDArray[Any]) -> Tensor:
        given = values if values.flags.writeable else values.copy()
        return torch.from_numpy(np.ascontiguousarray(given)).to(self.place)

    def numpy(self, array: Tensor) -> NDArray[Any]:
        found = received(array).view()
        found.flags.writeable = False
        return found

    def index_buffer(self, *shape: int) -> DeviceBuffer:
        return DeviceBuffer(shape, self.place)

    def number_buffer(self, *shape: int) -> DeviceBuffer:
        return DeviceBuffer(shape, self.place, np.float32)

    def concatenate(self, arrays: Sequence[Tensor]) -> Tensor:
        return torch.cat(list(arrays))

    def join(self, arrays: Sequence[Tensor]) -> Tensor:
        return torch.cat(list(arrays), -1)

    def pad(self, x: Tensor, width: int, value: float) -> Tensor:
        return F.pad(x, (0, width - x.shape[1]), value=value)

    def split(self, x: Tensor, parts: int) -> list[Tensor]:
        return [columns.contiguous() for columns in x.chunk(parts, 1)]

    # --- weights and storage ---------------------------------------------------------------------------

    def pack(self, weight: Weight) -> None:
        if weight.on_host:
            self.host.pack(weight)
        elif weight.packed is None:
            weight.packed = self._converted(weight)
            weight.drop_data()

    def packed_bytes(self, type: GGMLType, shape: tuple[int, ...]) -> int:
        return math.prod(shape) * 4

    def storage(self, kind: GGMLType, rows: int, row_shape: tuple[int, ...]) -> DeviceStorage:
        return DeviceStorage(kind, rows, row_shape, self.place)

    def _converted(self, weight: Weight) -> Any:
        """Return the matrix in the form that operations take."""
        return self.array(weight.values())

    def _matrix(self, weight: Weight) -> Any:
        self.pack(weight)
        return weight.packed

    def _table(self, weight: Weight) -> Any:
        """Return a table of embeddings; the output's matrix may share the file's bytes, so they stay."""
        if weight.packed is None:
            weight.packed = self._converted(weight)
        return weight.packed

    # --- operations ------------------------------------------------------------------------------------

    def embedding(self, tokens: Tensor, weight: Weight) -> Tensor:
        if weight.on_host:
            return self._on_host.embedding(tokens, weight)
        table: Tensor = self._table(weight)
        return table[tokens]

    def linear(self, x: Tensor, weight: Weight, bias: Tensor | None = None) -> Tensor:
        check_product(x, weight, bias)
        if weight.on_host:
            return self._host_products(x, [weight], [bias])[0]
        return _product(x, self._matrix(weight), bias)

    def linear_many(
        self, x: Tensor, weights: Sequence[Weight], biases: Sequence[Tensor | None] | None = None
    ) -> list[Tensor]:
        if all(weight.on_host for weight in weights):
            return self._host_products(x, weights, biases)
        return [self.linear(x, weight, bias) for weight, bias in paired(weights, biases)]

    def _host_products(
        self, x: Tensor, weights: Sequence[Weight], biases: Sequence[Tensor | None] | None
    ) -> list[Tensor]:
        for weight, bias in (given := paired(weights, biases)):
            check_product(x, weight, bias)
        products = self._on_host.linear_many(x, weights)
        return [y if bias is None else y + bias for y, (_, bias) in zip(products, given, strict=True)]

    def linear_heads(self, x: Tensor, weights: Sequence[Weight]) -> Tensor:
        if all(weight.on_host for weight in weights):
            return self._on_host.linear_heads(x, weights)
        heads = [self.linear(x[:, head].contiguous(), weight) for head, weight in enumerate(weights)]
        return torch.stack(heads, 1)

    def route(self, logits: Tensor, routing: Routing, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
        scores = _scores(logits, routing)
        biased = scores if bias is None else scores + bias
        ranks = _ranks(logits if bias is None else biased)
        size = logits.shape[1] // routing.groups
        by_group = _ranks(biased).reshape(len(logits), routing.groups, size).sort(dim=-1).values
        sums = _ranks(by_group[..., -routing.best_of_group :].sum(-1))
        groups = sums.sort(dim=-1, descending=True, stable=True).indices[:, : routing.used_groups]
        used = torch.arange(routing.groups, device=logits.device) == groups[..., None]
        allowed = used.any(1).repeat_interleave(size, 1)
        order = ranks.sort(dim=-1, descending=True, stable=True).indices
        first = (~allowed).gather(1, order).int().sort(dim=-1, stable=True).indices
        chosen = order.gather(1, first)[:, : routing.used]
        return chosen.int(), _shares(scores, chosen, routing)

    def route_by_table(
        self, logits: Tensor, routing: Routing, table: Tensor, tokens: Tensor
    ) -> tuple[Tensor, Tensor]:
        chosen = table[tokens]
        return chosen, _shares(_scores(logits, routing), chosen.long(), routing)

    def experts(self, x: Tensor, chosen: Tensor, weights: Tensor, layer: ExpertNetworks) -> Tensor:
        if layer.down.on_host:
            return self._on_host.experts(x, chosen, weights, layer)
        result = torch.zeros(len(x), layer.down.shape[1], device=x.device)
        activate = getattr(self, layer.activation)
        for expert in chosen.unique().tolist():
            tokens, places = (chosen == expert).nonzero(as_tuple=True)
            weight = weights[tokens, places, None]
            given = x[tokens] * weight if layer.scale_inputs else x[tokens]
            inner = [self._of_expert(given, layer.up, layer.up_bias, expert)]
            if layer.gate is not None:
                inner.insert(0, self._of_expert(given, layer.gate, layer.gate_bias, expert))
            if layer.up_limit:
                gate, up = inner
                inner = [gate.clamp(max=layer.gate_limit), up.clamp(-layer.up_limit, layer.up_limit)]
            back = self._of_expert(activate(*inner), layer.down, layer.down_bias, expert)
            result.index_add_(0, tokens, back if layer.scale_inputs else back * weight)
        return result

    def expert_linear(
        self, x: Tensor, chosen: Tensor, weights: ExpertWeights, bias: Tensor | None = None
    ) -> Tensor:
        if weights.on_host:
            return self._on_host.expert_linear(x, chosen, weights, bias)
        result = torch.empty(len(x), weights.shape[1], device=x.device)
        for expert in chosen.unique().tolist():
            result[chosen == expert] = self._of_expert(x[chosen == expert], weights, bias, expert)
        return result

    def _of_expert(self, x: Tensor, weights: ExpertWeights, biases: Any, expert: int) -> Tensor:
        matrix = self._matrix(weights.weight).view(weights.shape)[expert]
        return _product(x, matrix, None if biases is None else biases[expert])

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        total = x + residual
        return total, self.rms_norm(total, weight, eps)

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        normed = centred / (centred.square().mean(-1, keepdim=True) + eps).sqrt() * weight
        return normed if bias is None else normed + bias

    def rope_(self, x: Tensor, positions: Tensor, rope: Rope) -> None:
        # Angles in float64: at position 100,000 a float32 angle is off by up to 0.004.
        at = positions.double()
        if rope.axes is None or at.ndim == 1:
            at = at[:, None]
        else:
            at = at[:, torch.tensor(rope.axes, device=x.device)]
        angles = at * torch.tensor(rope.frequencies, device=x.device).double()  # [T, pairs]
        cos = (angles.cos() * rope.magnitude).float()[:, None]  # [T, 1, pairs]
        sin = (angles.sin() * rope.magnitude).float()[:, None]
        pairs, x = rope.pairs, x[..., rope.begin :]
        if rope.neox:
            first, second = x[..., :pairs], x[..., pairs : 2 * pairs]
        else:
            first, second = x[..., 0 : 2 * pairs : 2], x[..., 1 : 2 * pairs : 2]
        turned = first * cos - second * sin, first * sin + second * cos
        first.copy_(turned[0])
        second.copy_(turned[1])

    def swiglu(self, gate: Tensor, up: Tensor) -> Tensor:
        return gate * _sigmoid(gate) * up

    def clamped_swiglu(self, gate: Tensor, up: Tensor) -> Tensor:
        gate = gate.clamp(max=7)
        return gate * _sigmoid(1.702 * gate) * (up.clamp(-7, 7) + 1)

    def geglu(self, gate: Tensor, up: Tensor) -> Tensor:
        inner = math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)
        # 1 + tanh(x) = 2 / (1 + e^(-2x)) keeps its digits where the sum would cancel.
        return gate * _sigmoid(2 * inner) * up

    def reglu(self, gate: Tensor, up: Tensor) -> Tensor:
        return gate.clamp_min(0) * up

    def gelu(self, x: Tensor) -> Tensor:
        return x / 2 * torch.special.erfc(-x / math.sqrt(2))

    def squared_relu(self, x: Tensor) -> Tensor:
        return x.clamp_min(0).square()

    def above(self, x: Tensor, deviations: float) -> Tensor:
        mean = x.mean(-1, keepdim=True)
        deviation = (x - mean).square().mean(-1, keepdim=True).sqrt()
        return (x - (mean + deviations * deviation)).clamp_min(0)

    def mix(self, x: Sequence[Tensor], mixture: Tensor) -> list[Tensor]:
        weights = mixture.reshape(len(mixture), mixture.shape[1] // len(x), len(x))
        return [
            sum((weights[:, i, j, None] * x[j] for j in range(1, len(x))), weights[:, i, 0, None] * x[0])
            for i in range(weights.shape[1])
        ]

    def balance(self, logits: Tensor, eps: float, rounds: int) -> Tensor:
        count = math.isqrt(logits.shape[1])
        matrices = logits.view(len(logits), count, count).unbind(1)  # [T, source], one for each result
        most = torch.stack(matrices).amax(0)
        shares = [(each - most).exp() for each in matrices]
        total = _sum(shares)
        shares = [each / total + eps for each in shares]
        for i in range(rounds):
            if i:
                total = _sum(shares) + eps
                shares = [each / total for each in shares]
            shares = [each / (_sum(each.split(1, 1)) + eps) for each in shares]
        return torch.stack(shares, 1).view(logits.shape)

    def match_rms(self, x: Tensor, like: Tensor, floor: float) -> Tensor:
        own = x.square().mean(-1, keepdim=True).clamp_min(floor)
        return x * (like.square().mean(-1, keepdim=True) / own).sqrt()

    def sigmoid_gate(self, x: Tensor, gate: Tensor) -> Tensor:
        return x * _sigmoid(gate)

    def softplus(self, x: Tensor, scale: Tensor) -> Tensor:
        return scale * torch.logaddexp(x, torch.zeros_like(x))

    def sigmoid(self, x: Tensor) -> Tensor:
        return _sigmoid(x)

    def signed_root(self, x: Tensor, floor: float) -> Tensor:
        return x.sign() * x.abs().clamp_min(floor).sqrt()

    def softcap(self, x: Tensor, cap: float) -> Tensor:
        return cap * (x / cap).tanh()

    def temper_(self, x: Tensor, positions: Tensor, scale: float, floor_scale: float, first: int) -> None:
        factors = 1 + scale * ((positions.double() + first) / floor_scale).floor().log1p()
        x *= factors.float().view(-1, *[1] * (x.ndim - 1))

    def short_conv(
        self,
        projected: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        states: DeviceStorage,
        starts: Tensor,
        sources: Tensor,
        targets: Tensor,
        *,
        gated: bool = True,
        activated: bool = True,
    ) -> Tensor:
        taps, channels = weight.shape
        products, c = projected, None
        if gated:
            b, c, x = projected.reshape(len(projected), 3, channels).unbind(1)
            products = b * x
        result = torch.empty_like(products)
        for t, (start, source, target) in enumerate(_lists(starts, sources, targets)):
            recent = torch.cat([states.codes[source], products[start : t + 1]])[-taps:]
            total = (weight * recent).sum(0)
            total = total if bias is None else total + bias
            if c is not None:
                total = c[t] * total
            elif activated:
                total = total * _sigmoid(total)
            result[t] = total
            if target >= 0:
                states.codes[target] = recent[1:]
        return result

    def pool_recent(
        self,
        values: Tensor,
        gates: Tensor,
        bias: Tensor,
        states: DeviceStorage,
        starts: Tensor,
        sources: Tensor,
        targets: Tensor,
    ) -> Tensor:
        taps, channels = bias.shape
        rows, result = torch.cat([values, gates], dim=1), torch.empty_like(values)
        for t, (start, source, target) in enumerate(_lists(starts, sources, targets)):
            recent = torch.cat([states.codes[source], rows[start : t + 1]])[-taps:]
            shares = (recent[:, channels:] + bias).softmax(0)
            result[t] = (shares * recent[:, :channels]).sum(0)
            if target >= 0:
                states.codes[target] = recent[1:]
        return result

    def linear_attention(
        self,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        decays: Tensor,
        betas: Tensor | None,
        skips: Tensor | None,
        states: DeviceStorage,
        starts: Tensor,
        sources: Tensor,
        targets: Tensor,
        *,
        delta: bool = False,
        removal: tuple[Tensor, Tensor] | None = None,
        tiled: bool = False,
    ) -> Tensor:
        heads, key_heads = values.shape[1], keys.shape[1]
        every = torch.arange(heads, device=values.device)
        of_head = every % key_heads if tiled else every * key_heads // heads
        factors = (decays[..., None] if decays.ndim == 3 else decays[..., None, None]).exp()
        result = torch.empty_like(values)
        memory = states.codes[:0]
        for t, (start, source, target) in enumerate(_lists(starts, sources, targets)):
            query, key = queries[t, of_head], keys[t, of_head]  # [heads, key_dim]
            before = states.codes[source] if start == t else memory
            memory = before * factors[t]
            if removal is not None:
                probe, taken = (each[t, of_head] for each in removal)
                memory = memory - taken[:, :, None] * _found(probe, before)[:, None, :]
            value = values[t] - _found(key, memory) if delta else values[t]
            value = value if betas is None else betas[t, :, None] * value
            memory = memory + key[:, :, None] * value[:, None, :]
            result[t] = _found(query, memory)
            if skips is not None:
                result[t] += skips[:, None] * values[t]
            if target >= 0:
                states.codes[target] = memory
        return result

    def selective_scan(
        self,
        x: Tensor,
        steps: Tensor,
        rates: Tensor,
        keys: Tensor,
        queries: Tensor,
        skips: Tensor,
        states: DeviceStorage,
        starts: Tensor,
        sources: Tensor,
        targets: Tensor,
    ) -> Tensor:
        result, state = torch.empty_like(x), states.codes[:0]
        for t, (start, source, target) in enumerate(_lists(starts, sources, targets)):
            state = (steps[t] * rates).exp() * (states.codes[source] if start == t else state)
            state = state + keys[t][:, None] * (steps[t] * x[t])
            result[t] = (queries[t][:, None] * state).sum(0) + skips * x[t]
            if target >= 0:
                states.codes[target] = state
        return result

    def ngram_rows(
        self,
        tokens: Tensor,
        multipliers: Tensor,
        sizes: Tensor,
        offsets: Tensor,
        boundary: int,
        states: DeviceStorage,
        starts: Tensor,
        sources: Tensor,
        targets: Tensor,
    ) -> Tensor:
        kept, rows = len(multipliers) - 1, torch.arange(len(tokens), device=tokens.device)
        recent = [tokens.long()]  # the row's token, the one before it, ...
        for back in range(1, kept + 1):
            from_start = rows - back - starts
            of_state = states.codes[sources, (kept + from_start).clamp(0, kept - 1)].long() + boundary
            recent.append(torch.where(from_start >= 0, recent[0][(rows - back).clamp_min(0)], of_state))
        stored = (targets >= 0).nonzero()[:, 0]
        after = torch.stack(recent[kept - 1 :: -1], dim=1) - boundary
        states.codes[targets[stored]] = after[stored].float()
        mixed, ended = recent[0] * multipliers[0], torch.zeros_like(tokens, dtype=torch.bool)
        hashes = []
        for token, multiplier in zip(recent[1:], multipliers[1:], strict=True):
            ended = ended | (token == boundary)
            mixed = mixed ^ token.where(~ended, boundary) * multiplier
            hashes.append(mixed[:, None].expand(-1, len(sizes) // kept))
        return (offsets + torch.cat(hashes, dim=1) % sizes).int()

    def store_rows(self, target: DeviceStorage, cells: Tensor, rows: Tensor) -> None:
        target.put_at(cells, rows)

    def attention(
        self,
        q: Tensor,
        keys: DeviceStorage,
        values: DeviceStorage | int,
        cells: Tensor,
        starts: Tensor,
        counts: Tensor,
        scale: float,
        softcap: float = 0.0,
        sinks: Tensor | None = None,
        bias: Tensor | None = None,
        places: Tensor | None = None,
    ) -> Tensor:
        rows, heads, _ = q.shape
        group = heads // keys.shape[1]
        width = values if isinstance(values, int) else values.shape[2]
        result = torch.zeros(rows, heads, width, device=q.device)
        own = [None] * rows if places is None else places.tolist()
        for t, (start, count, place) in enumerate(zip(*_lists_of(starts, counts), own, strict=True)):
            if count == 0:
                continue
            seen = cells[start : start + count]
            key = keys.at(seen)  # [n, kv_heads, dim]
            value = key[..., key.shape[2] - values :] if isinstance(values, int) else values.at(seen)
            query = q[t].view(keys.shape[1], group, -1)
            scores = torch.einsum("kgd,nkd->kgn", query, key).reshape(heads, count) * scale
            if softcap:
                scores = softcap * torch.tanh(scores / softcap)
            if bias is not None:
                reach = bias.shape[1] // 2
                last = start + count - 1 if place is None else place
                distances = torch.arange(start - last, start + count - last, device=q.device)
                scores = scores + bias[:, distances.clamp(-reach, reach) + reach]
            if sinks is not None:  # one more logit per head, which takes a share and contributes no value
                scores = torch.cat([scores, sinks[:, None]], 1)
            shares = _softmax(scores)[:, :count].view(keys.shape[1], group, count)
            result[t] = torch.einsum("kgn,nkd->kgd", shares, value).reshape(heads, width)
        return result

    def choose_cells(
        self,
        q: Tensor,
        weights: Tensor,
        keys: DeviceStorage,
        cells: Tensor,
        starts: Tensor,
        counts: Tensor,
        most: int,
        group: int = 1,
    ) -> tuple[Tensor, Tensor, Tensor]:
        width = list_width(most + group - 1)
        lists = torch.zeros(len(q), width, dtype=torch.int32, device=q.device)
        places: list[int] = []
        before = -1, False
        for t, (start, count) in enumerate(zip(*_lists_of(starts, counts), strict=True)):
            seen = cells[start : start + count]
            keeps_all = count // group <= most // group
            if keeps_all:
                kept = places[-1] if t and before == (start, True) else t
                lists[kept, :count] = seen
            else:  # each row alone, so that products do not depend on how many rows there are
                whole = count - count % group
                groups = seen[:whole].view(-1, group)
                scores = weights[t] @ (q[t] @ keys.at(groups[:, -1])[:, 0].T).relu()
                best = _ranks(scores).sort(descending=True, stable=True).indices[: most // group]
                lists[t, :most] = groups[best.sort().values].view(-1)
                lists[t, most : most + count - whole] = seen[whole:]
                kept = t
            places.append(kept)
            before = start, keeps_all
        begins = torch.tensor(places, dtype=torch.int32, device=q.device) * width
        lengths = torch.where(counts // group <= most // group, counts, most + counts % group)
        return lists.view(-1), begins, lengths

    def choose_blocks(
        self,
        q: Tensor,
        keys: DeviceStorage,
        cells: Tensor,
        starts: Tensor,
        counts: Tensor,
        block: int,
        most: int,
        local: int,
    ) -> tuple[Tensor, Tensor, Tensor]:
        rows, heads, _ = q.shape
        width = list_width(block * most)
        lists = torch.zeros(heads, rows, width, dtype=torch.int32, device=q.device)
        lengths = counts.clamp(max=block * most).repeat(heads, 1)
        each = torch.arange(heads, dtype=torch.int32, device=q.device)[:, None]
        places: list[int] = []
        before = -1, 0
        for t, (start, count) in enumerate(zip(*_lists_of(starts, counts), strict=True)):
            seen = cells[start : start + count]
            kept = t
            if count <= block * most:
                kept = places[-1] if t and before[0] == start and before[1] <= block * most else t
                lists[:, kept, :count] = seen * heads + each
            else:  # each row alone, as in `choose_cells`
                scores = _ranks(q[t] @ keys.at(seen)[:, 0].T)
                blocks = -(-count // block)
                filled = F.pad(scores, (0, blocks * block - count), value=-torch.inf)
                largest = filled.view(heads, blocks, block).amax(2)
                order = largest.sort(descending=True, stable=True).indices
                own = (order >= blocks - local).int()
                best = order.gather(1, own.sort(descending=True, stable=True).indices)[:, :most]
                for h, chosen in enumerate(best.sort().values):
                    at = (chosen[:, None] * block + torch.arange(block, device=q.device)).view(-1)
                    found = seen[at[at < count]]
                    lists[h, t, : len(found)] = found * heads + h
                    lengths[h, t] = len(found)
            places.append(kept)
            before = start, count
        begins = (torch.tensor(places, dtype=torch.int32, device=q.device) + each * rows) * width
        return lists.view(-1), begins, lengths

    def pool_groups(
        self,
        rows: DeviceStorage,
        cells: Tensor,
        starts: Tensor,
        counts: Tensor,
        bias: Tensor,
        *,
        overlapping: bool = False,
    ) -> Tensor:
        group, width = bias.shape
        size, dim = (2 * group, width // 2) if overlapping else (group, width)
        result = bias.new_zeros(len(counts), dim)
        place = torch.arange(size, device=bias.device)
        every = torch.arange(width, device=bias.device).view(-1, dim)
        column = every[(place >= size - group).int() * overlapping]  # [size, dim]: the halves that cells give
        added = bias.repeat(size // group, 1).gather(1, column)
        together = max(1, _MOST_GATHERED // (size * width))
        for begin in range(0, len(counts), together):
            part = slice(begin, begin + together)
            at = counts[part, None] - size + place  # in a row's list; below 0, there is no cell
            listed = cells[(starts[part, None] + at).clamp(0, len(cells) - 1)]
            found = rows.codes[listed, 0]  # [T, size, 2 * width]
            values, gates = (found.gather(2, (column + i).expand(len(at), -1, -1)) for i in (0, width))
            gates = torch.where((at >= 0)[..., None], gates + added, -torch.inf)
            shares = (gates - gates.amax(1, keepdim=True)).exp()
            pooled = _sum((shares * values).unbind(1)) / _sum(shares.unbind(1))
            complete = (counts[part] == group) | (counts[part] == size)
            result[part] = torch.where(complete[:, None], pooled, 0.0)
        return result

    def join_lists(
        self, first: tuple[Tensor, Tensor, Tensor], second: tuple[Tensor, Tensor, Tensor], most: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        (cells, starts, counts), (more, begins, lengths) = first, second
        rows, width = len(starts), list_width(most)
        place = torch.arange(most, device=starts.device)
        own = cells[(starts[:, None] + place).clamp(max=len(cells) - 1)]
        others = more[(begins[:, None] + place - counts[:, None]).clamp(0, len(more) - 1)]
        lists = starts.new_zeros(rows, width)
        lists[:, :most] = torch.where(place < counts[:, None], own, others)
        return (
            lists.view(-1),
            torch.arange(rows, dtype=torch.int32, device=starts.device) * width,
            counts + lengths,
        )


def paired(
    weights: Sequence[Weight], biases: Sequence[Tensor | None] | None
) -> list[tuple[Weight, Tensor | None]]:
    """Return each weight with its bias. Raises `ValueError` unless there are as many biases, or none."""
    biases = biases or [None] * len(weights)
    if len(weights) != len(biases):
        raise ValueError(f"{len(weights)} weights and {len(biases)} biases")
    return list(zip(weights, biases, strict=True))


def check_product(x: Tensor, weight: Weight, bias: Tensor | None) -> None:
    """Raise `ValueError` unless `Backend.linear` can multiply these."""
    if x.ndim != 2 or x.shape[1] != weight.shape[1]:
        raise ValueError(f"x {list(x.shape)} does not fit a weight {list(weight.shape)} (of '{weight.name}')")
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(f"bias {list(bias.shape)} does not fit a weight {list(weight.shape)}")


def _product(x: Tensor, matrix: Tensor, bias: Tensor | None) -> Tensor:
    """Return `x @ matrix.T + bias`, each row computed alone."""
    if not len(x):
        return x.new_empty(0, len(matrix))
    result = torch.stack([matrix @ row for row in x])
    return result if bias is None else result + bias


def _lists(starts: Tensor, sources: Tensor, targets: Tensor) -> list[tuple[int, int, int]]:
    return list(zip(starts.tolist(), sources.tolist(), targets.tolist(), strict=True))


def _lists_of(*indices: Tensor) -> list[list[int]]:
    return [each.tolist() for each in indices]


def _found(probes: Tensor, memory: Tensor) -> Tensor:
    """Return `probes` [heads, key_dim] times `memory` [heads, key_dim, value_dim]."""
    return (probes[:, :, None] * memory).sum(1)


def _ranks(scores: Tensor) -> Tensor:
    """Return the values to rank by: NaN counts as the largest."""
    return torch.where(scores.isnan(), torch.inf, scores)


def _scores(logits: Tensor, routing: Routing) -> Tensor:
    if routing.sigmoid:
        return _sigmoid(logits)
    if routing.sqrt_softplus:
        return _softplus(logits).sqrt()
    return _softmax(logits)


def _shares(scores: Tensor, chosen: Tensor, routing: Routing) -> Tensor:
    """Return the weights of the `chosen` experts [T, used]."""
    weights = scores.gather(1, chosen)
    if routing.normalize:
        weights = weights / weights.sum(-1, keepdim=True).clamp_min(1e-20)
    return weights * routing.scale


def _softplus(x: Tensor) -> Tensor:
    """Return ln(1 + e^x) by the series of the kernels: torch's own differs at the end of a tensor."""
    share = (-x.abs()).exp()
    share = share / (2 + share)
    square = share * share
    series = square / 15
    for odd in range(13, 1, -2):
        series = (series + 1 / odd) * square
    return x.clamp_min(0) + 2 * (share * series + share)


def _sum(parts: Sequence[Tensor]) -> Tensor:
    """Return the sum in the order of `parts`, whatever their shape."""
    return sum(parts[1:], parts[0])


def _sigmoid(x: Tensor) -> Tensor:
    return 1 / (1 + (-x).exp())  # torch's own differs in the last bit at the end of a tensor


def _softmax(x: Tensor) -> Tensor:
    weights = (x - x.amax(-1, keepdim=True)).exp()
    return weights / weights.sum(-1, keepdim=True)

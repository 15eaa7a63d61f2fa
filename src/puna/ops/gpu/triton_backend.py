"""The operations as Triton kernels on a GPU, or in Triton's interpreter on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from puna.gguf import GGMLType
from puna.ops.backend import Backend
from puna.ops.experts import ExpertNetworks, ExpertWeights
from puna.ops.gpu import packed, tuning
from puna.ops.gpu.graphs import GraphRecorder
from puna.ops.gpu.kernels import (
    activations,
    attention,
    experts,
    groups,
    indexers,
    low_rank,
    matmul,
    ngrams,
    norms,
    recurrent,
    rope,
    routing,
    sampling,
    store,
)
from puna.ops.gpu.packed import PackedMatrix
from puna.ops.gpu.sampling import Leading, Wanted, copy_rows
from puna.ops.gpu.storage import DeviceStorage
from puna.ops.gpu.torch_backend import TorchBackend, check_product, paired
from puna.ops.low_rank import LowRankWeights
from puna.ops.rope import Rope
from puna.ops.sampling import Draw, Likeliest
from puna.ops.weight import Weight


class TritonBackend(TorchBackend):
    """The operations as kernels. Rows of up to 16 in a pass are computed by other kernels than longer ones.

    Within either, a row's result does not depend on its neighbours. `join_lists` stays in plain torch,
    which gathers as well, without letting the host wait.
    """

    #: Python starts the kernels of a pass in about 40 ms for 32 layers, which 2048 rows hide.
    batch_scale = 4

    def __init__(self, device: torch.device, name: str = "", limit: int | None = None) -> None:
        super().__init__(device, name, limit)
        self.compiles = device.type == "cuda"
        self._tuned = False
        self._turns: WeakKeyDictionary[Rope, rope.Turns] = WeakKeyDictionary()
        if device.index:  # Triton launches on the thread's current device, by default the first one
            for operation in _OPERATIONS:
                setattr(self, operation, _launched_on(device, getattr(self, operation)))

    @property
    def kernels(self) -> str:
        return "triton"

    def tune(self) -> None:
        if self.compiles and not self._tuned:  # only before anything is recorded
            self._tuned = True
            tuning.tune(self.place)

    # --- weights and storage ---------------------------------------------------------------------------

    def packed_bytes(self, type: GGMLType, shape: tuple[int, ...]) -> int:
        return packed.packed_bytes(type, shape)

    def _converted(self, weight: Weight) -> PackedMatrix:
        data = torch.from_numpy(weight.bytes().reshape(-1).copy()).to(self.place)
        return PackedMatrix.pack(data, weight.type, *weight.shape)

    def pack_low_rank(self, adapters: LowRankWeights) -> None:
        stack: low_rank.LowRankStack | None = adapters.packed
        held = stack.parts if stack is not None else 0
        for part in adapters.parts[held:]:
            down, up = (self.array(each.values()) for each in (part.down, part.up))
            stack = low_rank.LowRankStack.of(part.adapter, down, up, stack)
            part.down.drop_data()
            part.up.drop_data()
        adapters.packed = stack

    # --- operations ------------------------------------------------------------------------------------

    def embedding(self, tokens: Tensor, weight: Weight) -> Tensor:
        if weight.on_host:
            return super().embedding(tokens, weight)
        return matmul.unpack_rows(self._table(weight), tokens)

    def linear(self, x: Tensor, weight: Weight, bias: Tensor | None = None) -> Tensor:
        if weight.on_host:
            return super().linear(x, weight, bias)
        check_product(x, weight, bias)
        return matmul.linear(x, self._matrix(weight), bias)

    def linear_many(
        self, x: Tensor, weights: Sequence[Weight], biases: Sequence[Tensor | None] | None = None
    ) -> list[Tensor]:
        if any(weight.on_host for weight in weights):
            return super().linear_many(x, weights, biases)
        for weight, bias in (given := paired(weights, biases)):
            check_product(x, weight, bias)
        return matmul.linear_many(
            x, [self._matrix(weight) for weight in weights], [bias for _, bias in given]
        )

    def add_low_rank(self, y: Tensor, x: Tensor, adapters: LowRankWeights, scales: Tensor) -> Tensor:
        stack: low_rank.LowRankStack = adapters.packed
        if x.ndim != 2 or x.shape[1] != stack.down.shape[1] or y.shape != (len(x), stack.up.shape[1]):
            raise ValueError(
                f"x {list(x.shape)} and y {list(y.shape)} do not fit adapters of "
                f"[{stack.up.shape[1]}, {stack.down.shape[1]}]"
            )
        return low_rank.add_low_rank(y, x, stack, scales)

    def linear_heads(self, x: Tensor, weights: Sequence[Weight]) -> Tensor:
        if any(weight.on_host for weight in weights):
            return super().linear_heads(x, weights)
        return matmul.linear_heads(x, [self._matrix(weight) for weight in weights])

    def experts(self, x: Tensor, chosen: Tensor, weights: Tensor, layer: ExpertNetworks) -> Tensor:
        if layer.down.on_host:
            return super().experts(x, chosen, weights, layer)
        gate = None if layer.gate is None else self._matrix(layer.gate.weight)
        biases: Any = {  # tensors here
            "gate_bias": layer.gate_bias,
            "up_bias": layer.up_bias,
            "down_bias": layer.down_bias,
        }
        return experts.experts(
            x, chosen, weights, layer.up.shape[0], gate, self._matrix(layer.up.weight),
            self._matrix(layer.down.weight), layer.activation, scale_inputs=layer.scale_inputs,
            limits=(layer.gate_limit, layer.up_limit), **biases,
        )  # fmt: skip

    def expert_linear(
        self, x: Tensor, chosen: Tensor, weights: ExpertWeights, bias: Tensor | None = None
    ) -> Tensor:
        if weights.on_host:
            return super().expert_linear(x, chosen, weights, bias)
        return experts.expert_linear(x, chosen, self._matrix(weights.weight), weights.shape[0], bias)

    rms_norm = staticmethod(norms.rms_norm)
    add_rms_norm = staticmethod(norms.add_rms_norm)
    layer_norm = staticmethod(norms.layer_norm)
    match_rms = staticmethod(norms.match_rms)
    above = staticmethod(norms.above)
    swiglu = staticmethod(activations.swiglu)
    clamped_swiglu = staticmethod(activations.clamped_swiglu)
    geglu = staticmethod(activations.geglu)
    reglu = staticmethod(activations.reglu)
    gelu = staticmethod(activations.gelu)
    squared_relu = staticmethod(activations.squared_relu)
    mix = staticmethod(activations.mix)
    balance = staticmethod(activations.balance)
    sigmoid_gate = staticmethod(activations.sigmoid_gate)
    softplus = staticmethod(activations.softplus)
    sigmoid = staticmethod(activations.sigmoid)
    softcap = staticmethod(activations.softcap)
    temper_ = staticmethod(activations.temper_)
    route = staticmethod(routing.route)
    route_by_table = staticmethod(routing.route_by_table)

    def rope_(self, x: Tensor, positions: Tensor, rope_: Rope) -> None:
        turns = self._turns.get(rope_)
        if turns is None:
            turns = self._turns[rope_] = rope.Turns.of(rope_, self.place)
        rope.rope_(x, positions, turns)

    def short_conv(
        self, projected: Tensor, weight: Tensor, bias: Tensor | None, states: DeviceStorage, *rows: Tensor,
        **settings: Any,
    ) -> Tensor:  # fmt: skip
        return recurrent.short_conv(projected, weight, bias, states.codes, *rows, **settings)

    def pool_recent(
        self, values: Tensor, gates: Tensor, bias: Tensor, states: DeviceStorage, *rows: Tensor
    ) -> Tensor:
        return recurrent.pool_recent(values, gates, bias, states.codes, *rows)

    def ngram_rows(
        self, tokens: Tensor, multipliers: Tensor, sizes: Tensor, offsets: Tensor, boundary: int,
        states: DeviceStorage, *rows: Tensor,
    ) -> Tensor:  # fmt: skip
        return ngrams.ngram_rows(tokens, multipliers, sizes, offsets, boundary, states.codes, *rows)

    def linear_attention(
        self, queries: Tensor, keys: Tensor, values: Tensor, decays: Tensor, betas: Tensor | None,
        skips: Tensor | None, states: DeviceStorage, *rows: Tensor, **settings: Any,
    ) -> Tensor:  # fmt: skip
        return recurrent.linear_attention(
            queries, keys, values, decays, betas, skips, states.codes, *rows, **settings
        )

    def selective_scan(
        self, x: Tensor, steps: Tensor, rates: Tensor, keys: Tensor, queries: Tensor, skips: Tensor,
        states: DeviceStorage, *rows: Tensor,
    ) -> Tensor:  # fmt: skip
        return recurrent.selective_scan(x, steps, rates, keys, queries, skips, states.codes, *rows)

    def store_rows(self, target: DeviceStorage, cells: Tensor, rows: Tensor) -> None:
        store.store_rows(_planes(target), cells, rows)

    def attention(
        self, q: Tensor, keys: DeviceStorage, values: DeviceStorage | int, *others: Any, **settings: Any
    ) -> Tensor:
        given = values if isinstance(values, int) else _planes(values)
        return attention.attention(q, _planes(keys), given, *others, **settings)

    def choose_cells(
        self, q: Tensor, weights: Tensor, keys: DeviceStorage, *others: Any, **settings: Any
    ) -> tuple[Tensor, Tensor, Tensor]:
        return indexers.choose_cells(q, weights, _planes(keys), *others, **settings)

    def choose_blocks(
        self, q: Tensor, keys: DeviceStorage, *others: Any, **settings: Any
    ) -> tuple[Tensor, Tensor, Tensor]:
        return indexers.choose_blocks(q, _planes(keys), *others, **settings)

    def pool_groups(self, rows: DeviceStorage, *others: Tensor, overlapping: bool = False) -> Tensor:
        return groups.pool_groups(rows.codes, *others, overlapping=overlapping)

    #: So many rows are sooner copied than two kernels are started, if the host draws by kernels.
    _few = 2

    def choose(self, rows: Sequence[Draw]) -> list[int | None]:
        if not self._has_few(len(rows)):
            return super().choose(rows)
        copied = copy_rows([row.logits for row in rows], self)
        given = zip(rows, copied, strict=True)
        return self.host.choose([row._replace(logits=logits) for row, logits in given])

    def likeliest(self, rows: Sequence[tuple[Any, int]], count: int) -> list[Likeliest]:
        if not self._has_few(len(rows)):
            return super().likeliest(rows, count)
        copied = zip(
            copy_rows([logits for logits, _ in rows], self), (token for _, token in rows), strict=True
        )
        return self.host.likeliest(list(copied), count)

    def _has_few(self, rows: int) -> bool:
        return rows <= self._few and self.host.name == "cpu"

    def _find(self, rows: Sequence[Wanted]) -> list[Leading]:
        return sampling.find(rows)

    def recorder(self) -> GraphRecorder | None:
        return GraphRecorder(self.place) if self.place.type == "cuda" else None


#: Everything that a backend does and that may launch kernels.
_OPERATIONS = [name for name, kind in vars(Backend).items() if name[0] != "_" and callable(kind)]


def _launched_on(device: torch.device, operation: Callable[..., Any]) -> Callable[..., Any]:
    """Return an operation that makes `device` the thread's current one while it runs."""

    @wraps(operation)
    def run(*arguments: Any, **named: Any) -> Any:
        with torch.cuda.device(device):
            return operation(*arguments, **named)

    return run


def _planes(storage: DeviceStorage) -> tuple[Tensor, Tensor | None, GGMLType]:
    return storage.codes, storage.scales, storage.kind

"""The operations as Triton kernels on a GPU, or in Triton's interpreter on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from puna.gguf import GGMLType
from puna.ops.experts import ExpertNetworks, ExpertWeights, Routing
from puna.ops.gpu import packed
from puna.ops.gpu.graphs import GraphRecorder
from puna.ops.gpu.kernels import (
    activations,
    attention,
    experts,
    matmul,
    norms,
    recurrent,
    rope,
    routing,
    store,
)
from puna.ops.gpu.packed import PackedMatrix
from puna.ops.gpu.storage import DeviceStorage
from puna.ops.gpu.torch_backend import TorchBackend, check_product
from puna.ops.rope import Rope
from puna.ops.weight import Weight


class TritonBackend(TorchBackend):
    """The operations as kernels. Rows of up to 16 in a pass are computed by other kernels than longer ones.

    Within either, a row's result does not depend on its neighbours.
    """

    #: Python starts the kernels of a pass in about 40 ms for 32 layers, which 2048 rows hide.
    batch_scale = 4

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._turns: WeakKeyDictionary[Rope, rope.Turns] = WeakKeyDictionary()

    @property
    def kernels(self) -> str:
        return "triton"

    # --- weights and storage ---------------------------------------------------------------------------

    def pack(self, weight: Weight) -> None:
        if weight.packed is None:
            weight.packed = self._packed(weight)
            weight.drop_data()

    def packed_bytes(self, type: GGMLType, shape: tuple[int, ...]) -> int:
        return packed.packed_bytes(type, shape)

    def _packed(self, weight: Weight) -> PackedMatrix:
        data = torch.from_numpy(weight.bytes().reshape(-1).copy()).to(self.place)
        return PackedMatrix.pack(data, weight.type, *weight.shape)

    def _of(self, weight: Weight) -> PackedMatrix:
        if weight.packed is None:
            self.pack(weight)
        matrix: PackedMatrix = weight.packed
        return matrix

    # --- operations ------------------------------------------------------------------------------------

    def embedding(self, tokens: Tensor, weight: Weight) -> Tensor:
        if weight.packed is None:  # the output's matrix may share the file's bytes, so they stay
            weight.packed = self._packed(weight)
        return matmul.unpack_rows(weight.packed, tokens)

    def linear(self, x: Tensor, weight: Weight, bias: Tensor | None = None) -> Tensor:
        check_product(x, weight, bias)
        return matmul.linear(x, self._of(weight), bias)

    def linear_many(
        self, x: Tensor, weights: Sequence[Weight], biases: Sequence[Tensor | None] | None = None
    ) -> list[Tensor]:
        biases = biases or [None] * len(weights)
        if len(weights) != len(biases):
            raise ValueError(f"{len(weights)} weights and {len(biases)} biases")
        for weight, bias in zip(weights, biases, strict=True):
            check_product(x, weight, bias)
        return matmul.linear_many(x, [self._of(weight) for weight in weights], biases)

    def linear_heads(self, x: Tensor, weights: Sequence[Weight]) -> Tensor:
        return matmul.linear_heads(x, [self._of(weight) for weight in weights])

    def route(self, logits: Tensor, routing_: Routing, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return routing.route(logits, routing_, bias)

    def experts(self, x: Tensor, chosen: Tensor, weights: Tensor, layer: ExpertNetworks) -> Tensor:
        gate = None if layer.gate is None else self._of(layer.gate.weight)
        biases: Any = {  # tensors here
            "gate_bias": layer.gate_bias,
            "up_bias": layer.up_bias,
            "down_bias": layer.down_bias,
        }
        return experts.experts(
            x, chosen, weights, layer.up.shape[0], gate, self._of(layer.up.weight),
            self._of(layer.down.weight), layer.activation, scale_inputs=layer.scale_inputs, **biases,
        )  # fmt: skip

    def expert_linear(
        self, x: Tensor, chosen: Tensor, weights: ExpertWeights, bias: Tensor | None = None
    ) -> Tensor:
        return experts.expert_linear(x, chosen, self._of(weights.weight), weights.shape[0], bias)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return norms.rms_norm(x, weight, eps)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        return norms.add_rms_norm(x, residual, weight, eps)

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
        return norms.layer_norm(x, weight, bias, eps)

    def rope_(self, x: Tensor, positions: Tensor, rope_: Rope) -> None:
        turns = self._turns.get(rope_)
        if turns is None:
            turns = self._turns[rope_] = rope.Turns.of(rope_, self.place)
        rope.rope_(x, positions, turns)

    def swiglu(self, gate: Tensor, up: Tensor) -> Tensor:
        return activations.swiglu(gate, up)

    def clamped_swiglu(self, gate: Tensor, up: Tensor) -> Tensor:
        return activations.clamped_swiglu(gate, up)

    def geglu(self, gate: Tensor, up: Tensor) -> Tensor:
        return activations.geglu(gate, up)

    def gelu(self, x: Tensor) -> Tensor:
        return activations.gelu(x)

    def squared_relu(self, x: Tensor) -> Tensor:
        return activations.squared_relu(x)

    def above(self, x: Tensor, deviations: float) -> Tensor:
        return norms.above(x, deviations)

    def mix(self, x: Sequence[Tensor], mixture: Tensor) -> list[Tensor]:
        return activations.mix(x, mixture)

    def match_rms(self, x: Tensor, like: Tensor, floor: float) -> Tensor:
        return norms.match_rms(x, like, floor)

    def sigmoid_gate(self, x: Tensor, gate: Tensor) -> Tensor:
        return activations.sigmoid_gate(x, gate)

    def softplus(self, x: Tensor, scale: Tensor) -> Tensor:
        return activations.softplus(x, scale)

    def sigmoid(self, x: Tensor) -> Tensor:
        return activations.sigmoid(x)

    def softcap(self, x: Tensor, cap: float) -> Tensor:
        return activations.softcap(x, cap)

    def temper_(self, x: Tensor, positions: Tensor, scale: float, floor_scale: float, first: int) -> None:
        activations.temper_(x, positions, scale, floor_scale, first)

    def short_conv(
        self, projected: Tensor, weight: Tensor, bias: Tensor | None, states: DeviceStorage, *rows: Tensor,
        **settings: Any,
    ) -> Tensor:  # fmt: skip
        return recurrent.short_conv(projected, weight, bias, states.codes, *rows, **settings)

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

    def recorder(self) -> GraphRecorder | None:
        return GraphRecorder() if self.place.type == "cuda" else None


def _planes(storage: DeviceStorage) -> tuple[Tensor, Tensor | None, GGMLType]:
    return storage.codes, storage.scales, storage.kind

"""Layouts of a layer's experts in files, and errors for damaged files."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from puna.errors import ModelError
from puna.gguf import GGMLType, quantize
from puna.nn.experts import ExpertLinear, SquaredReluExperts
from puna.ops import Backend, ExpertWeights, Weight, backend_named, default_backend
from tests.ops.torch_ops import REFERENCE, weight_of

SHAPE = (4, 6, 8)  # experts, out, in


class Tensors:
    """Source of weights with named tensors."""

    ops = REFERENCE

    def __init__(self, **tensors: Tensor) -> None:
        self.tensors = {name.replace("__", "."): tensor for name, tensor in tensors.items()}

    def holds(self, name: str) -> bool:
        return True

    def matrix(self, name: str, shape: tuple[int, ...]) -> Weight | None:
        tensor = self.tensors.get(name)
        assert tensor is None or tensor.shape == shape
        return None if tensor is None else weight_of(name, tensor)

    def experts(self, name: str, shape: tuple[int, ...]) -> ExpertWeights | None:
        tensor = self.tensors.get(name)
        assert tensor is None or tensor.shape == shape
        return None if tensor is None else ExpertWeights(weight_of(name, tensor.flatten(0, 1)), shape[0])

    def values(self, name: str, shape: tuple[int, ...]) -> Any:
        tensor = self.tensors.get(name)
        assert tensor is None or tensor.shape == shape
        return None if tensor is None else tensor.numpy()

    def vector(self, name: str, length: int) -> Tensor | None:
        raise AssertionError("experts have no vectors")


def loaded(name: str, **tensors: Tensor) -> Any:
    return ExpertLinear.from_source(Tensors(**tensors), name, SHAPE, None)


def values(linear: ExpertLinear) -> Tensor:
    return torch.stack([torch.from_numpy(linear.weights.values(expert)) for expert in range(SHAPE[0])])


def test_one_tensor_may_hold_all_experts_with_or_without_biases() -> None:
    stack, bias = torch.randn(SHAPE), torch.randn(SHAPE[:2])
    plain = loaded("blk.0.ffn_up_exps", blk__0__ffn_up_exps__weight=stack)
    assert torch.equal(values(plain), stack)
    assert plain.bias is None
    biased = loaded("blk.0.ffn_up_exps", blk__0__ffn_up_exps__weight=stack, blk__0__ffn_up_exps__bias=bias)
    assert torch.equal(biased.bias, bias)


def test_one_tensor_may_hold_gate_and_up() -> None:
    gate, up = torch.randn(SHAPE), torch.randn(SHAPE)
    gate_bias, up_bias = torch.randn(SHAPE[:2]), torch.randn(SHAPE[:2])
    joined = {
        "blk__0__ffn_gate_up_exps__weight": torch.cat([gate, up], dim=1),
        "blk__0__ffn_gate_up_exps__bias": torch.cat([gate_bias, up_bias], dim=1),
    }
    first, second = loaded("blk.0.ffn_gate_exps", **joined), loaded("blk.0.ffn_up_exps", **joined)
    assert torch.equal(values(first), gate)
    assert torch.equal(first.bias, gate_bias)
    assert torch.equal(values(second), up)
    assert torch.equal(second.bias, up_bias)


def test_each_expert_may_have_its_own_tensor() -> None:
    stack = torch.randn(SHAPE)
    single = {f"blk__0__ffn_down__{i}__weight": stack[i] for i in range(4)}
    assert torch.equal(values(loaded("blk.0.ffn_down_exps", **single)), stack)


def test_a_missing_expert_is_reported() -> None:
    single = {f"blk__0__ffn_down__{i}__weight": torch.randn(SHAPE[1:]) for i in (0, 1, 3)}
    with pytest.raises(ModelError, match=r"'blk\.0\.ffn_down\.2\.weight' is missing"):
        loaded("blk.0.ffn_down_exps", **single)


def test_a_file_without_experts_loads_none() -> None:
    assert loaded("blk.0.ffn_down_exps", blk__0__ffn_down__weight=torch.randn(6, 8)) is None


@pytest.mark.parametrize("kind", [GGMLType.F32, GGMLType.Q8_0, GGMLType.Q4_0], ids=lambda kind: kind.name)
@pytest.mark.parametrize("ops", [default_backend(), backend_named("reference")], ids=lambda ops: ops.name)
def test_experts_without_gates_square_positive_values(kind: GGMLType, ops: Backend) -> None:
    """Check small and large values with plain and quantised weights."""
    random = np.random.default_rng(5)
    weights = []
    for shape in ((2, 64, 32), (2, 32, 64)):
        data = quantize(random.standard_normal(shape).astype(np.float32).reshape(-1), kind)
        rows = (shape[0] * shape[1], shape[2])
        weights.append(ExpertWeights(Weight("exps", data.view(np.uint8).reshape(rows[0], -1), kind, rows), 2))
    up, down = ([each.values(expert) for expert in range(2)] for each in weights)
    x = (random.standard_normal((6, 32)) * np.array([[1e-3, 0.1, 1, 10, 100, 1e3]]).T).astype(np.float32)
    chosen = np.array([[0, 1], [1, 0], [0, 1], [1, 0], [0, 1], [1, 0]], np.int32)
    shares = random.random((6, 2)).astype(np.float32)
    expected = [
        sum(share * (down[e] @ np.maximum(up[e] @ row, 0) ** 2) for e, share in zip(*pair, strict=True))
        for row, pair in zip(x, zip(chosen, shares, strict=True), strict=True)
    ]
    for each in weights:
        ops.pack(each.weight)
    module = SquaredReluExperts(None, ops)
    module.up, module.down = (ExpertLinear(ops, each) for each in weights)
    module.loaded()
    found = ops.numpy(module.through(*map(ops.array, (x, chosen, shares))))
    errors = np.linalg.norm(found - expected, axis=1) / np.linalg.norm(expected, axis=1)
    assert errors.max() < (1e-5 if kind == GGMLType.F32 else 0.03)

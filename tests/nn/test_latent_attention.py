"""Layouts of the matrices that expand latents, in files."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from puna.gguf import GGMLType, quantize
from puna.nn.latent_attention import KeysAndValues
from puna.ops import ExpertWeights, Weight, default_backend

HEADS, KEY, VALUE, LATENT = 3, 12, 20, 64


class OneMatrix:
    """Source of weights with one matrix."""

    ops = default_backend()

    def __init__(self, kind: GGMLType) -> None:
        shape = HEADS * (KEY + VALUE), LATENT
        numbers = np.random.default_rng(4).standard_normal(shape).astype(np.float32)
        self.weight = Weight("kv", quantize(numbers.reshape(-1), kind), kind, shape)

    def holds(self, name: str) -> bool:
        return True

    def matrix(self, name: str, shape: tuple[int, ...]) -> Weight | None:
        assert shape == self.weight.shape
        return self.weight if name == "kv.weight" else None

    def experts(self, name: str, shape: tuple[int, ...]) -> ExpertWeights | None:
        raise NotImplementedError

    vector = values = experts


@pytest.mark.parametrize(
    ("kind", "kept"),
    [
        (GGMLType.F32, GGMLType.F32), (GGMLType.BF16, GGMLType.F32), (GGMLType.F16, GGMLType.F16),
        (GGMLType.Q8_0, GGMLType.F16), (GGMLType.Q4_0, GGMLType.F16),
    ],
)  # fmt: skip
def test_one_tensor_of_keys_and_values_is_split_in_two(kind: GGMLType, kept: GGMLType) -> None:
    source, ops = OneMatrix(kind), OneMatrix.ops
    halves = torch.from_numpy(source.weight.values()).reshape(HEADS, KEY + VALUE, LATENT).double()
    parts = KeysAndValues.from_source(source, "kv", (HEADS, KEY, VALUE, LATENT), None)
    assert parts is not None
    assert {weight.type for weight in parts.absorb.weights} == {kept}
    assert {weight.type for weight in parts.expand.weights} == {kind}
    query, latent = torch.randn(5, HEADS, KEY), torch.randn(5, HEADS, LATENT)
    absorbed = ops.numpy(parts.absorb(ops.array(query.numpy())))
    expected = torch.einsum("thk,hkl->thl", query.double(), halves[:, :KEY])
    torch.testing.assert_close(torch.from_numpy(absorbed.copy()).double(), expected, atol=1e-2, rtol=0)
    values = ops.numpy(parts.expand(ops.array(latent.numpy())))
    expected = torch.einsum("thl,hvl->thv", latent.double(), halves[:, KEY:])
    torch.testing.assert_close(torch.from_numpy(values.copy()).double(), expected, atol=0.5, rtol=0)
    assert KeysAndValues.from_source(source, "other", (HEADS, KEY, VALUE, LATENT), None) is None

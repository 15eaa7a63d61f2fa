"""Mixtures of experts against their definition in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from puna.gguf import GGMLType
from puna.ops.experts import ACTIVATIONS, GATED_ACTIVATIONS
from puna.ops.gpu.kernels.experts import expert_linear, experts, group
from puna.ops.gpu.packed import FORMATS

from .matrices import random_matrix, relative_error


class Layer:
    """Random experts on a device, and their values [count, out, in] in float64 on the host."""

    def __init__(
        self, kind: GGMLType, device: torch.device, activation: str = "swiglu", count: int = 3, used: int = 2
    ) -> None:
        self.count, self.used, self.activation, self.device = count, used, activation, device
        self.columns, self.width, self.rows = (256, 256, 5) if kind.block_size == 256 else (64, 32, 5)
        shapes = ((self.width, self.columns), (self.width, self.columns), (self.rows, self.width))
        self.matrices, self.values, self.biases = [], [], []
        for rows, columns in shapes:
            matrix, values = random_matrix(kind, count * rows, columns, device)
            self.matrices.append(matrix)
            self.values.append(values.view(count, rows, columns))
            self.biases.append(torch.randn(count, rows))

    def inputs(self, tokens: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return x, chosen and weights; half the tokens share experts: some have many and some none."""
        x = torch.randn(tokens, self.columns)
        chosen = torch.rand(tokens, self.count).argsort(1)[:, : self.used].int()
        chosen[: tokens // 2] = chosen[:1]
        return x, chosen, torch.rand(tokens, self.used)

    def apply(
        self,
        x: Tensor,
        chosen: Tensor,
        weights: Tensor,
        scale_inputs: bool = False,
        limits: tuple[float, float] = (0, 0),
    ) -> Tensor:
        gated = self.activation in GATED_ACTIVATIONS
        gate_bias, up_bias, down_bias = (bias.to(self.device) for bias in self.biases)
        given = (part.to(self.device) for part in (x, chosen, weights))
        return experts(
            *given,
            self.count,
            self.matrices[0] if gated else None,
            *self.matrices[1:],
            self.activation,
            gate_bias if gated else None,
            up_bias,
            down_bias,
            scale_inputs,
            limits,
        )

    def exact(
        self,
        x: Tensor,
        chosen: Tensor,
        weights: Tensor,
        scale_inputs: bool = False,
        limits: tuple[float, float] = (0, 0),
    ) -> Tensor:
        gate, up, down = self.values
        result = torch.zeros(len(x), self.rows, dtype=torch.float64)
        for t in range(len(x)):
            for e, share in zip(chosen[t].tolist(), weights[t].double(), strict=True):
                given = x[t].double() * (share if scale_inputs else 1)
                g, u = gate[e] @ given + self.biases[0][e], up[e] @ given + self.biases[1][e]
                if limits[1]:
                    g, u = g.clamp(max=limits[0]), u.clamp(-limits[1], limits[1])
                match self.activation:
                    case "swiglu":
                        hidden = g * torch.sigmoid(g) * u
                    case "clamped_swiglu":
                        hidden = g.clamp(max=7) * torch.sigmoid(1.702 * g.clamp(max=7)) * (u.clamp(-7, 7) + 1)
                    case "geglu":
                        hidden = torch.nn.functional.gelu(g, approximate="tanh") * u
                    case "reglu":
                        hidden = g.relu() * u
                    case "gelu":
                        hidden = torch.nn.functional.gelu(u)
                    case _:
                        hidden = u.relu() ** 2
                result[t] += (down[e] @ hidden + self.biases[2][e]) * (1 if scale_inputs else share)
        return result


#: Activations are rounded twice.
TOLERANCES = {GGMLType.F32: 1e-6, GGMLType.BF16: 1e-4}


@pytest.mark.parametrize(
    ("kind", "tokens"),
    [
        ("MXFP4", 0), ("Q4_K", 2), ("MXFP4", 3), ("MXFP4", 18), ("BF16", 3), ("BF16", 18), ("F32", 3),
        ("F32", 18),
        *(pytest.param(kind.name, 5, marks=pytest.mark.thorough) for kind in FORMATS),
        *(pytest.param(kind.name, 20, marks=pytest.mark.thorough) for kind in FORMATS),
    ],
)  # fmt: skip
def test_mixtures_match_their_definition(kind: str, tokens: int, device: torch.device) -> None:
    layer = Layer(GGMLType[kind], device, count=3 if tokens > 2 else 2)
    inputs = layer.inputs(tokens)
    error = relative_error(layer.apply(*inputs), layer.exact(*inputs))
    assert error < TOLERANCES.get(GGMLType[kind], 1e-3)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("scale_inputs", [False, True])
def test_activations_and_scaled_inputs_match_their_definition(
    activation: str, scale_inputs: bool, device: torch.device
) -> None:
    layer = Layer(GGMLType.F32, device, activation, count=2)
    inputs = layer.inputs(2)
    error = relative_error(layer.apply(*inputs, scale_inputs), layer.exact(*inputs, scale_inputs))
    assert error < 1e-6


def test_limits_match_their_definition(device: torch.device) -> None:
    layer = Layer(GGMLType.F32, device, count=2)
    inputs = layer.inputs(2)
    exact = layer.exact(*inputs, limits=(0.5, 0.3))
    assert relative_error(layer.apply(*inputs, limits=(0.5, 0.3)), exact) < 1e-6
    assert relative_error(layer.apply(*inputs), exact) > 1e-2


@pytest.mark.parametrize("tokens", [3, 18])
def test_scaled_inputs_of_quantised_experts_match_their_definition(tokens: int, device: torch.device) -> None:
    layer = Layer(GGMLType.Q8_0, device, "squared_relu")
    inputs = layer.inputs(tokens)
    assert relative_error(layer.apply(*inputs, True), layer.exact(*inputs, True)) < 1e-3


@pytest.mark.parametrize("kind", ["Q5_0", "F32"])
@pytest.mark.parametrize("tokens", [0, 4, 18])
def test_each_row_passes_through_its_one_expert(kind: str, tokens: int, device: torch.device) -> None:
    layer = Layer(GGMLType[kind], device)
    x, chosen, _ = layer.inputs(tokens)
    own, bias = chosen[:, 0].contiguous(), layer.biases[1]
    got = expert_linear(x.to(device), own.to(device), layer.matrices[1], layer.count, bias.to(device))
    exact = torch.einsum("toi,ti->to", layer.values[1][own.long()], x.double()) + bias[own.long()]
    assert relative_error(got, exact) < TOLERANCES.get(GGMLType[kind], 1e-3)


def test_all_tokens_may_choose_one_expert(device: torch.device) -> None:
    layer = Layer(GGMLType.Q8_0, device, count=5, used=2)
    x, chosen, weights = layer.inputs(12)
    chosen[:] = torch.tensor([4, 4])
    assert relative_error(layer.apply(x, chosen, weights), layer.exact(x, chosen, weights)) < 1e-3


@pytest.mark.slow
def test_a_token_does_not_depend_on_its_neighbours(device: torch.device) -> None:
    layer = Layer(GGMLType.Q8_0, device, count=2)
    x, chosen, weights = layer.inputs(18)
    for tokens, begin, end in ((5, 2, 4), (18, 0, 17)):
        together = layer.apply(x[:tokens], chosen[:tokens], weights[:tokens])
        alone = layer.apply(x[begin:end], chosen[begin:end], weights[begin:end])
        assert torch.equal(alone, together[begin:end])


@pytest.mark.parametrize(
    ("tokens", "used", "count"), [(1, 8, 32), (7, 3, 5), (16, 4, 4), (150, 2, 3), (90, 8, 64)]
)
def test_tiles_have_every_pair_once_and_one_expert(
    tokens: int, used: int, count: int, device: torch.device
) -> None:
    chosen = torch.randint(0, count, (tokens, used), dtype=torch.int32)
    chosen[: tokens // 2, 0] = count - 1
    groups = group(chosen.to(device), count)
    pairs, flat = groups.pairs.tolist(), chosen.reshape(-1).tolist()
    seen = []
    for expert, begin, size in groups.tiles.tolist():
        assert 0 <= size <= groups.size
        assert {flat[pair] for pair in pairs[begin : begin + size]} <= {expert}
        seen += pairs[begin : begin + size]
    assert sorted(seen) == list(range(tokens * used))

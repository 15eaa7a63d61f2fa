"""Mixtures of experts against float64 and against the products they are made of, alone and in a batch."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

from puna.gguf import GGMLType
from puna.ops import ExpertNetworks, ExpertWeights, Weight
from tests.ops.torch_ops import TorchOps, cpu, weight_of
from tests.processors import NOT_BUILT

from .block_bytes import FLOAT_TYPES, multiplied_as_integers, random_bytes, reference_values

_native = pytest.importorskip("puna._native", reason=NOT_BUILT)

pytestmark = pytest.mark.kernels_of("experts")

KINDS = ("Q4_K", "Q6_K", "Q8_0", "MXFP4", "IQ2_XXS", "IQ3_S", "F16", "F32")
# Experts, in, width, out, experts per token. Widths that end within 256 and within a group of rows, where the
# type allows.
SIZES = {
    "few": (3, 256, 256, 75, 2),
    "wide": (8, 256, 512, 40, 2),
    "many": (40, 256, 256, 24, 8),
    "one": (1, 256, 512, 85, 1),
}
ODD_SIZES = {"odd": (5, 96, 288, 21, 3)}  # for blocks of 32
ODDER_SIZES = {"odder": (5, 37, 301, 19, 5)}  # for plain numbers
TOKENS = (0, 1, 2, 5, 40)
#: A sample of the kinds: the number of experts changes only where they are found.
MANY = ("Q4_K", "F32")
#: The sizes that `make test-fast` runs.
FAST = ("few", "odd", "odder")


def sizes(kind: GGMLType) -> dict[str, tuple[int, int, int, int, int]]:
    odd = ODD_SIZES if kind.block_size < 256 else {}
    return SIZES | odd | (ODDER_SIZES if kind in FLOAT_TYPES else {})


def _marks(kind: str, size: str) -> list[pytest.MarkDecorator]:
    if size in ("many", "one") and kind not in MANY:
        return [pytest.mark.thorough]
    return [] if size in FAST else [pytest.mark.slow]


CASES = [
    pytest.param(name, size, marks=_marks(name, size)) for name in KINDS for size in sizes(GGMLType[name])
]


@pytest.fixture
def keep_threads() -> Iterator[None]:
    before = _native.threads()
    yield
    _native.set_threads(before)


class Layer:
    """Random experts, and their exact values [experts, out, in] in float64."""

    def __init__(self, kind: GGMLType, size: str, *, biases: bool = False, **settings: object) -> None:
        rng = np.random.default_rng(int(kind))
        self.count, self.columns, self.width, self.rows, self.used = (SIZES | ODD_SIZES | ODDER_SIZES)[size]
        self.values: list[Tensor] = []
        weights: list[ExpertWeights] = []
        for rows, columns in (
            (self.width, self.columns),
            (self.width, self.columns),
            (self.rows, self.width),
        ):
            data = random_bytes(kind, self.count * rows, columns, rng)
            values = torch.from_numpy(reference_values(data, kind, self.count * rows).astype(np.float64))
            self.values.append(values.view(self.count, rows, columns))
            weight = Weight("exps", data, kind, (self.count * rows, columns))
            weights.append(ExpertWeights(weight, self.count))
        torch.default_generator.manual_seed(int(kind))
        self.biases: list[Tensor] = []
        if biases:
            self.biases = [torch.randn(self.count, weight.shape[1]) for weight in weights]
        given = [*weights, *self.biases]
        if settings.get("activation") in ("gelu", "squared_relu"):  # without gates
            given[::3] = [None] * len(given[::3])
        self.experts = ExpertNetworks(*given, **settings)  # type: ignore[arg-type]

    def inputs(self, tokens: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return x, chosen and shares; half the tokens share experts: some have many and some none."""
        x = torch.randn(tokens, self.columns)
        chosen = torch.rand(tokens, self.count).argsort(1)[:, : self.used].int()
        chosen[: tokens // 2] = chosen[:1]
        return x, chosen, torch.rand(tokens, self.used)

    def exact(self, x: Tensor, chosen: Tensor, shares: Tensor) -> Tensor:
        """Compute the definition in float64, token by token."""
        gate, up, down = self.values
        biases = [bias.double() for bias in self.biases] or [
            torch.zeros(self.count, 1, dtype=torch.float64)
        ] * 3
        result = torch.zeros(len(x), self.rows, dtype=torch.float64)
        for t in range(len(x)):
            for e, share in zip(chosen[t].tolist(), shares[t].double(), strict=True):
                given = x[t].double() * (share if self.experts.scale_inputs else 1)
                g, u = gate[e] @ given + biases[0][e], up[e] @ given + biases[1][e]
                if limit := self.experts.up_limit:
                    g, u = g.clamp(max=self.experts.gate_limit), u.clamp(-limit, limit)
                if self.experts.activation == "swiglu":
                    hidden = g * torch.sigmoid(g) * u
                elif self.experts.activation == "gelu":
                    hidden = torch.nn.functional.gelu(u)
                elif self.experts.activation == "squared_relu":
                    hidden = u.relu() ** 2
                elif self.experts.activation == "geglu":
                    hidden = torch.nn.functional.gelu(g, approximate="tanh") * u
                elif self.experts.activation == "reglu":
                    hidden = g.relu() * u
                else:
                    g, u = g.clamp(max=7), u.clamp(-7, 7)
                    hidden = g * torch.sigmoid(1.702 * g) * (u + 1)
                result[t] += (down[e] @ hidden + biases[2][e]) * (1 if self.experts.scale_inputs else share)
        return result


def relative_error(got: Tensor, exact: Tensor) -> float:
    assert got.shape == exact.shape
    assert got.dtype == torch.float32
    if not exact.numel():
        return 0.0
    return float(((got.double() - exact).square().mean() / exact.square().mean()).sqrt())


def tolerance(kind: GGMLType) -> float:
    """Return the error that rounding explains.

    Rounding activations to 8 bits twice costs about 1 %, rounding them to AMX's 16 bits for 16-bit floats at
    most 2**-17 each time, and turning both sides into 16-bit integers 1e-4 on average; otherwise floats lose
    only the sums' last bits."""
    if kind == GGMLType.F32:
        return 2e-6
    if multiplied_as_integers(kind):
        return 4e-4
    return 2**-16 if kind in FLOAT_TYPES else 4e-2


@pytest.mark.parametrize(("kind", "size"), CASES)
def test_mixtures_match_their_definition_in_float64(ops: TorchOps, kind: str, size: str) -> None:
    layer = Layer(GGMLType[kind], size)
    for tokens in TOKENS:
        inputs = layer.inputs(tokens)
        error = relative_error(ops.experts(*inputs, layer.experts), layer.exact(*inputs))
        assert error < tolerance(GGMLType[kind]), f"{tokens} tokens"


@pytest.mark.parametrize(
    "settings",
    [
        {"activation": "clamped_swiglu"}, {"activation": "geglu"}, {"activation": "reglu"},
        {"activation": "gelu"}, {"activation": "squared_relu"}, {"scale_inputs": True},
        {"activation": "squared_relu", "scale_inputs": True}, {"gate_limit": 7.0, "up_limit": 5.0},
        {"gate_limit": 4.0, "up_limit": 6.0, "activation": "geglu", "scale_inputs": True},
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("kind", ["MXFP4", "F16"])
def test_other_activations_and_scaled_inputs_match_their_definition(
    ops: TorchOps, kind: str, settings: dict[str, object]
) -> None:
    for biases in (False, True):
        layer = Layer(GGMLType[kind], "odd", biases=biases, **settings)
        inputs = layer.inputs(7)
        error = relative_error(ops.experts(*inputs, layer.experts), layer.exact(*inputs))
        assert error < tolerance(GGMLType[kind])


@pytest.mark.parametrize(("kind", "size"), CASES)
def test_experts_equal_the_sum_of_their_products(kernels: TorchOps, kind: str, size: str) -> None:
    """The bits equal those of single products, which are tested elsewhere, added in the order of choice."""
    layer = Layer(GGMLType[kind], size)

    def single(part: ExpertWeights, expert: int) -> Weight:
        count, rows, columns = part.shape
        data = part.weight.data
        assert data is not None
        return Weight("one", data.reshape(count, -1)[expert], part.weight.type, (rows, columns))

    x, chosen, shares = layer.inputs(6)
    expected = torch.zeros(6, layer.rows)
    for t in range(6):
        row = x[t : t + 1]
        for e, share in zip(chosen[t].tolist(), shares[t], strict=True):
            gate, up = kernels.linear_many(row, [single(layer.experts.gate, e), single(layer.experts.up, e)])
            expected[t] += share * kernels.linear(kernels.swiglu(gate, up), single(layer.experts.down, e))[0]
    assert torch.equal(kernels.experts(x, chosen, shares, layer.experts), expected)


@pytest.mark.parametrize("activation", ["swiglu", "geglu", "reglu", "gelu", "squared_relu"])
@pytest.mark.parametrize("kind", ["F32", "F16", "Q8_0", "Q4_K", "Q6_K"])
def test_a_single_network_has_the_bits_of_its_parts(kernels: TorchOps, kind: str, activation: str) -> None:
    layer = Layer(GGMLType[kind], "one", biases=True, activation=activation).experts
    assert layer.up_bias is not None
    assert layer.down_bias is not None
    x = torch.randn(300, layer.up.shape[2])
    inputs = [kernels.linear(x, layer.up.weight, layer.up_bias[0])]
    if layer.gate is not None:
        assert layer.gate_bias is not None
        inputs.insert(0, kernels.linear(x, layer.gate.weight, layer.gate_bias[0]))
    hidden = getattr(kernels, activation)(*inputs)
    expected = kernels.linear(hidden, layer.down.weight, layer.down_bias[0])
    assert torch.equal(kernels.feed_forward(x, layer), expected)


@pytest.mark.parametrize(("kind", "size"), CASES)
def test_each_row_passes_through_its_one_expert(ops: TorchOps, kind: str, size: str) -> None:
    layer = Layer(GGMLType[kind], size, biases=True)
    for tokens in (0, 1, 70):
        x, chosen, _ = layer.inputs(tokens)
        got = ops.expert_linear(x, chosen[:, 0].contiguous(), layer.experts.up, layer.biases[1])
        own = chosen[:, 0].long()
        exact = layer.biases[1][own].double()
        for expert in own.unique():
            exact[own == expert] += x[own == expert].double() @ layer.values[1][expert].T
        assert relative_error(got, exact) < tolerance(GGMLType[kind])


def test_rows_that_do_not_fit_an_expert_are_refused(kernels: TorchOps) -> None:
    layer = Layer(GGMLType.F32, "few")
    x, chosen, _ = layer.inputs(3)
    up = layer.experts.up
    with pytest.raises(IndexError, match="there are 3 experts, and no expert 3"):
        kernels.expert_linear(x, torch.tensor([0, 3, 1], dtype=torch.int32), up)
    for arguments in ((x, chosen), (x[:2], chosen[:, 0].contiguous()), (x[:, :5].contiguous(), chosen[:, 0])):
        with pytest.raises(ValueError, match="expert_linear"):
            kernels.expert_linear(*arguments, up)
    with pytest.raises(ValueError, match="expert_linear"):
        kernels.expert_linear(x, chosen[:, 0].contiguous(), up, torch.zeros(7))


@pytest.mark.parametrize("kind", KINDS)
def test_a_token_does_not_depend_on_its_neighbours(kernels: TorchOps, kind: str) -> None:
    layer = Layer(GGMLType[kind], "few", biases=True)
    x, chosen, shares = layer.inputs(150)  # more than one block of 64 tokens per expert
    together = kernels.experts(x, chosen, shares, layer.experts)
    for begin, end in ((0, 1), (3, 5), (70, 80), (20, 150)):
        alone = kernels.experts(x[begin:end], chosen[begin:end], shares[begin:end], layer.experts)
        assert torch.equal(alone, together[begin:end])
    one, up = chosen[:, 0].contiguous(), layer.experts.up
    together = kernels.expert_linear(x, one, up, layer.biases[1])
    for begin, end in ((0, 1), (3, 5), (20, 150)):
        alone = kernels.expert_linear(x[begin:end], one[begin:end], up, layer.biases[1])
        assert torch.equal(alone, together[begin:end])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("keep_threads")
def test_results_do_not_depend_on_the_number_of_threads(kind: str) -> None:
    ops, layer = cpu(), Layer(GGMLType[kind], "wide")
    for tokens in (1, 30):
        inputs = layer.inputs(tokens)
        results = []
        for threads in (1, 2, 3):
            _native.set_threads(threads)
            results.append(ops.experts(*inputs, layer.experts))
        assert torch.equal(results[0], results[1])
        assert torch.equal(results[0], results[2])


def test_all_tokens_may_choose_one_expert(ops: TorchOps) -> None:
    layer = Layer(GGMLType.Q8_0, "wide")
    x, chosen, shares = layer.inputs(40)
    chosen[:] = torch.tensor([7, 7])
    error = relative_error(ops.experts(x, chosen, shares, layer.experts), layer.exact(x, chosen, shares))
    assert error < tolerance(GGMLType.Q8_0)


def test_a_non_finite_value_spoils_only_its_token(ops: TorchOps) -> None:
    layer = Layer(GGMLType.Q4_K, "few")
    x, chosen, shares = layer.inputs(6)
    clean = ops.experts(x, chosen, shares, layer.experts)
    x[2, 5] = float("nan")
    spoiled = ops.experts(x, chosen, shares, layer.experts)
    others = [0, 1, 3, 4, 5]
    assert spoiled[2].isnan().all()
    torch.testing.assert_close(spoiled[others], clean[others], rtol=1e-6, atol=1e-6)


def test_experts_that_do_not_exist_are_refused(kernels: TorchOps) -> None:
    layer = Layer(GGMLType.F32, "few")
    x, chosen, shares = layer.inputs(3)
    for bad in (3, -1):
        chosen[1, 1] = bad
        with pytest.raises(IndexError, match=f"there are 3 experts, and no expert {bad}"):
            kernels.experts(x, chosen, shares, layer.experts)


def test_arguments_that_do_not_fit_together_are_refused(kernels: TorchOps) -> None:
    layer = Layer(GGMLType.F32, "few")
    x, chosen, shares = layer.inputs(3)
    for arguments in (
        (x[:, :5].contiguous(), chosen, shares),
        (x[:2], chosen, shares),
        (x, chosen, shares[:, :1].contiguous()),
        (x, chosen.long(), shares),
        (x, chosen[:, 0].contiguous(), shares),
        (x.double(), chosen, shares),
    ):
        with pytest.raises(ValueError, match="experts"):
            kernels.experts(*arguments, layer.experts)


def weights(*shape: int) -> ExpertWeights:
    count, rows, columns = shape
    return ExpertWeights(weight_of("w", torch.randn(count * rows, columns)), count)


def test_weights_that_do_not_fit_together_are_refused() -> None:
    good = weights(2, 3, 4), weights(2, 3, 4), weights(2, 5, 3)
    ExpertNetworks(*good, torch.zeros(2, 3), torch.zeros(2, 3), torch.zeros(2, 5))
    ExpertNetworks(None, *good[1:], activation="squared_relu")
    for bad in (
        (good[0], weights(2, 4, 4), good[2]),
        (good[0], good[1], weights(2, 5, 4)),
        (good[0], good[1], weights(1, 5, 3)),
        (*good, torch.zeros(2, 4)),
        (*good, None, None, torch.zeros(5)),
        (*good, None, None, None, "relu"),
        (*good, None, None, None, "gelu"),
        (None, *good[1:], None, None, None, "swiglu"),
        (None, *good[1:], torch.zeros(2, 3), None, None, "gelu"),
    ):
        with pytest.raises(ValueError, match="experts"):
            ExpertNetworks(*bad)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="7 rows are not those of 2 experts"):
        ExpertWeights(weight_of("w", torch.randn(7, 4)), 2)


def test_single_matrices_of_one_shape_and_type_can_be_stacked() -> None:
    values = torch.randn(3, 4, 8)
    parts = [weight_of(f"w.{i}", values[i]) for i in range(3)]
    stack = ExpertWeights.stack("w", parts)
    assert stack.shape == (3, 4, 8)
    assert torch.equal(torch.stack([torch.from_numpy(stack.values(i)) for i in range(3)]), values)
    odd = [weight_of("w.0", values[0]), weight_of("w.1", values[1, :2])]
    with pytest.raises(ValueError, match=r"'w\.1' is F32 \[2, 8\], but 'w\.0' is F32 \[4, 8\]"):
        ExpertWeights.stack("w", odd)


def test_a_stack_of_fused_matrices_can_be_split() -> None:
    values = torch.randn(3, 6, 8)
    both = ExpertWeights(weight_of("gate_up", values.reshape(18, 8)), 3)
    for rows in (slice(0, 3), slice(3, 6), slice(1, None, 2)):
        part = both.rows("part", rows)
        assert torch.equal(torch.stack([torch.from_numpy(part.values(i)) for i in range(3)]), values[:, rows])

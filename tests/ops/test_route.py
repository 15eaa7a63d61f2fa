"""Routing of tokens to experts, against the definition in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from puna.ops import Routing
from tests.torch_ops import TorchOps

pytestmark = pytest.mark.kernels_of("route")

SIZES = [(1, 1), (4, 2), (8, 8), (64, 6), (256, 8)]  # experts, chosen
SETTINGS = [
    {},
    {"normalize": False},
    {"sigmoid": True},
    {"sigmoid": True, "normalize": False},
    {"sigmoid": True, "scale": 2.5},
]


def exact(logits: Tensor, routing: Routing, bias: Tensor | None) -> tuple[list[list[int]], Tensor]:
    """By sorting, in float64."""
    scores = logits.double().sigmoid() if routing.sigmoid else logits.double().softmax(1)
    ranks = logits.double() if bias is None else scores + bias.double()
    chosen = [
        sorted(range(len(row)), key=lambda e, row=row: -row[e])[: routing.used] for row in ranks.tolist()
    ]
    shares = torch.stack([row[best] for row, best in zip(scores, chosen, strict=True)])
    if routing.normalize:
        shares = shares / shares.sum(1, keepdim=True)
    return chosen, shares * routing.scale


@pytest.mark.parametrize("with_bias", [False, True], ids=["plain", "biased"])
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize(("count", "used"), SIZES)
def test_route(ops: TorchOps, count: int, used: int, settings: dict[str, float], with_bias: bool) -> None:
    torch.manual_seed(count)
    routing = Routing(used, **settings)  # type: ignore[arg-type]
    bias = torch.randn(count) if with_bias else None
    logits = torch.randn(40, count) * 3
    chosen, shares = ops.route(logits, routing, bias)
    expected, expected_shares = exact(logits, routing, bias)
    assert chosen.dtype == torch.int32
    assert chosen.tolist() == expected
    torch.testing.assert_close(shares.double(), expected_shares, rtol=2e-6, atol=1e-12)
    for t in (0, 39):
        alone = ops.route(logits[t : t + 1], routing, bias)
        assert torch.equal(alone[0], chosen[t : t + 1])
        if ops.name != "reference":
            assert torch.equal(alone[1], shares[t : t + 1])


def test_equal_experts_are_taken_by_number(ops: TorchOps) -> None:
    chosen, shares = ops.route(torch.tensor([[1.0, 2, 2, 0, 2, 1]]), Routing(5))
    assert chosen.tolist() == [[1, 2, 4, 0, 5]]
    assert shares[0, 0] == shares[0, 1] == shares[0, 2]


def test_no_tokens(ops: TorchOps) -> None:
    chosen, shares = ops.route(torch.empty(0, 8), Routing(2))
    assert chosen.shape == shares.shape == (0, 2)


@pytest.mark.parametrize("sigmoid", [False, True])
def test_extreme_logits(ops: TorchOps, sigmoid: bool) -> None:
    logits = torch.tensor([[-1e30, 1e30, 0.0], [-200.0, -200.0, -200.0]])
    chosen, shares = ops.route(logits, Routing(2, sigmoid=sigmoid))
    assert chosen.tolist() == [[1, 2], [0, 1]]
    expected = [2 / 3, 1 / 3] if sigmoid else [1.0, 0.0]
    torch.testing.assert_close(shares[0], torch.tensor(expected))
    assert shares[1].isfinite().all()


@pytest.mark.parametrize("sigmoid", [False, True])
def test_nan_is_chosen_and_shows(ops: TorchOps, sigmoid: bool) -> None:
    logits = torch.tensor([[1.0, 2.0, float("nan"), 3.0]])
    chosen, shares = ops.route(logits, Routing(2, sigmoid=sigmoid))
    assert chosen.tolist() == [[2, 3]]
    assert shares.isnan().all()


def test_what_does_not_fit_together_is_refused(kernels: TorchOps) -> None:
    for logits, used, bias in (
        (torch.randn(2, 4), 5, None),
        (torch.randn(2, 4), 0, None),
        (torch.randn(4), 1, None),
        (torch.randn(2, 4), 1, torch.randn(3)),
        (torch.randn(4, 2).T, 1, None),
        (torch.randn(2, 4).double(), 1, None),
    ):
        with pytest.raises(ValueError, match="route"):
            kernels.route(logits, Routing(used), bias)

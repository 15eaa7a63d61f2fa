"""The kernel that chooses experts against the definition in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from puna.ops import Routing
from tests.ops.gpu.launchers import Launchers
from tests.ops.test_route import SETTINGS, check_shares, exact

routing_kernel = pytest.importorskip("puna.ops.gpu.kernels.routing")

SIZES = [(1, 1), (4, 2), (60, 4), (256, 8), (512, 10)]  # experts, chosen
GROUPS = [(8, 2, 4, 2), (60, 6, 6, 3), (256, 8, 8, 4), (6, 3, 6, 4), (8, 4, 2, 1)]


@pytest.fixture
def gpu(device: torch.device) -> Launchers:
    torch.default_generator.manual_seed(1234)
    return Launchers(device, routing_kernel)


def check(gpu: Launchers, routing: Routing, count: int, with_bias: bool) -> None:
    bias = torch.randn(count) if with_bias else None
    logits = torch.randn(7, count) * 3
    chosen, shares = gpu.route(logits, routing, bias)
    expected, expected_shares = exact(logits, routing, bias)
    assert chosen.dtype == torch.int32
    assert chosen.tolist() == expected
    torch.testing.assert_close(shares.double(), expected_shares, rtol=2e-6, atol=1e-12)
    alone = gpu.route(logits[3:4], routing, bias)
    assert torch.equal(alone[0], chosen[3:4])
    assert torch.equal(alone[1], shares[3:4])


@pytest.mark.parametrize("with_bias", [False, True], ids=["plain", "biased"])
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize(("count", "used"), SIZES)
def test_routing_matches_its_definition(
    gpu: Launchers, count: int, used: int, settings: dict[str, Any], with_bias: bool
) -> None:
    check(gpu, Routing(used, **settings), count, with_bias)


@pytest.mark.parametrize("with_bias", [False, True], ids=["plain", "biased"])
@pytest.mark.parametrize(
    "settings", [{}, {"sigmoid": True}, {"best_of_group": 1}, {"best_of_group": 3}], ids=str
)
@pytest.mark.parametrize(("count", "used", "groups", "used_groups"), GROUPS)
def test_experts_are_chosen_from_the_best_groups(
    gpu: Launchers, count: int, used: int, groups: int, used_groups: int, settings: Any, with_bias: bool
) -> None:
    check(gpu, Routing(used, **settings, groups=groups, used_groups=used_groups), count, with_bias)


def test_equal_experts_and_groups_are_taken_by_number_and_nan_counts_as_best(gpu: Launchers) -> None:
    chosen, shares = gpu.route(torch.tensor([[1.0, 2, 2, -0.0, 2, 0.0]]), Routing(6))
    assert chosen.tolist() == [[1, 2, 4, 0, 3, 5]]
    assert shares[0, 0] == shares[0, 1] == shares[0, 2]
    routing = Routing(2, groups=4, used_groups=1)
    assert gpu.route(torch.zeros(1, 8), routing)[0].tolist() == [[0, 1]]
    bias = torch.tensor([0.0, 0.0, 9.0, 9.0, torch.nan, 0.0, torch.nan, -torch.inf])
    assert gpu.route(torch.zeros(1, 8), routing, bias)[0].tolist() == [[4, 5]]
    chosen = gpu.route(torch.tensor([[1.0, -torch.inf, -torch.inf]]), Routing(3))[0]
    assert chosen.tolist() == [[0, 1, 2]]


@pytest.mark.parametrize("sigmoid", [False, True])
def test_extreme_logits_are_routed_as_defined(gpu: Launchers, sigmoid: bool) -> None:
    chosen, shares = gpu.route(
        torch.tensor([[-1e30, 1e30, 0.0], [-200.0, -200.0, -200.0]]), Routing(2, sigmoid=sigmoid)
    )
    assert chosen.tolist() == [[1, 2], [0, 1]]
    torch.testing.assert_close(shares[0], torch.tensor([2 / 3, 1 / 3] if sigmoid else [1.0, 0.0]))
    assert shares[1].isfinite().all()
    chosen, shares = gpu.route(torch.tensor([[1.0, 2.0, torch.nan, 3.0]]), Routing(2, sigmoid=sigmoid))
    assert chosen.tolist() == [[2, 3]]
    assert shares.isnan().all()


def test_routing_accepts_no_tokens(gpu: Launchers) -> None:
    chosen, shares = gpu.route(torch.empty(0, 8), Routing(2))
    assert chosen.shape == shares.shape == (0, 2)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize(("count", "used"), [(1, 1), (9, 4), (60, 6)])
def test_a_table_may_choose_the_experts(
    gpu: Launchers, count: int, used: int, settings: dict[str, Any]
) -> None:
    logits, routing = torch.randn(7, count) * 3, Routing(used, **settings)
    table = torch.stack([torch.randperm(count)[:used] for _ in range(30)]).int()
    tokens = torch.randint(0, 30, (7,)).int()
    chosen, shares = gpu.route_by_table(logits, routing, table, tokens)
    assert torch.equal(chosen, table[tokens.long()])
    check_shares(chosen, shares, logits, routing)
    alone = gpu.route_by_table(logits[3:4], routing, table, tokens[3:4])
    assert torch.equal(alone[1], shares[3:4])
    assert gpu.route_by_table(logits[:0], routing, table, tokens[:0])[0].shape == (0, used)

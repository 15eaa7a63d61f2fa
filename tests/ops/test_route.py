"""Routing of tokens to experts, against its definition in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from puna.ops import Routing
from tests.ops.torch_ops import TorchOps

pytestmark = pytest.mark.kernels_of("route")

SIZES = [(1, 1), (4, 2), (8, 8), (64, 6), (256, 8)]  # experts, chosen
SETTINGS = [
    {},
    {"normalize": False},
    {"sigmoid": True},
    {"sigmoid": True, "normalize": False},
    {"sigmoid": True, "scale": 2.5},
    {"sqrt_softplus": True, "scale": 1.5},
]
GROUPS = [(8, 2, 4, 2), (64, 6, 8, 3), (256, 8, 8, 4), (6, 3, 6, 4), (8, 8, 2, 2), (8, 4, 2, 1)]


def exact_scores(logits: Tensor, routing: Routing) -> Tensor:
    if routing.sqrt_softplus:
        return torch.nn.functional.softplus(logits.double(), threshold=1000).sqrt()
    return logits.double().sigmoid() if routing.sigmoid else logits.double().softmax(1)


def exact(logits: Tensor, routing: Routing, bias: Tensor | None) -> tuple[list[list[int]], Tensor]:
    """Route by sorting, in float64."""
    scores = exact_scores(logits, routing)
    ranks = logits.double() if bias is None else scores + bias.double()
    if routing.groups > 1:
        by_group = (scores if bias is None else scores + bias.double()).unflatten(1, (routing.groups, -1))
        sums = by_group.topk(min(routing.best_of_group, by_group.shape[2]), dim=2).values.sum(2)
        kept = torch.zeros_like(sums).scatter_(1, sums.topk(routing.used_groups, dim=1).indices, 1).bool()
        ranks = ranks.masked_fill(~kept.repeat_interleave(by_group.shape[2], 1), -torch.inf)
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
def test_routing_matches_its_definition(
    ops: TorchOps, count: int, used: int, settings: dict[str, float], with_bias: bool
) -> None:
    torch.default_generator.manual_seed(count)
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


@pytest.mark.parametrize("with_bias", [False, True], ids=["plain", "biased"])
@pytest.mark.parametrize(
    "settings", [{}, {"sigmoid": True, "scale": 2.5}, {"best_of_group": 1}, {"best_of_group": 3}], ids=str
)
@pytest.mark.parametrize(("count", "used", "groups", "used_groups"), GROUPS)
def test_experts_are_chosen_from_the_best_groups(
    ops: TorchOps, count: int, used: int, groups: int, used_groups: int, settings: Any, with_bias: bool
) -> None:
    torch.default_generator.manual_seed(count)
    routing = Routing(used, **settings, groups=groups, used_groups=used_groups)
    bias = torch.randn(count) if with_bias else None
    logits = torch.randn(40, count) * 3
    chosen, shares = ops.route(logits, routing, bias)
    expected, expected_shares = exact(logits, routing, bias)
    assert chosen.tolist() == expected
    torch.testing.assert_close(shares.double(), expected_shares, rtol=2e-6, atol=1e-12)


def test_a_group_is_as_good_as_its_two_best_experts(ops: TorchOps) -> None:
    """The best expert of all is in a group that is not the best."""
    logits = torch.tensor([[3.0, -9, -9, 2, 2, 2, -9, -9, -9]])
    for used_groups, best in ((1, [3, 4]), (2, [0, 3])):
        routing = Routing(2, sigmoid=True, groups=3, used_groups=used_groups)
        assert ops.route(logits, routing)[0].tolist() == [best]
    bias = torch.tensor([0.0] * 6 + [2.0, 2.0, 0.0])
    routing = Routing(2, sigmoid=True, groups=3, used_groups=1)
    chosen, shares = ops.route(logits, routing, bias)
    assert chosen.tolist() == [[6, 7]]
    torch.testing.assert_close(shares, torch.tensor([[0.5, 0.5]]))


def test_equal_groups_are_taken_by_number_and_nan_counts_as_best(ops: TorchOps) -> None:
    routing = Routing(2, groups=4, used_groups=1)
    assert ops.route(torch.zeros(1, 8), routing)[0].tolist() == [[0, 1]]
    bias = torch.tensor([0.0, 0.0, 9.0, 9.0, torch.nan, 0.0, torch.nan, -torch.inf])
    assert ops.route(torch.zeros(1, 8), routing, bias)[0].tolist() == [[4, 5]]


def test_softmax_over_the_chosen_equals_the_normalised_softmax_over_all(ops: TorchOps) -> None:
    """gpt-oss computes its weights this way."""
    torch.default_generator.manual_seed(9)
    logits = torch.randn(40, 32) * 5
    expected = logits.double().topk(4, dim=1)
    chosen, shares = ops.route(logits, Routing(4))
    assert chosen.tolist() == expected.indices.tolist()
    torch.testing.assert_close(shares.double(), expected.values.softmax(1), rtol=2e-6, atol=1e-12)


def test_equal_experts_are_taken_by_number(ops: TorchOps) -> None:
    chosen, shares = ops.route(torch.tensor([[1.0, 2, 2, 0, 2, 1]]), Routing(5))
    assert chosen.tolist() == [[1, 2, 4, 0, 5]]
    assert shares[0, 0] == shares[0, 1] == shares[0, 2]


def test_routing_accepts_no_tokens(ops: TorchOps) -> None:
    chosen, shares = ops.route(torch.empty(0, 8), Routing(2))
    assert chosen.shape == shares.shape == (0, 2)


@pytest.mark.parametrize("sigmoid", [False, True])
def test_extreme_logits_are_routed_as_defined(ops: TorchOps, sigmoid: bool) -> None:
    logits = torch.tensor([[-1e30, 1e30, 0.0], [-200.0, -200.0, -200.0]])
    chosen, shares = ops.route(logits, Routing(2, sigmoid=sigmoid))
    assert chosen.tolist() == [[1, 2], [0, 1]]
    expected = [2 / 3, 1 / 3] if sigmoid else [1.0, 0.0]
    torch.testing.assert_close(shares[0], torch.tensor(expected))
    assert shares[1].isfinite().all()


@pytest.mark.parametrize("sigmoid", [False, True])
def test_nan_is_chosen_and_shows_in_the_weights(ops: TorchOps, sigmoid: bool) -> None:
    logits = torch.tensor([[1.0, 2.0, float("nan"), 3.0]])
    chosen, shares = ops.route(logits, Routing(2, sigmoid=sigmoid))
    assert chosen.tolist() == [[2, 3]]
    assert shares.isnan().all()


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_a_table_may_choose_the_experts(ops: TorchOps, settings: dict[str, Any]) -> None:
    torch.default_generator.manual_seed(11)
    logits, routing = torch.randn(40, 9) * 3, Routing(4, **settings)
    table = torch.stack([torch.randperm(9)[:4] for _ in range(30)]).int()
    tokens = torch.randint(0, 30, (40,)).int()
    chosen, shares = ops.route_by_table(logits, routing, table, tokens)
    assert torch.equal(chosen, table[tokens.long()])
    check_shares(chosen, shares, logits, routing)
    alone = ops.route_by_table(logits[7:8], routing, table, tokens[7:8])
    assert torch.equal(alone[1], shares[7:8]) or ops.name == "reference"
    assert ops.route_by_table(logits[:0], routing, table, tokens[:0])[0].shape == (0, 4)


def check_shares(chosen: Tensor, shares: Tensor, logits: Tensor, routing: Routing) -> None:
    """Check the shares of chosen experts, whatever chose them."""
    expected = exact_scores(logits, routing).gather(1, chosen.long())
    if routing.normalize:
        expected = expected / expected.sum(1, keepdim=True)
    torch.testing.assert_close(shares.double(), expected * routing.scale, rtol=2e-6, atol=1e-12)


def test_tables_that_do_not_fit_are_refused(kernels: TorchOps) -> None:
    logits, table, tokens = (
        torch.randn(2, 4),
        torch.tensor([[0, 1], [3, 2]]).int(),
        torch.tensor([1, 0]).int(),
    )
    for change in (table + 1, table - 1):
        with pytest.raises(IndexError, match="no expert"):
            kernels.route_by_table(logits, Routing(2), change, tokens)
    for change in (tokens + 1, tokens - 1):
        with pytest.raises(IndexError, match="a table of 2 tokens has no token"):
            kernels.route_by_table(logits, Routing(2), table, change)
    for given in ((logits[0], table, tokens), (logits, table[0], tokens), (logits, table, tokens[:1])):
        with pytest.raises(ValueError, match="route_by_table"):
            kernels.route_by_table(given[0], Routing(2), *given[1:])


def test_arguments_that_do_not_fit_together_are_refused(kernels: TorchOps) -> None:
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
    for used, groups, used_groups in ((1, 0, 1), (1, 3, 1), (1, 2, 0), (1, 2, 3), (3, 2, 1)):
        with pytest.raises(ValueError, match="route: cannot choose"):
            kernels.route(torch.randn(2, 4), Routing(used, groups=groups, used_groups=used_groups))
    with pytest.raises(ValueError, match="route: cannot choose"):
        kernels.route(torch.randn(2, 4), Routing(1, groups=2, best_of_group=0))


def router(config: Any, module: str, name: str) -> Any:
    """Return a router of transformers with random weights."""
    import importlib

    made = getattr(importlib.import_module(f"transformers.models.{module}"), name)(config).float()
    for tensor in made.state_dict().values():
        tensor.copy_(torch.randn_like(tensor))
    return made


def check_router(theirs: Any, hidden: Tensor, routing: Routing, ops: TorchOps, bias: Tensor | None) -> None:
    with torch.inference_mode():
        logits, weights, chosen = theirs(hidden)
        ours, shares = ops.route(logits.contiguous(), routing, bias)
    order = chosen.argsort(1)
    assert torch.equal(ours.long().sort(1).values, chosen.gather(1, order))
    found = shares.gather(1, ours.argsort(1))
    torch.testing.assert_close(found, weights.gather(1, order), rtol=1e-5, atol=1e-7)


def test_routing_matches_deepseek_v3s_router(ops: TorchOps) -> None:
    from transformers import DeepseekV3Config

    torch.default_generator.manual_seed(5)
    config = DeepseekV3Config(
        hidden_size=16, n_routed_experts=32, num_experts_per_tok=6, n_group=8, topk_group=3,
        routed_scaling_factor=2.5, norm_topk_prob=True,
    )  # fmt: skip
    theirs = router(config, "deepseek_v3.modeling_deepseek_v3", "DeepseekV3TopkRouter")
    routing = Routing(6, sigmoid=True, scale=2.5, groups=8, used_groups=3)
    check_router(theirs, torch.randn(60, 16), routing, ops, theirs.e_score_correction_bias)


def test_routing_matches_deepseek_v2s_router(ops: TorchOps) -> None:
    from transformers import DeepseekV2Config

    torch.default_generator.manual_seed(7)
    config = DeepseekV2Config(
        hidden_size=16, n_routed_experts=32, num_experts_per_tok=6, n_group=8, topk_group=3,
        routed_scaling_factor=16.0, topk_method="group_limited_greedy", num_attention_heads=4,
    )  # fmt: skip
    theirs = router(config, "deepseek_v2.modeling_deepseek_v2", "DeepseekV2TopkRouter")
    routing = Routing(6, normalize=False, scale=16.0, groups=8, used_groups=3, best_of_group=1)
    check_router(theirs, torch.randn(60, 16), routing, ops, None)


def test_routing_matches_deepseek_v4s_router(ops: TorchOps) -> None:
    from transformers import DeepseekV4Config

    torch.default_generator.manual_seed(8)
    config = DeepseekV4Config(
        hidden_size=16, n_routed_experts=32, num_experts_per_tok=6, routed_scaling_factor=1.7
    )  # fmt: skip
    theirs = router(config, "deepseek_v4.modeling_deepseek_v4", "DeepseekV4TopKRouter")
    routing = Routing(6, sqrt_softplus=True, scale=1.7)
    check_router(theirs, torch.randn(60, 16), routing, ops, theirs.e_score_correction_bias)


def test_routing_matches_gpt_osss_router(ops: TorchOps) -> None:
    from transformers import GptOssConfig

    torch.default_generator.manual_seed(6)
    config = GptOssConfig(hidden_size=16, num_local_experts=32, num_experts_per_tok=4)
    theirs = router(config, "gpt_oss.modeling_gpt_oss", "GptOssTopKRouter")
    check_router(theirs, torch.randn(60, 16), Routing(4), ops, None)

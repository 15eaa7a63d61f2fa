"""The router of Puna beside others in small simulated clusters."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"


@pytest.fixture
def simulation(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module, with speeds that do not change with what is published."""
    monkeypatch.setattr(sys, "path", [str(BENCH), *sys.path])
    found = importlib.import_module("cluster_simulation")
    monkeypatch.setattr(found, "measured_speed", lambda: found.Speed(612.1, 1 / 44.9, 8 / 384.6))
    return found


def test_first_tokens_of_conversations_come_five_times_as_soon_as_with_round_robin(
    simulation: ModuleType,
) -> None:
    policies = importlib.import_module("cluster_policies")
    ours, round_robin = (
        simulation.simulate("conversations", 8, policy, requests=1500, seed=1)
        for policy in (policies.Ours, policies.RoundRobin)
    )
    assert round_robin.first_s >= 5 * ours.first_s
    assert ours.hits > 0.85


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_unrelated_requests_are_as_soon_as_with_the_least_loaded_replica(
    simulation: ModuleType, seed: int
) -> None:
    policies = importlib.import_module("cluster_policies")
    ours, least_loaded = (
        simulation.simulate("unrelated", 8, policy, requests=1500, seed=seed)
        for policy in (policies.Ours, policies.LeastLoaded)
    )
    assert ours.first_s <= 1.05 * least_loaded.first_s
    assert ours.first_p99_s <= 1.05 * least_loaded.first_p99_s


def test_requests_share_the_batches_of_a_replica_as_in_the_engine(simulation: ModuleType) -> None:
    replica = simulation.Replica(simulation.Speed(100.0, 0.1, 0.1))
    session = importlib.import_module("cluster_traces").Session(1, 0.0, [])
    for number, tokens in enumerate((1000, 100, 300)):
        replica.waiting.append(simulation.Request(number, session, 0, 0.0, tokens, 10, []))
    replica.admit()
    assert replica.next_s() == pytest.approx(2.0)  # the shortest gets half, beside the oldest
    replica.advance(2.0)
    assert [request.left for request in replica.prompts] == pytest.approx([900, 0, 300])
    replica.evaluated(replica.prompts[1])
    replica.next_s()
    assert replica.prompts[0].rate == pytest.approx(50 * 1.6 / 2.6)
    assert replica.answers[0].rate == pytest.approx(10 * 1 / 2.6)

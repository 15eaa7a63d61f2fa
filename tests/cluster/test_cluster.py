"""Division of a model among nodes, as the head knows them, without Ray."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from puna.cluster.cluster import Cluster
from puna.cluster.node import Node, NodeFacts
from puna.cluster.settings import ClusterSettings
from puna.cluster.split_plan import ModelSizes
from puna.errors import InsufficientMemoryError
from puna.protocol import Load

SIZES = ModelSizes((10,) * 6, (1,) * 6, 5, 1, (1, 2, 3, 4, 5))


def node(name: str, kernels: str, available: int, memory: int = 100) -> Node:
    return Node(
        f"{name}-id", "192.0.2.1", None, NodeFacts(name, "", 1, memory, available, 1, kernels=kernels)
    )


def names(nodes: list[Node], **settings: bool) -> list[str]:
    """Return the hosts that share the model."""
    cluster = Cluster(ClusterSettings(**settings), keep_alive_s=1, step_timeout_s=1)
    return [share.node.split("-")[0] for share in cluster._shares(SIZES, nodes)]


def test_nodes_with_other_kernels_do_not_share_a_model_unless_they_may() -> None:
    nodes = [node("a", "avx2", 45), node("b", "avx512", 45), node("c", "avx2", 40)]
    assert sorted(names(nodes)) == ["a", "c"]
    mixed = nodes[:2]
    with pytest.raises(InsufficientMemoryError, match=r"same kernels .* too little memory") as refused:
        names(mixed)
    assert (refused.value.needed, refused.value.available) == (72, 45)
    assert sorted(names(mixed, any_kernels=True)) == ["a", "b"]


def test_a_node_gives_no_more_memory_than_it_may() -> None:
    nodes = [node("a", "avx2", 90, memory=30), node("b", "avx2", 45), node("c", "avx2", 40)]
    assert sorted(names(nodes)) == ["b", "c"]


def test_loads_at_one_time_know_of_each_others_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(ClusterSettings(), keep_alive_s=1, step_timeout_s=1)
    [only] = [node("a", "avx2", 100)]
    cluster._nodes, cluster._head = {only.id: only}, only.id
    allowed: list[int | None] = []
    placed: list[Any] = []

    class Runner:
        async def load(self, load: Load, *_: object, **__: object) -> None:
            allowed.append(load.allowed)
            await asyncio.sleep(0.01)

    class Placed:
        def promised(self, _: Node) -> int:
            return 0

        def taken(self, _: Node) -> int:
            return 60 * len(placed)

    async def start_runner(*_: object) -> tuple[Runner, None]:
        return Runner(), None

    async def place() -> None:
        placed.append(await cluster.place(Load(path="sha256-0", num_ctx=1)))

    async def both() -> None:
        await asyncio.gather(place(), place())

    monkeypatch.setattr("puna.cluster.cluster.start_runner", start_runner)
    monkeypatch.setattr("puna.cluster.cluster.Replica", lambda *_: object())
    monkeypatch.setattr(cluster, "_sets", [Placed()])
    asyncio.run(both())
    assert allowed == [100, 40]

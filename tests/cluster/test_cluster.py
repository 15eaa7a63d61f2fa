"""Division of a model among nodes, as the head knows them, without Ray."""

from __future__ import annotations

import pytest

from puna.cluster.cluster import Cluster
from puna.cluster.node import Node, NodeFacts
from puna.cluster.settings import ClusterSettings
from puna.cluster.split_plan import ModelSizes
from puna.errors import InsufficientMemoryError

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

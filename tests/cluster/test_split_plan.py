"""Division of a model's layers among nodes."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from puna.cluster.split_plan import ModelSizes, Share, StageNode, fulfil, parse_split, plan
from puna.errors import PunaError, RequestError

sizes_of = st.builds(
    lambda layers, first, each, bars: ModelSizes(
        weights=tuple(weights for weights, _ in layers),
        caches=tuple(cache for _, cache in layers),
        first=first,
        each=each,
        places=tuple(place for place in range(1, len(layers)) if place not in bars),
    ),
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 3)), min_size=2, max_size=6),
    st.integers(0, 8),
    st.integers(0, 2),
    st.sets(st.integers(1, 5), max_size=2),
)
nodes_of = st.lists(
    st.tuples(st.integers(0, 40), st.sampled_from([1.0, 2.0, 5.0])), min_size=1, max_size=4
).map(lambda found: [StageNode(f"n{i}", free, speed) for i, (free, speed) in enumerate(found)])


def seconds(sizes: ModelSizes, share: Share, speed: float) -> float:
    return (sum(sizes.weights[share.begin : share.end]) + (0 if share.begin else sizes.first)) / speed


def all_divisions(sizes: ModelSizes, nodes: list[StageNode], count: int) -> list[list[Share]]:
    """Return every division among `count` nodes that fits."""
    found = []
    for chosen in itertools.permutations(nodes, count):
        for cuts in itertools.combinations(sizes.places, count - 1):
            ends = [0, *cuts, len(sizes.weights)]
            shares = [
                Share(node.name, begin, end)
                for node, (begin, end) in zip(chosen, itertools.pairwise(ends), strict=True)
            ]
            if all(
                sizes.of(share.begin, share.end) <= node.free_bytes
                for share, node in zip(shares, chosen, strict=True)
            ):
                found.append(shares)
    return found


@given(sizes_of, nodes_of)
def test_fewest_nodes_that_fit_share_all_layers(sizes: ModelSizes, nodes: list[StageNode]) -> None:
    found, known = plan(sizes, nodes), {node.name: node for node in nodes}
    if found is None:
        # Nodes after the first are filled in one order only: the largest come first.
        assert not all_divisions(sizes, nodes, 2)
        return
    assert [share.begin for share in found] == [0, *(share.end for share in found[:-1])]
    assert found[-1].end == len(sizes.weights)
    assert len({share.node for share in found}) == len(found)
    for share in found:
        assert sizes.of(share.begin, share.end) <= known[share.node].free_bytes
        assert share.begin in (0, *sizes.places)
    if len(found) == 2:
        slowest = [
            max(seconds(sizes, share, known[share.node].speed) for share in shares)
            for shares in [found, *all_divisions(sizes, nodes, 2)]
        ]
        assert slowest[0] <= min(slowest) * 1.0001
    else:
        assert not all_divisions(sizes, nodes, 2)


def test_nodes_of_a_wish_are_those_named_and_then_the_largest() -> None:
    sizes = ModelSizes((1,) * 6, (0,) * 6, 0, 0, (1, 2, 3, 4, 5))
    nodes = [StageNode("a", 1, 1), StageNode("b", 9, 1), StageNode("c", 5, 1)]
    assert fulfil((("", 2), ("a", 1), ("", 3)), sizes, nodes) == [
        Share("b", 0, 2), Share("a", 2, 3), Share("c", 3, 6),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("wishes", "complaint"),
    [
        ((("", 2), ("", 3)), "divides 5 layers, and the model has 6"),
        ((("x", 3), ("", 3)), "names node x, and there are a, b"),
        ((("", 2), ("", 2), ("", 2)), "needs 3 nodes, and 2"),
        ((("a", 3), ("a", 3)), "needs 2 nodes"),
        ((("", 5), ("", 1)), r"before layer 5, but before \[1, 2, 3\]"),
    ],
)
def test_a_wish_that_cannot_be_fulfilled_is_refused(
    wishes: tuple[tuple[str, int], ...], complaint: str
) -> None:
    sizes = ModelSizes((1,) * 6, (0,) * 6, 0, 0, (1, 2, 3))
    with pytest.raises(RequestError, match=complaint):
        fulfil(wishes, sizes, [StageNode("a", 9, 1), StageNode("b", 9, 1)])


def test_settings_of_a_split() -> None:
    assert parse_split("auto") == "auto"
    assert parse_split("20, b=12") == (("", 20), ("b", 12))
    for text in ("", "20", "20,x", "a=,2", "0,3", "many"):
        with pytest.raises(PunaError, match="split"):
            parse_split(text)

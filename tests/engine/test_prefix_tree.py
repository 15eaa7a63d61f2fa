"""The prefix tree against a plain list of its contents."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from puna.engine.prefix_tree import PrefixTree, common_length

#: Few different keys, so that random lists have much in common.
KEYS = st.lists(st.sampled_from([1, 2, (1, 77)]), max_size=12)


def shared(first: list, second: list) -> int:
    return len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False))))


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ([1, 2, 3], [1, 2, 3], 3),
        ([1], [1, 2, 3], 1),
        ([], [1], 0),
        ([], [], 0),
        ([(0, 11)], [(0, 11), (0, 12), (0, 13)], 1),
        ([1, (0, 11)], [1, (0, 11), 5], 2),
        ([1, (0, 11)], [1, (0, 12)], 1),
    ],
)
def test_inputs_are_equal_if_tokens_and_images_are(first: list, second: list, expected: int) -> None:
    assert common_length(first, second, 0) == expected
    tree: PrefixTree[str] = PrefixTree()
    tree.insert("first", first)
    assert list(tree.search(second)) == [(expected, "first")]


@pytest.mark.parametrize("length", [0, 1, 255, 256, 257, 600])
def test_the_place_where_long_lists_differ_is_found(length: int) -> None:
    same = list(range(length))
    assert common_length([*same, 1, 5], [7, 7, *same, 2, 5], 2) == length
    assert common_length(same, [*same, 2], 0) == length


def test_matches_come_in_order_of_length_longest_first() -> None:
    tree: PrefixTree[str] = PrefixTree()
    tree.insert("a", [1, 2, 3, 4, 5])
    tree.insert("b", [1, 2, 3, 9])
    tree.insert("c", [1, 2])
    tree.insert("d", [8])
    assert list(tree.search([1, 2, 3, 4, 7])) == [(4, "a"), (3, "b"), (2, "c"), (0, "d")]


def test_the_nearest_holder_comes_first() -> None:
    tree: PrefixTree[str] = PrefixTree()
    tree.insert("far", [1, 2, 3, 4, 5, 6, 7])
    tree.insert("near", [1, 2, 3])
    assert list(tree.search([1, 2, 9])) == [(2, "near"), (2, "far")]


def test_a_holder_is_covered_by_a_longer_or_equal_one() -> None:
    tree: PrefixTree[str] = PrefixTree()
    tree.insert("short", [1, 2])
    tree.insert("long", [1, 2, 3])
    assert tree.covered("short")
    assert not tree.covered("long")
    tree.insert("same", [1, 2, 3])
    assert tree.covered("long")


def test_extending_a_long_edge_adds_no_nodes() -> None:
    tree: PrefixTree[str] = PrefixTree()
    tree.insert("a", [0])
    for key in range(1, 1000):
        tree.extend("a", [key])
    path, depth = tree._walk(list(range(1000)))
    assert (len(path), depth) == (2, 1000)


class Model:
    """A plain list of the keys of all holders."""

    def __init__(self) -> None:
        self.tree: PrefixTree[int] = PrefixTree()
        self.lists: dict[int, list] = {}


@given(st.lists(st.tuples(st.sampled_from(["insert", "extend", "remove"]), st.integers(0, 5), KEYS)), KEYS)
def test_any_history_matches_a_plain_list(operations: list, searched: list) -> None:
    model = Model()
    tree, lists = model.tree, model.lists
    for name, holder, keys in operations:
        if name == "insert" and holder not in lists:
            tree.insert(holder, keys)
            lists[holder] = list(keys)
        elif name == "extend" and holder in lists:
            tree.extend(holder, keys)
            lists[holder] += keys
        elif name == "remove" and holder in lists:
            tree.remove(holder)
            del lists[holder]
        tree.check()
    for keys in (searched, *lists.values()):
        found = list(tree.search(keys))
        assert sorted(found) == sorted((shared(other, keys), holder) for holder, other in lists.items())
        assert [count for count, _ in found] == sorted((count for count, _ in found), reverse=True)
    for holder, keys in lists.items():
        assert tree._ends[holder].end == len(keys)
        assert tree.covered(holder) == any(
            other != holder and lists[other][: len(keys)] == keys for other in lists
        )

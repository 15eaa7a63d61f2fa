"""A tree of everything the cache remembers, by what it begins with.

A radix tree: an edge is a stretch of inputs, nodes are where stretches of different holders part. Whoever is
put in ends at a node, and shares all edges from the root to it with everybody below and on the way. How long
a search takes depends on the length of what is searched, not on how much there is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

#: What makes two inputs the same: the token, and for parts of images also what they show.
Key = int | tuple[int, int]

H = TypeVar("H")

#: Stretches are compared so many inputs at a time before looking where exactly they differ.
_COMPARED_TOGETHER = 256


class Node(Generic[H]):
    """The end of an edge, `end` inputs from the root; `edge` are the last ones of these."""

    __slots__ = ("children", "edge", "end", "holders", "parent")

    def __init__(self, edge: list[Key], end: int, parent: Node[H] | None) -> None:
        self.edge = edge
        self.end = end
        self.parent = parent
        self.children: dict[Key, Node[H]] = {}
        self.holders: dict[H, None] = {}  # whoever ends here, in order of arrival

    def below(self) -> Iterator[H]:
        """Everybody who ends here or further on, the nearest first."""
        level = [self]
        while level:
            for node in level:
                yield from node.holders
            level = [child for node in level for child in node.children.values()]


class PrefixTree(Generic[H]):
    """Holders (hashable) by the keys of their inputs."""

    def __init__(self) -> None:
        self._root: Node[H] = Node([], 0, None)
        self._ends: dict[H, Node[H]] = {}

    def __contains__(self, holder: H) -> bool:
        return holder in self._ends

    def length(self, holder: H) -> int:
        """How many inputs `holder` has."""
        return self._ends[holder].end

    def covered(self, holder: H) -> bool:
        """Whether somebody else has all that `holder` has."""
        end = self._ends[holder]
        return bool(end.children) or len(end.holders) > 1

    def insert(self, holder: H, keys: list[Key]) -> None:
        """Put `holder`, who is not in the tree, at the end of `keys`."""
        self._place(holder, self._root, keys)

    def extend(self, holder: H, keys: list[Key]) -> None:
        """`holder` goes on with `keys`."""
        end = self._ends[holder]
        if len(end.holders) == 1 and not end.children and end.parent is not None:
            end.edge.extend(keys)
            end.end += len(keys)
            return
        del end.holders[holder]
        self._place(holder, end, keys)
        self._tidy(end)

    def remove(self, holder: H) -> None:
        """Take `holder` out."""
        end = self._ends.pop(holder)
        del end.holders[holder]
        self._tidy(end)

    def search(self, keys: list[Key]) -> Iterator[tuple[int, H]]:
        """Whoever begins like `keys`, with how many inputs they share, the most first.

        Everybody in the tree comes once, so stop as soon as nobody better can come.
        """
        path, shared = self._walk(keys)
        for holder in path[-1].below():
            yield shared, holder
        for node, visited in zip(path[-2::-1], path[:0:-1], strict=True):
            for holder in node.holders:
                yield node.end, holder
            for child in node.children.values():
                if child is not visited:
                    for holder in child.below():
                        yield node.end, holder

    def check(self) -> None:
        """Raise `AssertionError` if the tree is not as it must be. For tests."""
        found = {}
        nodes = [self._root]
        while nodes:
            node = nodes.pop()
            if node is not self._root and not node.holders and len(node.children) < 2:
                raise AssertionError("a node where nobody ends and nobody parts")
            for key, child in node.children.items():
                if (
                    child.parent is not node
                    or child.edge[0] != key
                    or child.end != node.end + len(child.edge)
                ):
                    raise AssertionError(f"the node after {key} at {node.end} does not fit its place")
                nodes.append(child)
            found.update(dict.fromkeys(node.holders, node))
        if found != self._ends:
            raise AssertionError("who is in the tree differs from who is said to be")

    def _walk(self, keys: list[Key]) -> tuple[list[Node[H]], int]:
        """The nodes from the root to where `keys` leave the tree, and how many of them are in it."""
        node, depth = self._root, 0
        path = [node]
        while depth < len(keys) and (child := node.children.get(keys[depth])) is not None:
            path.append(child)
            common = common_length(child.edge, keys, depth)
            depth += common
            if common < len(child.edge):
                break
            node = child
        return path, depth

    def _place(self, holder: H, node: Node[H], keys: list[Key]) -> None:
        """`holder` ends `keys` after `node`; nodes are made as needed."""
        depth = 0
        while depth < len(keys):
            child = node.children.get(keys[depth])
            if child is None:
                rest = list(keys[depth:])
                child = node.children[keys[depth]] = Node(rest, node.end + len(rest), node)
            common = common_length(child.edge, keys, depth)
            if common < len(child.edge):
                child = self._split(child, common)
            node, depth = child, depth + common
        node.holders[holder] = None
        self._ends[holder] = node

    def _split(self, node: Node[H], count: int) -> Node[H]:
        """A new node after the first `count` inputs of the edge to `node`."""
        parent = node.parent
        assert parent is not None, "the root has no edge"
        upper = Node(node.edge[:count], parent.end + count, parent)
        parent.children[node.edge[0]] = upper
        del node.edge[:count]
        node.parent = upper
        upper.children[node.edge[0]] = node
        return upper

    def _tidy(self, node: Node[H]) -> None:
        """Take out nodes where nobody ends and nobody parts, from `node` towards the root."""
        while node.parent is not None and not node.holders and len(node.children) < 2:
            parent = node.parent
            if node.children:
                (child,) = node.children.values()
                child.edge[:0] = node.edge
                child.parent = parent
                parent.children[child.edge[0]] = child
                return
            del parent.children[node.edge[0]]
            node = parent


def common_length(edge: list[Key], keys: list[Key], start: int) -> int:
    """How many leading keys of `edge` equal those of `keys` from `start` on."""
    end = min(len(edge), len(keys) - start)
    done = 0
    while done < end:
        step = min(_COMPARED_TOGETHER, end - done)
        if edge[done : done + step] != keys[start + done : start + done + step]:
            break
        done += step
    while done < end and edge[done] == keys[start + done]:
        done += 1
    return done

"""A radix tree over the inputs of all cached sequences, which finds the longest cached prefix of a prompt.

An edge is a run of inputs; at a node, sequences end or diverge. A holder (a cached sequence) ends at a node,
and shares the edges from the root to it with the holders below and on the way. The time to find the best
holder depends on the length of the prompt, not on the size of the tree.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

#: Identifies an input: its token, and for parts of images the hash of the content too.
Key = int | tuple[int, int]

H = TypeVar("H")

#: Inputs compared at a time before searching for the exact place of a difference.
_COMPARED_TOGETHER = 256


class PrefixNode(Generic[H]):
    """The end of an edge, `end` inputs from the root; `edge` has the inputs since its parent."""

    __slots__ = ("children", "edge", "end", "holders", "parent")

    def __init__(self, edge: list[Key], end: int, parent: PrefixNode[H] | None) -> None:
        self.edge = edge
        self.end = end
        self.parent = parent
        self.children: dict[Key, PrefixNode[H]] = {}
        self.holders: dict[H, None] = {}  # ending here, oldest first

    def below(self) -> Iterator[H]:
        """Yield all holders that end here or further down, the nearest first."""
        level = [self]
        while level:
            for node in level:
                yield from node.holders
            level = [child for node in level for child in node.children.values()]


class PrefixTree(Generic[H]):
    """Holders (hashable) by the keys of their inputs."""

    def __init__(self) -> None:
        self._root: PrefixNode[H] = PrefixNode([], 0, None)
        self._ends: dict[H, PrefixNode[H]] = {}

    def __contains__(self, holder: H) -> bool:
        return holder in self._ends

    def covered(self, holder: H) -> bool:
        """Whether another holder has all inputs of `holder`."""
        end = self._ends[holder]
        return bool(end.children) or len(end.holders) > 1

    def __iter__(self) -> Iterator[H]:
        return iter(self._ends)

    def keys(self, holder: H, begin: int, end: int) -> list[Key]:
        """Return the inputs [begin, end) of `holder`, in time that depends on those from `begin` on."""
        node, parts = self._ends[holder], []
        while node.parent is not None and node.end > begin:
            first = node.parent.end
            parts.append(node.edge[max(begin - first, 0) : max(end - first, 0)])
            node = node.parent
        return [key for part in reversed(parts) for key in part]

    def insert(self, holder: H, keys: list[Key]) -> None:
        """Add `holder`, which must not be in the tree, with inputs `keys`."""
        self._place(holder, self._root, keys)

    def extend(self, holder: H, keys: list[Key]) -> None:
        """Append `keys` to the inputs of `holder`."""
        end = self._ends[holder]
        if len(end.holders) == 1 and not end.children and end.parent is not None:
            end.edge.extend(keys)
            end.end += len(keys)
            return
        del end.holders[holder]
        self._place(holder, end, keys)
        self._tidy(end)

    def remove(self, holder: H) -> None:
        """Remove `holder`."""
        end = self._ends.pop(holder)
        del end.holders[holder]
        self._tidy(end)

    def search(self, keys: list[Key]) -> Iterator[tuple[int, H]]:
        """Yield all holders with the number of leading inputs they share with `keys`, most first.

        Walks the whole tree if exhausted, so stop as soon as no better holder can follow.
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

    def nodes(self) -> Iterator[PrefixNode[H]]:
        """Yield all nodes but the root, parents before children."""
        level = [*self._root.children.values()]
        while level:
            yield from level
            level = [child for node in level for child in node.children.values()]

    def check(self) -> None:
        """Raise `AssertionError` if an invariant of the tree is broken. For tests."""
        found = {}
        nodes = [self._root]
        while nodes:
            node = nodes.pop()
            if node is not self._root and not node.holders and len(node.children) < 2:
                raise AssertionError("a node where no holder ends and no paths diverge")
            for key, child in node.children.items():
                if (
                    child.parent is not node
                    or child.edge[0] != key
                    or child.end != node.end + len(child.edge)
                ):
                    raise AssertionError(
                        f"the node after {key} at {node.end} is inconsistent with its parent"
                    )
                nodes.append(child)
            found.update(dict.fromkeys(node.holders, node))
        if found != self._ends:
            raise AssertionError("the holders in the tree differ from the index of holders")

    def _walk(self, keys: list[Key]) -> tuple[list[PrefixNode[H]], int]:
        """Return the nodes from the root to where `keys` leave the tree, and how many of `keys` are in it."""
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

    def _place(self, holder: H, node: PrefixNode[H], keys: list[Key]) -> None:
        """Add `holder` at `keys` below `node`, creating nodes as needed."""
        depth = 0
        while depth < len(keys):
            child = node.children.get(keys[depth])
            if child is None:
                rest = list(keys[depth:])
                child = node.children[keys[depth]] = PrefixNode(rest, node.end + len(rest), node)
            common = common_length(child.edge, keys, depth)
            if common < len(child.edge):
                child = self._split(child, common)
            node, depth = child, depth + common
        node.holders[holder] = None
        self._ends[holder] = node

    def _split(self, node: PrefixNode[H], count: int) -> PrefixNode[H]:
        """Insert and return a node after the first `count` inputs of the edge to `node`."""
        parent = node.parent
        assert parent is not None, "the root has no edge"
        upper = PrefixNode(node.edge[:count], parent.end + count, parent)
        parent.children[node.edge[0]] = upper
        del node.edge[:count]
        node.parent = upper
        upper.children[node.edge[0]] = node
        return upper

    def _tidy(self, node: PrefixNode[H]) -> None:
        """Remove nodes where no holder ends and no paths diverge, from `node` towards the root."""
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
    """Return how many leading keys of `edge` equal those of `keys` from `start` on."""
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

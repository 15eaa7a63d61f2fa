"""Division of a model that is larger than a node among several of them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from puna.errors import PunaError, RequestError

#: How many more nodes than needed are considered.
_SPARE_NODES: Final = 3
#: Steps of the search for the least time of the slowest stage; each halves what is unknown.
_HALVINGS: Final = 40


@dataclass(frozen=True)
class ModelSizes:
    """Memory of a model in bytes, for the context it is loaded for."""

    weights: tuple[int, ...]  # of each layer
    caches: tuple[int, ...]  # of each layer
    first: int  # of what only the first stage has: embedding, output, tokenizer, tower, prediction heads
    each: int  # of every stage besides: activations, books of caches, the process
    places: tuple[int, ...]  # layers before which the model may be cut

    def of(self, begin: int, end: int) -> int:
        """Return the bytes of a stage with layers [begin, end)."""
        own = sum(self.weights[begin:end]) + sum(self.caches[begin:end]) + self.each
        return own + (0 if begin else self.first)


@dataclass(frozen=True)
class StageNode:
    """A node that may take a stage."""

    name: str
    free_bytes: int
    speed: float  # weights that it computes with in a unit of time


@dataclass(frozen=True)
class Share:
    """Layers [begin, end) on a node; the first share begins with layer 0."""

    node: str
    begin: int
    end: int


#: A number of layers, and the node for them or "" for any.
Wish = tuple[str, int]


def parse_split(text: str) -> str | tuple[Wish, ...]:
    """Return `auto`, `off`, or the parts of `20,12` or `node=20,node=12`. Raises PunaError."""
    if text in ("auto", "off"):
        return text
    wishes = []
    for part in text.split(","):
        node, _, count = part.strip().rpartition("=")
        if not (count.isdecimal() and 0 < len(count) < 6 and int(count)):
            raise PunaError(f"split must be auto, off, or layers such as 20,12 or a=20,b=12, not {text!r}")
        wishes.append((node, int(count)))
    if len(wishes) < 2:
        raise PunaError(f"split names the layers of two nodes or more, not {text!r}")
    return tuple(wishes)


def plan(sizes: ModelSizes, nodes: Sequence[StageNode]) -> list[Share] | None:
    """Return the division among the fewest nodes with room whose slowest stage is fastest; None if none has.

    All of a stage's weights count as its work, which they are for each step that decodes.
    """
    largest = sorted(nodes, key=lambda node: -node.free_bytes)
    for count in range(2, min(len(nodes), len(sizes.weights)) + 1):
        best: tuple[float, list[Share]] | None = None
        for chosen in itertools.combinations(largest[: count + _SPARE_NODES], count):
            for first in chosen:
                order = [first, *(node for node in chosen if node is not first)]
                found = _balanced(sizes, order)
                if found is not None and (best is None or found[0] < best[0]):
                    best = found
        if best is not None:
            return best[1]
    return None


def _balanced(sizes: ModelSizes, order: Sequence[StageNode]) -> tuple[float, list[Share]] | None:
    """Return the least time of the slowest stage for nodes in this order, and the division."""
    high = (sum(sizes.weights) + sizes.first) / min(node.speed for node in order)
    best = _within(sizes, order, high)
    if best is None:
        return None
    low = 0.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        found = _within(sizes, order, middle)
        low, high, best = (middle, high, best) if found is None else (low, middle, found)
    return high, best


def _within(sizes: ModelSizes, order: Sequence[StageNode], limit: float) -> list[Share] | None:
    """Return a division in which no stage takes longer than `limit`, nor more memory than there is.

    Each node takes as many layers as it can, which leaves the fewest to the others.
    """
    shares, begin, count = [], 0, len(sizes.weights)
    for left, node in zip(range(len(order) - 1, -1, -1), order, strict=True):
        ends = [end for end in (*sizes.places, count) if begin < end]
        ends = ends[: len(ends) - left]  # each of the others takes some
        fitting = [
            end
            for end in ends
            if sizes.of(begin, end) <= node.free_bytes
            and (sum(sizes.weights[begin:end]) + (0 if begin else sizes.first)) / node.speed <= limit
        ]
        if not fitting:
            return None
        shares.append(Share(node.name, begin, fitting[-1]))
        begin = fitting[-1]
    return shares if begin == count else None


def fulfil(wishes: Sequence[Wish], sizes: ModelSizes, nodes: Sequence[StageNode]) -> list[Share]:
    """Return the division that was asked for; nodes that are not named are those with the most room.

    Raises RequestError if the model cannot be divided so, or there are too few nodes.
    """
    count = len(sizes.weights)
    if sum(each for _, each in wishes) != count:
        wanted = sum(each for _, each in wishes)
        raise RequestError(f"split divides {wanted} layers, and the model has {count}")
    known = {node.name for node in nodes}
    named = [name for name, _ in wishes if name]
    if missing := [name for name in named if name not in known]:
        raise RequestError(f"split names node {missing[0]}, and there are {', '.join(sorted(known))}")
    free = [node.name for node in sorted(nodes, key=lambda node: -node.free_bytes) if node.name not in named]
    if len(set(named)) < len(named) or len(free) < len(wishes) - len(named):
        raise RequestError(f"split needs {len(wishes)} nodes, and {len(nodes)} can take a stage")
    shares, begin = [], 0
    for name, each in wishes:
        shares.append(Share(name or free.pop(0), begin, begin + each))
        begin += each
    for share in shares[1:]:
        if share.begin not in sizes.places:
            raise RequestError(
                f"the model cannot be cut before layer {share.begin}, but before {list(sizes.places)}"
            )
    return shares

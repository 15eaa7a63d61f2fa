"""Prints the pictures of docs/kvcache.md from the states of real caches: python docs/kvcache_pictures.py

Each line is a cache before and after an operation: a cell shows the sequences that hold it (A, B, ...; `*`
when several do) and, below, the position it has in the first of them. `.` is a free cell.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from puna.kvcache.causal import CausalCache, KVShape
from puna.kvcache.cells import Cells
from puna.kvcache.chunked import ChunkedCache
from puna.kvcache.sliding import SlidingCache
from puna.model.input import Batch

SHAPES = [KVShape(1, 1, 1)]


def picture(cells: Cells, count: int) -> list[str]:
    """Two lines: who holds each of the first `count` cells, and which position it is."""
    holders: list[str] = ["."] * count
    positions = [" "] * count
    for sequence in reversed(range(len(cells.length))):
        for entry, cell in enumerate(cells.cells(sequence).tolist(), start=int(cells.first[sequence])):
            holders[cell] = "*" if holders[cell] != "." else chr(ord("A") + sequence)
            positions[cell] = str(entry)
    return [" ".join(f"{holder:>2}" for holder in holders), " ".join(f"{p:>2}" for p in positions)]


def keep(layer: int, keys: torch.Tensor, offset: int) -> None:
    """No rotation: only where cells lie is shown."""


def store(cache: CausalCache, sequences: str) -> None:
    """One pass with the next input of each of `sequences`, rows of one being adjacent."""
    owners = [ord(name) - ord("A") for name in sequences]
    positions = [cache.length(owner) + owners[:row].count(owner) for row, owner in enumerate(owners)]
    cache.start_forward(Batch.of([0] * len(owners), positions, owners, []))
    numbers = torch.zeros(len(owners), 1, 1)
    cache.layer(0).put(numbers, numbers)


def show(title: str, cache: CausalCache, *steps: tuple[str, Callable[[], object]], count: int = 12) -> None:
    print(f"{title}\n")
    print("    " + "\n    ".join(picture(cache.cells, count)))
    for name, step in steps:
        step()
        print(f"\n  {name}\n")
        print("    " + "\n    ".join(picture(cache.cells, count)))
    print()


def causal() -> CausalCache:
    """Two sequences that were generated together."""
    cache = CausalCache(SHAPES, sequences=3, context=12, capacity=12, shift=keep)
    for _ in range(4):
        store(cache, "AB")
    return cache


def main() -> None:
    cache = causal()
    show(
        "Sequences A and B, written in turn",
        cache,
        ("remove(B, 2): its end is free", lambda: cache.remove(1, 2)),
        ("three more of A: the lowest free cells, wherever they are", lambda: store(cache, "AAA")),
        ("remove(A, 1, 3): later positions move down, cells stay", lambda: cache.remove(0, 1, 3)),
        ("compact()", lambda: cache.compact()),
    )
    shared = causal()
    shared.remove(1, 0)
    show(
        "Sequence A alone",
        shared,
        ("copy_prefix(A, C, 3): three cells have two holders", lambda: shared.copy_prefix(0, 2, 3)),
        ("one more of each", lambda: store(shared, "AC")),
        ("remove(C, 0, 1): C gets copies of what it would have to rotate", lambda: shared.remove(2, 0, 1)),
    )
    sliding = SlidingCache(SHAPES, window=3, sequences=1, context=64, capacity=12)
    store(sliding, "AAAAAA")
    show(
        "A window of 3, six inputs in one pass",
        sliding,
        ("the next one: three are kept, two of which it sees", lambda: store(sliding, "A")),
        ("and the next", lambda: store(sliding, "A")),
    )
    chunked = ChunkedCache(SHAPES, chunk=4, memory=1, sequences=1, context=64, capacity=12)
    store(chunked, "AAAAAAA")
    show(
        "Chunks of 4 with a memory of 1, seven inputs in one pass",
        chunked,
        ("the next one: the first chunk is of no use any more", lambda: store(chunked, "A")),
    )


if __name__ == "__main__":
    main()

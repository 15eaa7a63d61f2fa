"""Prints the pictures of docs/kvcache.md from the states of real caches: python docs/kvcache_pictures.py

Each picture is a cache before or after an operation: a cell shows the sequence that holds it (A, B, ...; `*`
when several do) and, below, the position it has in the first of them. `.` is a free cell.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from puna.batch import Batch
from puna.kvcache.cache import Cache
from puna.kvcache.causal import CausalCache, KVShape
from puna.kvcache.contents import picture
from puna.kvcache.recurrent import RecurrentCache
from puna.kvcache.windows import SlidingCache
from puna.ops import Array, default_backend

ONE = KVShape(1, 1, 1)
OPS = default_backend()
Step = tuple[str, Callable[[], object]]


def keep(layer: int, keys: Array, offset: int) -> None:
    """Rotate nothing: only where cells lie is shown."""


def batch(cache: Cache, sequences: str) -> Batch:
    """Return a batch of the next input of each of `sequences`."""
    owners = [ord(name) - ord("A") for name in sequences]
    lengths = {owner: cache.length(owner) for owner in owners}
    positions = []
    for owner in owners:
        positions.append(lengths[owner])
        lengths[owner] += 1
    return Batch.of([0] * len(owners), positions, owners, [])


def store(cache: Cache, sequences: str) -> None:
    """Begin a forward pass, which places its inputs."""
    cache.start_forward(batch(cache, sequences))


def draw(cache: Cache, count: int) -> None:
    for contents in cache.contents():
        print("\n".join(f"    {line}".rstrip() for line in picture(contents, count, 80)))


def show(title: str, cache: Cache, *steps: Step, count: int = 12) -> None:
    print(f"{title}\n")
    draw(cache, count)
    for name, step in steps:
        step()
        print(f"\n  {name}\n")
        draw(cache, count)
    print()


def show_sight(title: str, cache: CausalCache, sequences: str, spans: Sequence[tuple[int, int]] = ()) -> None:
    """Print the positions that each row of a batch sees, by the lists that attention is given."""
    rows = batch(cache, sequences)
    rows.spans = list(spans)
    cache.start_forward(rows)
    cache.layer(0).put(*np.zeros((2, len(rows), 1, 1), np.float32))
    view = cache.layer(0).view()
    held = cache.contents()[0].sequences[0]
    positions = dict(zip(held.cells, held.positions, strict=True))
    print(f"{title}\n")
    for start, count in zip(view.starts.tolist(), view.counts.tolist(), strict=True):
        seen = {positions[cell] for cell in view.cells[start : start + count].tolist()}
        print("   " + "".join(f"{p:>3}" if p in seen else "  ." for p in range(len(rows))))
    print()


def causal() -> CausalCache:
    """Return a cache of two sequences that were generated together."""
    cache = CausalCache(OPS, [ONE], sequences=3, context=12, capacity=12, shift=keep)
    for _ in range(4):
        store(cache, "AB")
    return cache


def show_placement() -> None:
    cache = causal()
    show(
        "Sequences A and B, written in turn",
        cache,
        ("start_forward with three inputs of A", lambda: store(cache, "AAA")),
        ("undo_forward, since the pass failed", cache.undo_forward),
        ("remove(B, 2): its end is free", lambda: cache.remove(1, 2)),
        ("three more of A: the lowest free cells, wherever they are", lambda: store(cache, "AAA")),
        ("remove(A, 1, 3): later positions move down, cells stay", lambda: cache.remove(0, 1, 3)),
        ("compact()", lambda: cache.compact()),
    )


def show_sharing() -> None:
    cache = causal()
    cache.remove(1, 0)
    show(
        "Sequence A alone",
        cache,
        ("copy_prefix(A, C, 3): three cells have two holders", lambda: cache.copy_prefix(0, 2, 3)),
        ("one more of each", lambda: store(cache, "AC")),
        ("remove(C, 0, 1): C gets copies of what it would have to rotate", lambda: cache.remove(2, 0, 1)),
        ("remove(A, 3)", lambda: cache.remove(0, 3)),
    )


def show_windows() -> None:
    cache = SlidingCache(OPS, [ONE], window=3, sequences=1, context=64, capacity=12)
    store(cache, "AAAAAA")
    show(
        "A window of 3, six inputs in one pass",
        cache,
        ("the next one: three are kept, two of which it sees", lambda: store(cache, "A")),
        ("and the next", lambda: store(cache, "A")),
    )


def show_sights() -> None:
    how = {"sequences": 1, "context": 12}
    show_sight("What six rows see of each other", CausalCache(OPS, [ONE], **how), "AAAAAA")
    span = "Rows 1 to 3 are an image: it is seen whole by its own rows"
    show_sight(span, CausalCache(OPS, [ONE], **how), "AAAAAA", [(1, 4)])


def show_recurrent() -> None:
    cache = RecurrentCache(OPS, {0: {"state": (1,)}}, sequences=2, checkpoints=2)
    store(cache, "A" * 20)
    show(
        "A state after a prompt of 20",
        cache,
        (
            "one input: one state is read, another written; the prompt's end is kept",
            lambda: store(cache, "A"),
        ),
        ("one more: the state before it stays for undo_forward", lambda: store(cache, "A")),
        ("and one more: that state is not needed any more", lambda: store(cache, "A")),
        ("copy_prefix(A, B, 20): the states up to there are shared", lambda: cache.copy_prefix(0, 1, 20)),
        ("one input of B", lambda: store(cache, "B")),
        ("remove(A, 19): A is taken back to before the prompt's last input", lambda: cache.remove(0, 19)),
        count=10,
    )


def show_growth() -> None:
    cache = CausalCache(OPS, [KVShape(8, 128, 128)], sequences=4, context=131072)

    def say() -> None:
        print(f"    {cache.length(0):>6} cells {cache.provided_bytes >> 20:>5} MiB")

    print(f"Memory of a cache that could take {cache.allocated_bytes >> 20} MiB, as A grows\n")
    for count in (1, 999, 1000, 6000, 40000):
        store(cache, "A" * count)
        say()
    cache.remove(0, 10000)
    cache.compact()
    print("\n  remove(A, 10000), compact()\n")
    say()
    print()


def main() -> None:
    show_placement()
    show_sharing()
    show_windows()
    show_sights()
    show_recurrent()
    show_growth()


if __name__ == "__main__":
    main()

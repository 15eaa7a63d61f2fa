"""Prints the pictures of docs/kvcache.md from the states of real caches: python docs/kvcache_pictures.py

Each picture is a cache before or after an operation: a cell shows the sequence that holds it (A, B, ...; `*`
when several do) and, below, the position it has in the first of them. `.` is a free cell.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from puna.batch import Batch
from puna.errors import CacheFullError
from puna.kvcache.cache import Cache
from puna.kvcache.causal import CausalCache, KVShape
from puna.kvcache.contents import picture
from puna.kvcache.encoder import EncoderCache
from puna.kvcache.recurrent import RecurrentCache
from puna.kvcache.windows import ChunkedCache, SlidingCache
from puna.kvcache.wrapper import WrapperCache
from puna.ops import Array, default_backend

ONE = KVShape(1, 1, 1)
OPS = default_backend()
Step = tuple[str, Callable[[], object]]


def keep(layer: int, keys: Array, offset: int) -> None:
    """No rotation: only where cells lie is shown."""


def batch(cache: Cache, sequences: str, images: Sequence[tuple[int, int]] = ()) -> Batch:
    """The next input of each of `sequences`, rows of one being adjacent; `images` are (row, entries)."""
    owners = [ord(name) - ord("A") for name in sequences]
    lengths = {owner: cache.length(owner) for owner in owners}
    positions = []
    for owner in owners:
        positions.append(lengths[owner])
        lengths[owner] += 1
    made = Batch.of([0] * len(owners), positions, owners, [])
    made.payloads = list(images)
    return made


def store(cache: Cache, sequences: str, images: Sequence[tuple[int, int]] = ()) -> None:
    """A forward pass, as far as bookkeeping goes."""
    cache.start_forward(batch(cache, sequences, images))


def draw(cache: Cache, count: int) -> None:
    for contents in cache.contents():
        if isinstance(cache, WrapperCache):
            print(f"    {contents.kind}:")
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
    """Which positions each row of a batch sees, by the lists that attention is given."""
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
    """Two sequences that were generated together."""
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
        ("save(A), and what was saved restored as B", lambda: cache.plan_restore(1, cache.save(0))()),
    )


def show_windows() -> None:
    how = {"sequences": 1, "context": 64, "capacity": 12}
    cache = SlidingCache(OPS, [ONE], window=3, **how)
    store(cache, "AAAAAA")
    show(
        "A window of 3, six inputs in one pass",
        cache,
        ("the next one: three are kept, two of which it sees", lambda: store(cache, "A")),
        ("and the next", lambda: store(cache, "A")),
    )
    longer = SlidingCache(OPS, [ONE], window=3, keep=5, **how)
    store(longer, "AAAAAAAA")
    show(
        "The same window with a memory of 5, eight inputs in one pass",
        longer,
        ("the next one: five are kept, two of which it sees", lambda: store(longer, "A")),
        ("remove(A, 6), which resume_point(A, 6) says can be done", lambda: longer.remove(0, 6)),
        ("another input goes on there", lambda: store(longer, "A")),
    )
    chunked = ChunkedCache(OPS, [ONE], chunk=4, keep=1, **how)
    store(chunked, "AAAAAAA")
    show(
        "Chunks of 4 with a memory of 1, seven inputs in one pass",
        chunked,
        ("the next one: the first chunk is of no use any more", lambda: store(chunked, "A")),
    )


def show_sights() -> None:
    how = {"sequences": 1, "context": 12}
    show_sight("What six rows see of each other", CausalCache(OPS, [ONE], **how), "AAAAAA")
    span = "Rows 1 to 3 are an image: it is seen whole by its own rows"
    show_sight(span, CausalCache(OPS, [ONE], **how), "AAAAAA", [(1, 4)])
    show_sight("A window of 3", SlidingCache(OPS, [ONE], window=3, **how), "AAAAAA")
    both = "A window of 3 and the image: what either shows is seen"
    show_sight(both, SlidingCache(OPS, [ONE], window=3, **how), "AAAAAA", [(1, 4)])
    show_sight("Chunks of 4", ChunkedCache(OPS, [ONE], chunk=4, **how), "AAAAAA")


def show_encoder() -> None:
    cache = EncoderCache(OPS, {0: ONE}, sequences=2, longest=6, entries=int)
    store(cache, "AAAAAB", [(1, 2), (4, 3), (5, 2)])
    show(
        "Images of two, three and two entries at positions 1 and 4 of A and 0 of B",
        cache,
        (
            "remove(A, 0, 1): images move with their position, nothing is rotated",
            lambda: cache.remove(0, 0, 1),
        ),
        ("remove(A, 3): an image goes with its position", lambda: cache.remove(0, 3)),
        ("remove(B, 1): B's image, at position 0, stays", lambda: cache.remove(1, 1)),
    )


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


def show_wrapper() -> None:
    how = {"sequences": 2, "context": 12}
    cache = WrapperCache(
        SlidingCache(OPS, {0: ONE}, window=2, **how), CausalCache(OPS, {1: ONE}, capacity=6, **how)
    )
    store(cache, "AAA")

    def fail() -> None:
        try:
            store(cache, "AABB")
        except CacheFullError:
            return
        raise AssertionError("there should have been no room")

    show(
        "A wrapper of a window of 2 and a causal cache of 6 cells",
        cache,
        ("two inputs of A", lambda: store(cache, "AA")),
        ("four inputs, for which the causal one has no room: both are as before", fail),
        ("remove(A, 4): done by both", lambda: cache.remove(0, 4)),
        count=6,
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
    show_encoder()
    show_recurrent()
    show_wrapper()
    show_growth()


if __name__ == "__main__":
    main()

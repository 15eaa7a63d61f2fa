"""Measure the bookkeeping of a cache, by number of sequences and cells.

    python bench/cache.py [--cells 4096 65536 1000000] [--sequences 1 8 64] [--repetitions 200]

Prints the median microseconds of `start_forward` for a decode step (one row per sequence) and for 512 rows of
a prompt, of removing the middle of a sequence (only from its list, without shifting keys), and of copying a
prefix. The cache is half full; "scattered" means that free cells are interleaved with used ones, as after
long mixed use.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from statistics import median

import numpy as np

from puna.batch import Batch
from puna.kvcache.causal import CausalCache, KVShape
from puna.ops import default_backend

PROMPT = 512


def filled(cells: int, sequences: int, scattered: bool) -> CausalCache:
    """Return a cache of `cells` cells with half-full sequences."""
    context = cells // sequences
    cache = CausalCache(default_backend(), [KVShape(1, 1, 1)], sequences=sequences, context=context)
    books, half = cache.cells, context // 2
    placed = books.allocate(cells // sequences * sequences)
    if scattered:
        np.random.default_rng(0).shuffle(placed)
    used, unused = np.split(placed, [half * sequences])
    owners = np.repeat(np.arange(sequences, dtype=np.int32), half)
    books.append(owners, np.tile(np.arange(half, dtype=np.int32), sequences), used)
    books.release(unused)
    return cache


def rows(cache: CausalCache, sequences: list[int], count: int) -> Batch:
    """Return a batch of the next `count` inputs of each sequence."""
    positions = [cache.length(sequence) + i for sequence in sequences for i in range(count)]
    owners = [sequence for sequence in sequences for _ in range(count)]
    return Batch.of([0] * len(owners), positions, owners, [])


def timed(repetitions: int, act: Callable[[], object], undo: Callable[[], object]) -> float:
    """Return the median time of `act` in microseconds."""
    times = []
    for _ in range(repetitions):
        begin = time.perf_counter()
        act()
        times.append(time.perf_counter() - begin)
        undo()
    return median(times) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--cells", type=int, nargs="+", default=[4096, 65536, 1_000_000])
    parser.add_argument("--sequences", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--repetitions", type=int, default=200)
    arguments = parser.parse_args()
    print(
        f"{'cells':>9} {'sequences':>9} {'free cells':>10} {'decode':>8} {'prompt':>8} {'cut':>8} {'copy':>8}"
    )
    for cells in arguments.cells:
        for sequences in arguments.sequences:
            for scattered in (False, True):
                cache = filled(cells, sequences, scattered)
                books, length = cache.cells, cache.length(0)
                step = rows(cache, list(range(sequences)), 1)
                prompt = rows(cache, [0], min(PROMPT, books.longest - length))
                times = [
                    timed(
                        arguments.repetitions,
                        lambda cache=cache, batch=batch: cache.start_forward(batch),
                        cache.undo_forward,
                    )
                    for batch in (step, prompt)
                ]
                count = min(length // 2, PROMPT)

                def restore(cache: CausalCache = cache, count: int = count) -> None:
                    last = np.arange(cache.length(0), cache.length(0) + count, dtype=np.int32)
                    cache.cells.append(np.zeros(count, np.int32), last, cache.cells.allocate(count))

                times.append(
                    timed(
                        arguments.repetitions,
                        lambda books=books, count=count: books.cut(0, 0, count),
                        restore,
                    )
                )
                if sequences > 1:
                    books.truncate(1, 0)
                    times.append(
                        timed(
                            arguments.repetitions,
                            lambda cache=cache, count=count: cache.copy_prefix(0, 1, count),
                            lambda books=books: books.truncate(1, 0),
                        )
                    )
                shown = " ".join(f"{value:8.1f}" for value in times)
                print(f"{cells:9} {sequences:9} {'scattered' if scattered else 'together':>10} {shown}")


if __name__ == "__main__":
    main()

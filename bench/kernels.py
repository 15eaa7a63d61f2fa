"""Measure the matrix kernels: multiply-adds and weight bytes per second, by type and number of tokens.

    python bench/kernels.py                       every type, 1, 8 and 512 tokens, [2048, 2048]
    python bench/kernels.py --types Q4_K Q8_0 --tokens 1 4 --rows 8192 --columns 2048 --threads 1

The weights cycle through a working set larger than the caches, as in a decode step. The bound for one token
is the read bandwidth of the same threads, measured in the same run.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from models import POINTS, random_blocks

from puna import _native
from puna.gguf import GGMLType, quantize
from puna.ops import Weight, default_backend

WORKING_SET = 512 << 20  # total bytes of the weights; servers have large last-level caches
TYPES = (
    "F32",
    "F16",
    "BF16",
    "Q8_0",
    "Q4_0",
    "Q5_0",
    "Q4_K",
    "Q5_K",
    "Q6_K",
    "Q2_K",
    "Q3_K",
    "IQ4_NL",
    "MXFP4",
    "IQ1_S",
    "IQ2_XXS",
    "IQ2_XS",
    "IQ2_S",
    "IQ3_XXS",
    "IQ3_S",
)


def seconds(run: Callable[[int], object], min_total_s: float = 0.3) -> float:
    """Return the median seconds of a call, over at least five repetitions and `min_total_s` in total."""
    run(0)
    times: list[float] = []
    while sum(times) < min_total_s or len(times) < 5:
        start = time.perf_counter()
        run(len(times))
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def read_bandwidth() -> float:
    """Return the bytes per second read by sums over a large array, with the kernels' number of threads."""
    threads = default_backend().threads()
    parts = np.array_split(np.ones(WORKING_SET // 8, np.int64), threads)
    with ThreadPoolExecutor(threads) as pool:
        return WORKING_SET / seconds(lambda _: list(pool.map(np.sum, parts)))


def random_matrices(kind: GGMLType, rows: int, columns: int, count: int) -> list[Weight]:
    """Return `count` separate matrices with the same random values."""
    rng = np.random.default_rng(0)
    some = min(rows, 64)
    if kind in POINTS:  # has no quantiser here
        stored = random_blocks(rng, kind, some * columns, 1.0)
    else:
        stored = quantize(rng.standard_normal((some, columns), dtype=np.float32), kind)
    data = np.tile(stored.reshape(-1), -(-rows // some))[: kind.nbytes(rows * columns)]
    weights = [Weight(f"{kind.name} {i}", data, kind, (rows, columns)) for i in range(count)]
    for weight in weights:
        default_backend().pack(weight)
    return weights


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--types", nargs="+", default=TYPES, choices=[t.name for t in GGMLType])
    parser.add_argument("--tokens", nargs="+", type=int, default=(1, 8, 512))
    parser.add_argument("--rows", type=int, default=2048)
    parser.add_argument("--columns", type=int, default=2048)
    parser.add_argument("--threads", type=int, default=0, help="default: physical cores")
    parser.add_argument("--cpu", help=f"kernels to use: {', '.join(_native.cpu_levels())}")
    arguments = parser.parse_args()
    ops = default_backend()
    ops.set_threads(arguments.threads)
    if arguments.cpu:
        _native.set_cpu_level(arguments.cpu)
    print(
        f"{_native.cpu_level()}, {ops.threads()} threads, [{arguments.rows}, {arguments.columns}]; "
        f"read bandwidth {read_bandwidth() / 1e9:.1f} GB/s"
    )
    print(
        f"{'type':8}{'tokens':>7}{'us':>10}{'GMAC/s':>9}{'GB/s':>7}   (bytes as in the file)  memory / file"
    )
    for name in arguments.types:
        kind = GGMLType[name]
        count = max(1, WORKING_SET // kind.nbytes(arguments.rows * arguments.columns))
        weights = random_matrices(kind, arguments.rows, arguments.columns, min(count, 256))
        for tokens in arguments.tokens:
            x = np.random.default_rng(1).standard_normal((tokens, arguments.columns), np.float32)
            took = seconds(lambda i, x=x, weights=weights: ops.linear(x, weights[i % len(weights)]))
            products = arguments.rows * arguments.columns * tokens
            print(
                f"{name:8}{tokens:7}{took * 1e6:10.1f}{products / took / 1e9:9.1f}"
                f"{weights[0].nbytes / took / 1e9:7.1f}{'':24}"
                f"{weights[0].packed.nbytes / weights[0].nbytes:9.3f}"
            )


if __name__ == "__main__":
    main()

"""Measure how near matrix kernels are to what bounds them: multiplications for prompts, memory for one token.

With eight tokens, one of each stream, the bound is whatever takes longer: reading, or multiplying as with
weights from the cache.

    make bench-kernels                               # writes docs/kernels.json and its table
    python bench/kernel_bounds.py --types Q4_K       # some types; only prints

The bound of prompts is that of AVX-512 VNNI. A product of 4 columns with 16 rows is one instruction, but the
scales, minima and sums of a block are multiplied by the same units of the processor, so that only a share of
the multiplications can be the product's. `roofline.multiplications` counts those of one token and 16 rows.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import roofline
from kernel_bounds_report import REPORT, Row, Run, line
from kernels import WORKING_SET, random_matrices, seconds
from pages import DOCS
from report import processor

from puna.gguf import GGMLType
from puna.ops import default_backend

TYPES = (
    "Q4_K", "Q5_K", "Q6_K", "Q2_K", "Q3_K", "IQ4_XS", "Q8_0", "Q4_0", "Q5_0", "IQ4_NL", "MXFP4", "F16", "BF16"
)  # fmt: skip
COLUMNS, TOKENS, STREAMS = 2048, 256, 8
SOME_ROWS, CACHED = 16, 640 << 10  # bytes of weights that leave room in a second-level cache


def cached_rate(kind: GGMLType, tokens: int) -> float:
    """Return the multiply-adds per second of one thread, without preparing the activations."""
    ops = default_backend()
    threads = ops.threads()
    ops.set_threads(1)
    x = np.random.default_rng(1).standard_normal((tokens, COLUMNS), np.float32)
    more_rows = SOME_ROWS + min(512, CACHED // kind.nbytes(COLUMNS) // 64 * 64)
    few, many = (random_matrices(kind, rows, COLUMNS, 1)[0] for rows in (SOME_ROWS, more_rows))
    times = [
        seconds(lambda _: ops.linear(x, many), 0.1) - seconds(lambda _: ops.linear(x, few), 0.1)
        for _ in range(9)
    ]
    ops.set_threads(threads)
    return (more_rows - SOME_ROWS) * COLUMNS * tokens / float(np.median(times))


def decode_shares(kind: GGMLType, cached: float, reads: list[float]) -> tuple[float, float]:
    """Return the shares of their bounds that products of 1 token and of STREAMS reach from memory.

    The bandwidth is measured before and after each; `cached` is the multiply-adds per second of one thread
    with the streams' tokens and weights in the cache.
    """
    ops = default_backend()
    rows = 8192
    weights = random_matrices(kind, rows, COLUMNS, WORKING_SET // 2 // kind.nbytes(rows * COLUMNS))
    multiplying = rows * COLUMNS * STREAMS / (cached * ops.threads())
    shares: dict[int, list[float]] = {1: [], STREAMS: []}
    for tokens in [1, STREAMS] * 4:
        x = np.random.default_rng(1).standard_normal((tokens, COLUMNS), np.float32)
        before = roofline.read_bandwidth(ops.threads())
        took = seconds(lambda i, x=x: ops.linear(x, weights[i % len(weights)]))
        reads += [before, after := roofline.read_bandwidth(ops.threads())]
        reading = weights[0].packed.nbytes / max(before, after)
        shares[tokens].append((reading if tokens == 1 else max(reading, multiplying)) / took)
    return float(np.median(shares[1])), float(np.median(shares[STREAMS]))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--types", nargs="+", default=TYPES, choices=TYPES)
    parser.add_argument("--output", type=Path, help=f"folder for the results (make: {DOCS.name})")
    chosen = parser.parse_args()
    peak, rows, threads = roofline.measure(1).byte_peak, list[Row](), default_backend().threads()
    reads, copies = list[float](), list[float]()
    for name in chosen.types:
        products, every = roofline.multiplications(name)
        kind = GGMLType[name]
        cached = cached_rate(kind, STREAMS)
        one, streams = decode_shares(kind, cached, reads)
        copies.append(roofline.copy_bandwidth(threads))
        rows.append(
            Row(name, products / every, cached_rate(kind, TOKENS) / peak, one, cached / peak, streams)
        )
        print(line(rows[-1]), flush=True)
    if chosen.output:
        medians = float(np.median(reads)), float(np.median(copies))
        REPORT.write(Run(processor(), threads, peak, *medians, rows), chosen.output)


if __name__ == "__main__":
    main()

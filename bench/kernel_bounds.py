"""Measure how near matrix kernels are to what bounds them: multiplications for prompts, memory for one token.

    make bench-kernels                               # writes docs/kernels.json and its table
    python bench/kernel_bounds.py --types Q4_K       # some types; only prints

The bound is that of AVX-512 VNNI. A product of 4 columns with 16 rows is one instruction, but the scales,
minima and sums of a block are multiplied by the same units of the processor, so that only a share of the
multiplications can be the product's. `roofline.multiplications`
counts those of one token and 16 rows.
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

TYPES = ("Q4_K", "Q5_K", "Q6_K", "Q2_K", "Q3_K", "IQ4_XS", "Q8_0", "Q4_0", "Q5_0", "IQ4_NL", "MXFP4")
COLUMNS, TOKENS, SOME_ROWS, MORE_ROWS = 2048, 256, 16, 528


def prompt_rate(kind: GGMLType) -> float:
    """Return the multiply-adds per second of one thread, without preparing the activations."""
    ops = default_backend()
    threads = ops.threads()
    ops.set_threads(1)
    x = np.random.default_rng(1).standard_normal((TOKENS, COLUMNS), np.float32)
    few, many = (random_matrices(kind, rows, COLUMNS, 1)[0] for rows in (SOME_ROWS, MORE_ROWS))
    times = [
        seconds(lambda _: ops.linear(x, many), 0.1) - seconds(lambda _: ops.linear(x, few), 0.1)
        for _ in range(9)
    ]
    ops.set_threads(threads)
    return (MORE_ROWS - SOME_ROWS) * COLUMNS * TOKENS / float(np.median(times))


def decode_share(kind: GGMLType, reads: list[float]) -> float:
    """Return how fast one token's product reads, as a share of the bandwidth measured before and after."""
    ops = default_backend()
    rows = 8192
    weights = random_matrices(kind, rows, COLUMNS, WORKING_SET // 2 // kind.nbytes(rows * COLUMNS))
    x = np.random.default_rng(1).standard_normal((1, COLUMNS), np.float32)
    shares = []
    for _ in range(5):
        before = roofline.read_bandwidth(ops.threads())
        took = seconds(lambda i: ops.linear(x, weights[i % len(weights)]))
        reads += [before, after := roofline.read_bandwidth(ops.threads())]
        shares.append(weights[0].packed.nbytes / took / max(before, after))
    return float(np.median(shares))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--types", nargs="+", default=TYPES, choices=TYPES)
    parser.add_argument("--output", type=Path, help=f"folder for the results (make: {DOCS.name})")
    chosen = parser.parse_args()
    peak, reads, rows = roofline.measure(1).byte_peak, list[float](), list[Row]()
    for name in chosen.types:
        products, every = roofline.multiplications(name)
        kind = GGMLType[name]
        rows.append(Row(name, products / every, prompt_rate(kind) / peak, decode_share(kind, reads)))
        print(line(rows[-1]), flush=True)
    if chosen.output:
        threads = default_backend().threads()
        REPORT.write(Run(processor(), threads, peak, float(np.median(reads)), rows), chosen.output)


if __name__ == "__main__":
    main()

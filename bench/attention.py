"""Measure attention: one row of a long sequence, or the rows of a prompt, by type of keys and values.

    python bench/attention.py                     every type, 32 heads over 8, heads of 64
    python bench/attention.py --types f16 q8_0,q4_0 --cells 16384 --dim 128 --threads 1

Decoding cycles through several caches, as through the layers of a model; its bound is the read bandwidth of
the same threads, measured in the same run. A prompt is bound by arithmetic.
"""

from __future__ import annotations

import argparse

import numpy as np
from kernels import read_bandwidth, seconds

from puna import _native
from puna.gguf import GGMLType
from puna.kvcache.types import KVTypes
from puna.ops import Backend, Storage, default_backend

WORKING_SET = 512 << 20  # total bytes of the caches
TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q8_0,q4_0")


def caches(
    ops: Backend, types: KVTypes, cells: int, kv_heads: int, dim: int
) -> list[tuple[Storage, Storage]]:
    """Return keys and values of as many layers as fill the working set, at most 16."""
    rows = np.random.default_rng(0).standard_normal((cells, kv_heads, dim), np.float32)

    def stored(kind: GGMLType) -> Storage:
        storage = ops.storage(kind, cells, (kv_heads, dim))
        storage.put(np.arange(cells), ops.array(rows))
        return storage

    first = stored(types.keys), stored(types.values)
    count = min(16, max(1, WORKING_SET // size_of(first)))
    return [first, *((stored(types.keys), stored(types.values)) for _ in range(count - 1))]


def size_of(layer: tuple[Storage, Storage]) -> int:
    """Return the bytes of a layer's keys and values."""
    return sum(storage.shape[0] * storage.row_bytes for storage in layer)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--types", nargs="+", default=TYPES, help="as in PUNA_KV_CACHE_TYPE")
    parser.add_argument("--rows", nargs="+", type=int, default=(1, 512), help="1: decoding; more: a prompt")
    parser.add_argument("--cells", nargs="+", type=int, default=(512, 4096, 16384))
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--kv-heads", type=int, default=8)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--threads", type=int, default=0, help="default: physical cores")
    parser.add_argument("--cpu", help="kernels to use: portable, avx2, avx512")
    arguments = parser.parse_args()
    ops = default_backend()
    ops.set_threads(arguments.threads)
    if arguments.cpu:
        _native.set_cpu_level(arguments.cpu)
    heads, kv_heads, dim = arguments.heads, arguments.kv_heads, arguments.dim
    print(
        f"{_native.cpu_level()}, {ops.threads()} threads, {heads} heads over {kv_heads} of {dim}; "
        f"read bandwidth {read_bandwidth() / 1e9:.1f} GB/s"
    )
    print(f"{'type':11}{'rows':>5}{'cells':>7}{'us':>10}{'GFLOP/s':>9}{'GB/s':>7}")
    for name in arguments.types:
        types = KVTypes.parse(name)
        for cells in arguments.cells:
            stored = caches(ops, types, cells, kv_heads, dim)
            listed = np.arange(cells, dtype=np.int32)
            for rows in (rows for rows in arguments.rows if rows <= cells):
                q = np.random.default_rng(1).standard_normal((rows, heads, dim), np.float32)
                starts = np.zeros(rows, np.int32)
                counts = np.arange(cells - rows + 1, cells + 1, dtype=np.int32)

                def run(i: int, q=q, starts=starts, counts=counts, listed=listed, stored=stored) -> None:
                    ops.attention(q, *stored[i % len(stored)], listed, starts, counts, dim**-0.5)

                took = seconds(run)
                products = 2 * heads * dim * int(counts.sum())  # scores, and weighted values
                size = size_of(stored[0])
                print(
                    f"{name:11}{rows:5}{cells:7}{took * 1e6:10.0f}{2 * products / took / 1e9:9.1f}"
                    f"{size / took / 1e9:7.1f}"
                )


if __name__ == "__main__":
    main()

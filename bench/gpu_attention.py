"""Measure attention on a GPU: errors against float64, then microseconds beside torch's own attention.

    PYTHONPATH=src python bench/gpu_attention.py              everything, under a minute
    PYTHONPATH=src python bench/gpu_attention.py --only decode

Heads are those of an 8B model: 32 over 8 of 128. Decoding cycles through several caches, as through the
layers of a model; bytes are the keys and values that rows see, each counted once. torch's attention reads
contiguous keys of the same batch, without an index.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

import torch
import torch.nn.functional as F
import triton
from torch import Tensor

from puna.gguf import GGMLType
from puna.ops.gpu.kernels.attention import Configuration, Shape, attention, choose, family_of
from puna.ops.gpu.kernels.cells import Planes
from puna.ops.gpu.kernels.store import load_rows, store_rows

HEADS, KV_HEADS, DIM = 32, 8, 128
WORKING_SET = 512 << 20  # bytes of caches that decoding cycles through: several times the L2 cache
KINDS = (GGMLType.F16, GGMLType.Q8_0, GGMLType.Q4_0, GGMLType.BF16)
DTYPES = {
    GGMLType.F32: torch.float32, GGMLType.F16: torch.float16, GGMLType.BF16: torch.bfloat16,
    GGMLType.Q8_0: torch.int8, GGMLType.Q4_0: torch.uint8,
}  # fmt: skip


def planes(kind: GGMLType, cells: int) -> Planes:
    """Return a cache of random numbers."""
    width = DIM // 2 if kind is GGMLType.Q4_0 else DIM
    codes = torch.zeros(cells, KV_HEADS, width, dtype=DTYPES[kind], device="cuda")
    scales = None
    if kind.is_quantized:
        scales = torch.zeros(cells, KV_HEADS, DIM // 32, dtype=torch.float16, device="cuda")
    made = codes, scales, kind
    rows = torch.randn(cells, KV_HEADS, DIM, device="cuda")
    store_rows(made, torch.arange(cells, dtype=torch.int32, device="cuda"), rows)
    return made


def bytes_of(kind: GGMLType) -> int:
    """Return the bytes of one cell's key or value."""
    return kind.nbytes(KV_HEADS * DIM)


def exact(
    q: Tensor, keys: Planes, values: Planes, cells: Tensor, starts: list[int], counts: list[int]
) -> Tensor:
    """Return the result in float64, row by row."""
    rows = []
    for row, start, count in zip(q.double(), starts, counts, strict=True):
        seen = cells[start : start + count]
        key = load_rows(keys, seen).double().repeat_interleave(HEADS // KV_HEADS, 1)
        value = load_rows(values, seen).double().repeat_interleave(HEADS // KV_HEADS, 1)
        shares = torch.softmax(torch.einsum("hd,nhd->hn", row, key) * DIM**-0.5, -1)
        rows.append(torch.einsum("hn,nhd->hd", shares, value))
    return torch.stack(rows)


def check() -> None:
    """Print errors, and whether a row's bits depend on the batch, in every regime."""
    print("largest error / largest result; same bits: alone, and whatever the order of rows")
    random = torch.Generator().manual_seed(1)
    batches = {
        "decode": [(0, 1), (0, 2000), (100, 777), (4096, 3000), (0, 0), (7000, 64)],
        "streams": [(1000 * i, 37 * i + 5) for i in range(40)],
        "prompt": [(0, 900 + i) for i in range(40)]
        + [(0, 0), (7168, 555), *[(7680, i + 1) for i in range(35)]],
        "long prompt": [(64, 1500 + i) for i in range(270)] + [(5120 + i, 100) for i in range(70)],
    }
    capacity = 44000
    for kind in (*KINDS, GGMLType.F32):
        keys, values = planes(kind, capacity), planes(kind, capacity)
        for order in ("random", "in order"):
            cells = (
                torch.randperm(capacity, generator=random) if order == "random" else torch.arange(capacity)
            )
            cells = cells.int().cuda()
            for name, rows in batches.items():
                starts, counts = [row[0] for row in rows], [row[1] for row in rows]
                given = [torch.tensor(each, dtype=torch.int32, device="cuda") for each in (starts, counts)]
                q = torch.randn(len(rows), HEADS, DIM, generator=random).cuda()
                got = attention(q, keys, values, cells, *given, DIM**-0.5)
                picked = sorted({*range(0, len(rows), 1 + len(rows) // 24), *range(len(rows) - 6, len(rows))})
                want = exact(q[picked], keys, values, cells, [starts[i] for i in picked],
                             [counts[i] for i in picked])  # fmt: skip
                error = float((got[picked] - want).abs().max() / want.abs().max())
                back = torch.arange(len(rows) - 1, -1, -1, device="cuda")
                again = attention(
                    q[back].contiguous(), keys, values, cells, *(each[back].contiguous() for each in given),
                    DIM**-0.5,
                )  # fmt: skip
                same = torch.equal(again[back], got)
                print(
                    f"  {kind.name:5} {order:9} {name:12} {error:.2e} {'same' if same else 'DIFFERENT BITS'}"
                )
                if not error < 3e-3:
                    print("  ^ WRONG")


def microseconds(run: Callable[[int], object], calls: int) -> float:
    """Return the time of one of `calls` calls with different arguments, replayed as a graph."""
    run(0)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for index in range(calls):
            run(index)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for index in range(calls):
            run(index)
    return 1e3 * float(triton.testing.do_bench(graph.replay, 5, 30, return_mode="median")) / calls


def report(name: str, took: float, moved: int, products: int) -> None:
    rate = 4 * products * DIM / took / 1e6
    print(f"  {name:48}{took:10.1f} us {moved / took / 1e3:7.0f} GB/s {rate:7.1f} TFLOP/s")


def layers(kind: GGMLType, capacity: int) -> list[tuple[Planes, Planes]]:
    count = max(1, min(12, WORKING_SET // (2 * bytes_of(kind) * capacity)))
    return [(planes(kind, capacity), planes(kind, capacity)) for _ in range(count)]


def alternatives(base: Configuration, decoding: bool) -> Iterator[Configuration]:
    """Yield other configurations to compare with the default."""
    if decoding:
        for block, warps, stages in (
            (64, 4, 3), (64, 4, 7), (64, 8, 5), (32, 4, 5), (32, 4, 7), (32, 2, 7), (128, 4, 3), (128, 8, 5),
        ):  # fmt: skip
            yield replace(base, block=block, warps=warps, stages=stages)
        yield replace(base, splits=32)
        yield replace(base, least=1)
        yield replace(base, least=4)
        yield replace(base, parts=1)
    else:
        for queries, block, warps, stages in (
            (128, 64, 8, 3), (128, 64, 4, 3), (128, 128, 8, 3), (128, 32, 8, 5), (128, 32, 8, 7),
            (64, 64, 4, 3), (64, 64, 4, 5), (64, 32, 4, 5),
        ):  # fmt: skip
            yield replace(base, queries=queries, block=block, warps=warps, stages=stages)


def label(chosen: Configuration) -> str:
    return (
        f"q{chosen.queries} b{chosen.block} s{chosen.splits}x{chosen.least} p{chosen.parts} "
        f"w{chosen.warps} st{chosen.stages}{'' if chosen.single is None else ' and single rows'}"
    )


def decode(trying: bool) -> None:
    for kind in KINDS:
        for rows, context in (
            (1, 128),
            (1, 2048),
            (1, 32768),
            (8, 2048),
            (8, 32768),
            (64, 80),
            (64, 2048),
            (256, 512),
        ):
            capacity = rows * context
            stored = layers(kind, capacity)
            cells = torch.randperm(capacity, device="cuda").int()
            starts = (torch.arange(rows, device="cuda") * context).int()
            counts = torch.full_like(starts, context)
            q = torch.randn(rows, HEADS, DIM, device="cuda")
            calls = max(4, len(stored))
            moved = 2 * bytes_of(kind) * capacity
            for chosen in configurations(kind, rows, trying):
                compare(
                    f"{kind.name} T={rows} n={context} {label(chosen)}", moved, HEADS * capacity, calls,
                    lambda i, c=chosen, s=stored, q=q, o=(cells, starts, counts): attention(
                        q, *s[i % len(s)], *o, DIM**-0.5, configuration=c
                    ),
                )  # fmt: skip
            if kind is GGMLType.F16:
                pairs = [
                    [each[0].view(rows, context, KV_HEADS, DIM).transpose(1, 2) for each in pair]
                    for pair in stored
                ]
                half = q.half()[:, :, None]
                compare(
                    f"torch T={rows} n={context}", moved, HEADS * capacity, calls,
                    lambda i, q=half, p=pairs: F.scaled_dot_product_attention(
                        q, *p[i % len(p)], enable_gqa=True
                    ),
                )  # fmt: skip


def prompts(trying: bool) -> None:
    for kind in KINDS:
        for rows, before in ((512, 0), (512, 4096), (4096, 0), (4096, 4096), (64, 32768)):
            context = before + rows
            stored = planes(kind, context), planes(kind, context)
            cells = torch.randperm(context, device="cuda").int()
            starts = torch.zeros(rows, dtype=torch.int32, device="cuda")
            counts = (torch.arange(rows, device="cuda") + before + 1).int()
            q = torch.randn(rows, HEADS, DIM, device="cuda")
            products = HEADS * int(counts.sum())
            for chosen in configurations(kind, rows, trying and before == 0):
                compare(
                    f"{kind.name} T={rows} after {before} {label(chosen)}", 2 * bytes_of(kind) * context,
                    products, 2,
                    lambda i, c=chosen, s=stored, q=q, o=(cells, starts, counts): attention(
                        q, *s, *o, DIM**-0.5, configuration=c
                    ),
                )  # fmt: skip
            if kind is GGMLType.F16 and before == 0:
                key, value = (each[0].transpose(0, 1)[None] for each in stored)
                half = q.half().transpose(0, 1)[None]
                compare(
                    f"torch T={rows} after {before}", 2 * bytes_of(kind) * context, products, 2,
                    lambda i, q=half, k=key, v=value: (
                        F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
                    ),
                )  # fmt: skip


def shape_of(kind: GGMLType) -> Shape:
    return Shape(HEADS, KV_HEADS, DIM, DIM, kind, kind)


def configurations(kind: GGMLType, rows: int, trying: bool) -> list[Configuration]:
    """Return the default, and what is compared with it."""
    base = choose(shape_of(kind), rows, family_of(torch.device("cuda")))
    others = trying and rows in (1, 4096) and kind in (GGMLType.F16, GGMLType.Q8_0)
    return [base, *(alternatives(base, rows == 1) if others else ())]


def compile_all(trying: bool) -> None:
    """Compile what will be measured, several kernels at a time."""
    jobs = [
        (kind, rows, chosen)
        for kind in (*KINDS, GGMLType.F32)
        for rows in (4096, 64, 1)
        for chosen in configurations(kind, rows, trying)
    ]
    stored = {kind: planes(kind, 64) for kind in (*KINDS, GGMLType.F32)}
    cells = torch.arange(64, dtype=torch.int32, device="cuda")

    def compile_one(job: tuple[GGMLType, int, Configuration]) -> None:
        kind, rows, chosen = job
        q, counts = torch.randn(rows, HEADS, DIM, device="cuda"), torch.full((rows,), 64, device="cuda").int()
        with suppress(triton.runtime.errors.OutOfResources):  # reported where it is measured
            attention(
                q, stored[kind], stored[kind], cells, torch.zeros_like(counts), counts, 1.0,
                configuration=chosen,
            )  # fmt: skip

    with ThreadPoolExecutor(12) as pool:
        list(pool.map(compile_one, jobs))
    torch.cuda.synchronize()


def compare(name: str, moved: int, products: int, calls: int, run: Callable[[int], object]) -> None:
    """Print the time of a call; a configuration that does not fit the device is no error."""
    try:
        report(name, microseconds(run, calls), moved, products)
    except triton.runtime.errors.OutOfResources as error:
        print(f"  {name:42} does not fit: {error}")


def singles(trying: bool) -> None:
    """Compare single rows in a launch of their own with those in tiles: bits, then time."""
    kinds = [GGMLType.F16, GGMLType.Q8_0, *((GGMLType.BF16, GGMLType.F32) if trying else ())]
    capacity = 64 * 640
    cells, q = torch.randperm(capacity, device="cuda").int(), torch.randn(64, HEADS, DIM, device="cuda")
    # A third of the rows share their cells with neighbours.
    starts = torch.arange(64, dtype=torch.int32, device="cuda") * 600
    counts = torch.arange(64, dtype=torch.int32, device="cuda") * 14 + 5
    with ThreadPoolExecutor(16) as pool:  # to compile them
        found: dict[GGMLType, list[Future[torch.Tensor]]] = {}
        for kind in kinds:
            given = (q, planes(kind, capacity), planes(kind, capacity), cells, starts, counts, DIM**-0.5)
            own = choose(shape_of(kind), 64, family_of(torch.device("cuda")))
            for softcap in (0.0, 30.0):
                for each in (own, replace(own, single=None)):
                    call = pool.submit(attention, *given, softcap, configuration=each)
                    found.setdefault(kind, []).append(call)
    for kind in kinds:
        plain, plain_tiles, capped, capped_tiles = (each.result() for each in found[kind])
        for name, apart, together in (("", plain, plain_tiles), (", capped", capped, capped_tiles)):
            bits = f"OTHER BITS, by {float((apart - together).abs().max()):.1e}"
            bits = "same bits" if torch.equal(apart, together) else bits
            print(f"{kind.name:5} single rows apart and in tiles{name}: {bits}")
    for kind in kinds:
        own = choose(shape_of(kind), 64, family_of(torch.device("cuda")))
        tiles = replace(own, single=None)
        for context in (80, 512, 2048):
            stored = layers(kind, 64 * context)
            cells = torch.randperm(64 * context, device="cuda").int()
            starts = torch.arange(64, dtype=torch.int32, device="cuda") * context
            counts, q = torch.full_like(starts, context), torch.randn(64, HEADS, DIM, device="cuda")
            moved = 2 * bytes_of(kind) * 64 * context
            others = (replace(own, least=2), replace(own, splits=8)) if trying else ()
            for chosen in (own, *others, tiles):
                compare(
                    f"{kind.name} T=64 n={context} {label(chosen)}", moved, HEADS * 64 * context,
                    max(4, len(stored)),
                    lambda i, c=chosen, s=stored, q=q, o=(cells, starts, counts): attention(
                        q, *s[i % len(s)], *o, DIM**-0.5, configuration=c
                    ),
                )  # fmt: skip


def stores() -> None:
    for kind in KINDS:
        for rows in (1, 8, 4096):
            made = planes(kind, max(rows, 64))
            cells = torch.arange(rows, dtype=torch.int32, device="cuda")
            numbers = torch.randn(rows, KV_HEADS, DIM, device="cuda")
            took = microseconds(lambda i, m=made, c=cells, n=numbers: store_rows(m, c, n), 8)
            moved = rows * (bytes_of(kind) + 4 * KV_HEADS * DIM)
            print(f"  {kind.name} {rows} rows stored: {took:.1f} us {moved / took / 1e3:.0f} GB/s")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=("check", "singles", "decode", "prompts", "stores"))
    parser.add_argument("--no-alternatives", action="store_true", help="measure the default only")
    arguments = parser.parse_args()
    print(torch.cuda.get_device_name())
    parts: dict[str, Callable[[], None]] = {
        "compile": lambda: compile_all(not arguments.no_alternatives),
        "check": check,
        "singles": lambda: singles(not arguments.no_alternatives),
        "decode": lambda: decode(not arguments.no_alternatives),
        "prompts": lambda: prompts(not arguments.no_alternatives),
        "stores": stores,
    }
    for name, part in parts.items():
        if arguments.only in (None, name) or (name == "compile" and arguments.only != "singles"):
            begun = time.perf_counter()
            part()
            print(f"{name}: {time.perf_counter() - begun:.1f} s", flush=True)


if __name__ == "__main__":
    main()

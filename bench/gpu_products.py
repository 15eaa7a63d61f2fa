"""Measure products with packed matrices on a GPU: correct first, then time, bandwidth and candidates.

    python bench/gpu_products.py [--only Q4_K,Q6_K] [--parts check,decode]

Weights are read from memory: launches go through enough copies of a matrix to exceed the L2 cache, recorded
as one CUDA graph. GB/s count the bytes of the packed matrix.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from math import nan
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from puna.gguf import GGMLType, dequantize
from puna.ops.gpu.kernels import experts as experts_module
from puna.ops.gpu.kernels import matmul
from puna.ops.gpu.kernels.tiles import FewTiles, ManyTiles, Tiles, tiles_for
from puna.ops.gpu.packed import FORMATS, PackedMatrix

#: Byte offsets of a block's float16 factors, which random bytes must not make infinite.
FACTORS = {
    "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "Q2_K": (80, 82),
    "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "IQ4_NL": (0,), "IQ4_XS": (0,),
    "MXFP4": (),
}  # fmt: skip
SHAPES = ((4096, 4096), (14336, 4096), (4096, 14336), (151936, 4096))
CACHE_BYTES = 256 << 20


def random_bytes(kind: GGMLType, rows: int, columns: int) -> torch.Tensor:
    """Return the bytes of a random matrix on the GPU."""
    if kind.block_size == 1:
        dtype = {GGMLType.F32: torch.float32, GGMLType.F16: torch.float16}.get(kind, torch.bfloat16)
        values = torch.randn(rows, columns, device="cuda", dtype=torch.float32).mul_(0.02)
        return values.to(dtype).view(torch.uint8).reshape(-1)
    blocks = torch.randint(
        0, 256, (rows * columns // kind.block_size, kind.type_size), dtype=torch.uint8, device="cuda"
    )
    for offset in FACTORS[kind.name]:
        factors = torch.rand(len(blocks), 1, device="cuda").add_(0.5).mul_(0.001).to(torch.float16)
        blocks[:, offset : offset + 2] = factors.view(torch.uint8)
    if kind is GGMLType.MXFP4:
        blocks[:, 0] = torch.randint(115, 125, (len(blocks),), device="cuda", dtype=torch.uint8)
    return blocks.reshape(-1)


def packed(kind: GGMLType, rows: int, columns: int) -> PackedMatrix:
    return PackedMatrix.pack(random_bytes(kind, rows, columns), kind, rows, columns)


def seconds(launches: list[Callable[[], object]]) -> float:
    """Return the time of a launch, of several that are recorded in turn as one graph and replayed."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for launch in launches[:2]:
            launch()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for launch in launches:
            launch()
    graph.replay()
    torch.cuda.synchronize()
    times = []
    for _ in range(3):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    return min(times) / len(launches)


def copies(weight: PackedMatrix) -> list[PackedMatrix]:
    """Return the matrix and as many copies as exceed the cache."""
    count = min(24, max(1, -(-CACHE_BYTES // weight.nbytes)))

    def copy() -> PackedMatrix:
        planes = {name: getattr(weight, name) for name in ("codes", "high", "scales", "supers", "factors")}
        cloned: dict[int, torch.Tensor] = {}
        for plane in planes.values():
            if plane.data_ptr() not in cloned:
                cloned[plane.data_ptr()] = plane.clone()
        return dataclasses.replace(
            weight, **{name: cloned[plane.data_ptr()] for name, plane in planes.items()}
        )

    return [weight, *(copy() for _ in range(count - 1))]


def check(kinds: list[GGMLType]) -> None:
    """Print relative errors against float64, and whether rows have the same bits in every batch."""
    print("relative errors against float64: T = 1, 16, 100, 600; same bits in other batches")
    for kind in kinds:
        rows, columns = 1111, 4096
        data = random_bytes(kind, rows, columns)
        weight = PackedMatrix.pack(data, kind, rows, columns)
        exact = torch.from_numpy(dequantize(data.cpu().numpy().reshape(rows, -1), kind)).double().cuda()
        x = torch.randn(600, columns, device="cuda") * torch.randn(columns, device="cuda").exp()
        bias = torch.randn(rows, device="cuda")
        results = {}
        errors = []
        for tokens in (1, 16, 100, 600):
            results[tokens] = matmul.linear(x[:tokens].contiguous(), weight, bias)
            expected = x[:tokens].double() @ exact.T + bias
            error = (results[tokens] - expected).square().mean().sqrt() / expected.square().mean().sqrt()
            errors.append(f"{error.item():.1e}")
        same = [
            torch.equal(results[1], results[16][:1]),
            torch.equal(matmul.linear(x[:7].contiguous(), weight, bias), results[16][:7]),
            torch.equal(matmul.linear(x[:17].contiguous(), weight, bias), results[100][:17]),
            torch.equal(matmul.linear(x[:256].contiguous(), weight, bias)[:100], results[100]),
            torch.equal(matmul.linear(x[:300].contiguous(), weight, bias), results[600][:300]),
        ]
        tokens = torch.tensor([3, 1110, 0], dtype=torch.int32, device="cuda")
        unpacked = matmul.unpack_rows(weight, tokens).double()
        rest = (unpacked - exact[tokens]).abs().max() / exact.abs().max()
        print(f"  {kind.name:7s} {' '.join(errors)}  same: {same}  embedding {rest.item():.1e}")
        assert max(map(float, errors)) < 2e-3, kind


def decode(kinds: list[GGMLType], main_kinds: list[GGMLType]) -> None:
    """Print microseconds and GB/s of few rows, without preparing x, and those of cuBLAS in float16."""
    print("few rows: microseconds (GB/s) at T = 1, 8, 16")
    for rows, columns in SHAPES:
        half = [torch.randn(rows, columns, device="cuda", dtype=torch.float16) for _ in range(3)]
        cells = []
        for tokens in (1, 8, 16):
            x = torch.randn(tokens, columns, device="cuda", dtype=torch.float16)
            taken = seconds([partial(torch.matmul, x, w.T) for w in half] * 4)
            cells.append(f"{taken * 1e6:8.1f} ({half[0].nbytes / taken / 1e9:5.0f})")
        print(f"  {'cuBLAS':7s} {rows:6d} x {columns:5d}: {' '.join(cells)}")
        del half
        for kind in kinds if (rows, columns) == SHAPES[1] else main_kinds[:3]:
            weights = copies(packed(kind, rows, columns))
            cells = []
            for tokens in (1, 8, 16):
                x = matmul.prepare(torch.randn(tokens, columns, device="cuda"), matmul.form_of(kind))
                taken = seconds([partial(matmul.multiply, x, w) for w in weights])
                cells.append(f"{taken * 1e6:8.1f} ({weights[0].nbytes / taken / 1e9:5.0f})")
            print(f"  {kind.name:7s} {rows:6d} x {columns:5d}: {' '.join(cells)}", flush=True)
            del weights
    x = torch.randn(1, 4096, device="cuda")
    taken = seconds([lambda: matmul.prepare(x, torch.float16)] * 20)
    wide = torch.randn(1, 14336, device="cuda")
    more = seconds([lambda: matmul.prepare(wide, torch.float16)] * 20)
    print(f"  preparing one row of 4096: {taken * 1e6:.1f}, of 14336: {more * 1e6:.1f} microseconds")


def prompts(kinds: list[GGMLType]) -> None:
    """Print TFLOP/s of many rows, including the preparation, and those of cuBLAS in float16."""
    rows, columns = 14336, 4096
    print(f"prompts, {rows} x {columns}: microseconds (TFLOP/s) at T = 64, 256, 512, 4096")
    half = torch.randn(rows, columns, device="cuda", dtype=torch.float16)
    batches = (64, 256, 512, 4096)

    def row(name: str, launch: Callable[[torch.Tensor], object], dtype: torch.dtype) -> None:
        cells = []
        for tokens in batches:
            x = torch.randn(tokens, columns, device="cuda").to(dtype)
            taken = seconds([partial(launch, x)] * 3)
            rate = 2 * tokens * rows * columns / taken / 1e12
            cells.append(f"{taken * 1e6:8.1f} ({rate:4.0f})")
        print(f"  {name:7s} {' '.join(cells)}", flush=True)

    row("cuBLAS", lambda x: x @ half.T, torch.float16)
    for kind in kinds:
        weight = packed(kind, rows, columns)
        row(kind.name, lambda x, w=weight: matmul.linear(x, w), torch.float32)


def _always(tiles: Tiles, device: torch.device) -> Tiles:
    """Return the tiles that are tried, whatever the device."""
    return tiles


def few_candidates(kinds: list[GGMLType]) -> None:
    """Compare tiles of `_few_rows`."""
    print("tiles of few rows: microseconds at T = 1, 8 for 4096x4096, 14336x4096, 4096x14336")
    before = matmul.tiles_for
    chosen = before(torch.device("cuda"))
    candidates = [
        FewTiles(rows=n, ways=ways, stages=stages, programs=programs, max_splits=splits)
        for n, ways, stages, programs, splits in (
            (32, 4, 3, 256, 8), (32, 4, 3, 512, 8), (32, 4, 3, 1024, 16), (32, 4, 2, 1024, 16),
            (32, 4, 4, 512, 16), (16, 4, 3, 512, 8), (16, 4, 3, 1024, 16), (16, 4, 3, 2048, 16),
            (64, 4, 3, 512, 16), (64, 4, 3, 1024, 32), (32, 2, 3, 1024, 16), (16, 2, 3, 1024, 16),
            (32, 1, 3, 1024, 16), (32, 8, 2, 512, 8), (16, 8, 3, 512, 8), (16, 8, 2, 1024, 8),
        )
    ]  # fmt: skip
    for kind in kinds:
        matrices = [copies(packed(kind, *shape)) for shape in SHAPES[:3]]
        for candidate in candidates:
            tried = dataclasses.replace(chosen, few=candidate, few_wide=candidate)
            matmul.tiles_for = partial(_always, tried)
            cells = []
            for weights in matrices:
                for tokens in (1, 8):
                    x = matmul.prepare(
                        torch.randn(tokens, weights[0].columns, device="cuda"), matmul.form_of(kind)
                    )
                    try:
                        taken = seconds([partial(matmul.multiply, x, w) for w in weights])
                        cells.append(f"{taken * 1e6:7.1f}")
                    except Exception as error:
                        cells.append(type(error).__name__[:7])
            settings = ", ".join(f"{key} {value}" for key, value in dataclasses.asdict(candidate).items())
            print(f"  {kind.name} {settings}:", *cells)
    matmul.tiles_for = before


#: Tiles of many rows that are compared, the second being the default.
MANY = (
    ManyTiles(128, 64, 8, 3),
    ManyTiles(128, 64, 8, 3, programs=264),
    ManyTiles(128, 64, 8, 3, programs=528, max_splits=16),
    ManyTiles(128, 64, 8, 2, programs=264),
    ManyTiles(128, 64, 4, 3, programs=396),
    ManyTiles(64, 64, 4, 3, programs=396),
    ManyTiles(64, 64, 4, 2, programs=528),
    ManyTiles(256, 64, 8, 2, programs=132),
)


def many_candidates(kinds: list[GGMLType]) -> None:
    """Compare tiles of `_many_rows`, all of them in turn."""
    before = matmul.tiles_for
    matmul.tiles_for = _tiles_of_thread
    print("tiles of many rows: microseconds of linear, with the preparation of x")
    for kind in kinds:
        matrices = [copies(packed(kind, *shape)) for shape in SHAPES[:3]]
        cases = [(tokens, weights) for tokens in (32, 64) for weights in matrices]
        xs = [torch.randn(tokens, weights[0].columns, device="cuda") for tokens, weights in cases]
        graphs: dict[tuple[ManyTiles, int], tuple[torch.cuda.CUDAGraph, int]] = {}
        with ThreadPoolExecutor(16) as pool:  # to compile them
            for tiles in MANY:
                for i in (0, 3):
                    pool.submit(_tried, tiles, xs[i], matrices[0][0])
        for tiles in MANY:
            for i, (x, (_, weights)) in enumerate(zip(xs, cases, strict=True)):
                if _tried(tiles, x, weights[0]):
                    calls = [partial(matmul.linear, x, weight) for weight in weights]
                    graphs[tiles, i] = recorded(calls), len(weights)
        times = in_turn({key: graph for key, (graph, _) in graphs.items()})
        heads = [f"{tokens}: {weights[0].rows}x{weights[0].columns}" for tokens, weights in cases]
        print(f"  {kind.name:5s} {'(rows, tokens, warps, stages, programs, splits)':48s}")
        print(f"  {kind.name:5s} {'':32s}", *(f"{head:>14s}" for head in heads))
        least = [f"{weights[0].nbytes / 4.3e6:14.1f}" for _, weights in cases]
        print(f"  {kind.name:5s} {'bytes at 4.3 TB/s':32s}", *least)
        for tiles in MANY:
            taken = [times[tiles, i] / graphs[tiles, i][1] if (tiles, i) in times else nan for i in range(6)]
            cells = [f"{each * 1e6:14.1f}" for each in taken]
            print(f"  {kind.name:5s} {dataclasses.astuple(tiles)!s:32s}", *cells, flush=True)
        del graphs, matrices, cases, calls
    matmul.tiles_for = before


#: The tiles with which each thread multiplies.
TRIED = threading.local()


def _tiles_of_thread(device: torch.device) -> Tiles:
    return dataclasses.replace(tiles_for(device), many=TRIED.tiles, many_wide=TRIED.tiles)


def _tried(tiles: ManyTiles, x: Tensor, weight: PackedMatrix) -> bool:
    """Return whether a product can be launched with some tiles, which it sets, after compiling it."""
    TRIED.tiles = tiles
    try:
        matmul.linear(x, weight)
    except Exception as error:
        print(f"  {tiles} failed: {error!r}"[:300])
        return False
    return True


def recorded(launches: list[Callable[[], object]]) -> torch.cuda.CUDAGraph:
    """Return launches as one graph."""
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for launch in launches:
            launch()
    return graph


Key = TypeVar("Key")


def in_turn(graphs: dict[Key, torch.cuda.CUDAGraph], rounds: int = 7) -> dict[Key, float]:
    """Return the median seconds of graphs that are replayed one after another, several times."""
    events = []
    for graph in graphs.values():
        graph.replay()
    for _ in range(rounds):
        for key, graph in graphs.items():
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            graph.replay()
            end.record()
            events.append((key, begin, end))
    torch.cuda.synchronize()
    times: dict[Key, list[float]] = {}
    for key, begin, end in events:
        times.setdefault(key, []).append(begin.elapsed_time(end) / 1e3)
    return {key: statistics.median(each) for key, each in times.items()}


def dense_candidates() -> None:
    """Compare tiles of `_dense`, and print what goes before it."""
    rows, columns = 14336, 4096
    weight = packed(GGMLType.Q4_K, rows, columns)
    before = matmul.tiles_for
    chosen = before(torch.device("cuda"))
    half = packed(GGMLType.F16, rows, columns)
    print("tiles of the dense product, F16 14336 x 4096: microseconds at T = 512, 4096")
    for n, m, warps, stages in (
        (128, 128, 8, 4), (128, 128, 4, 4), (128, 256, 8, 3), (256, 128, 8, 3), (128, 128, 8, 3),
        (64, 256, 4, 4), (128, 256, 8, 4),
    ):  # fmt: skip
        tried = dataclasses.replace(chosen, dense=ManyTiles(n, m, warps, stages))
        matmul.tiles_for = partial(_always, tried)
        cells = []
        for tokens in (512, 4096):
            x = matmul.prepare(torch.randn(tokens, columns, device="cuda"), torch.float16)
            try:
                cells.append(f"{seconds([partial(matmul.multiply, x, half)] * 3) * 1e6:7.1f}")
            except Exception as error:
                cells.append(type(error).__name__[:12])
        print(f"  rows {n} tokens {m} warps {warps} stages {stages}:", *cells, flush=True)
    matmul.tiles_for = before
    x = torch.randn(600, columns, device="cuda")
    taken = seconds([lambda: matmul.unpack_matrix(weight, 0, rows)] * 3)
    print(
        f"  unpacking Q4_K {rows} x {columns}: {taken * 1e6:.1f} microseconds, preparing 600 rows:", end=" "
    )
    print(f"{seconds([lambda: matmul.prepare(x, torch.float16)] * 3) * 1e6:.1f}")


def mixtures() -> None:
    """Print the time of mixtures of experts shaped like Qwen3 30B A3B and gpt-oss 20B."""
    print("experts: microseconds at T = 1, 8, 16, 512")
    for name, kind, count, used, width, columns in (
        ("Qwen3 30B", GGMLType.Q4_K, 128, 8, 768, 2048),
        ("gpt-oss 20B", GGMLType.MXFP4, 32, 4, 2880, 2880),
    ):
        gate, up = (packed(kind, count * width, columns) for _ in range(2))
        down = packed(kind, count * columns, width)
        cells = []
        for tokens in (1, 8, 16, 512):
            x = torch.randn(tokens, columns, device="cuda")
            calls = []
            for _ in range(6):  # other experts each time, so that weights come from memory
                chosen = torch.rand(tokens, count, device="cuda").argsort(1)[:, :used].int().contiguous()
                weights = torch.rand(tokens, used, device="cuda")
                given = (x, chosen, weights, count, gate, up, down, "swiglu")
                calls.append(partial(experts_module.experts, *given))
            taken = seconds(calls)
            read = min(tokens * used, count) / count * (gate.nbytes + up.nbytes + down.nbytes)
            cells.append(f"{taken * 1e6:8.1f} ({read / taken / 1e9:5.0f} GB/s at most)")
        print(f"  {name:12s}", *cells, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="", help="types, comma-separated")
    parser.add_argument("--parts", default="check,decode,prompts,experts,few,many,dense")
    settings = parser.parse_args()
    kinds = [GGMLType[name] for name in settings.only.split(",") if name] or list(FORMATS)
    begin = time.perf_counter()
    print(torch.cuda.get_device_name(), torch.__version__, f"numpy {np.__version__}")
    main_kinds = [
        kind for kind in kinds if kind.name in ("Q4_K", "Q6_K", "Q8_0", "Q4_0", "MXFP4", "F16", "BF16")
    ]
    parts: dict[str, Callable[[], None]] = {
        "check": lambda: check(kinds),
        "decode": lambda: decode(kinds, main_kinds),
        "prompts": lambda: prompts(main_kinds),
        "experts": mixtures,
        "few": lambda: few_candidates([GGMLType.Q4_K, GGMLType.Q6_K]),
        "many": lambda: many_candidates(kinds if settings.only else [GGMLType.Q4_K, GGMLType.Q6_K]),
        "dense": dense_candidates,
    }
    for name in settings.parts.split(","):
        try:
            parts[name]()
        except Exception as error:
            print(f"{name} failed: {error!r}")
        print(f"  [{name}: {time.perf_counter() - begin:.0f} s since the start]", flush=True)


if __name__ == "__main__":
    main()

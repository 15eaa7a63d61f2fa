"""Measure what adapters add to a product on a GPU: kernels of adapters beside those of a Q4_K matrix.

python bench/gpu_adapters.py
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from puna.gguf import GGMLType
from puna.ops.gpu.kernels import matmul
from puna.ops.gpu.kernels.low_rank import LowRankStack, add_low_rank
from puna.ops.gpu.packed import PackedMatrix

SHAPES = ((4096, 4096), (14336, 4096), (4096, 14336))  # [out, in]
ROWS = (1, 8, 16, 64, 512, 2048)
RANK = 16


def microseconds(launch: Callable[[], object]) -> float:
    """Return the median time of a launch, replayed ten times in a graph."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        launch()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(10):
            launch()
    times = []
    for _ in range(5):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 100)
    return median(times)


def stacks(outs: int, columns: int) -> list[LowRankStack]:
    """Return stacks of 1 to 8 adapters."""
    found: list[LowRankStack] = []
    for number in range(8):
        a, b = torch.randn(RANK, columns, device="cuda"), torch.randn(outs, RANK, device="cuda")
        found.append(LowRankStack.of(number, a, b, found[-1] if found else None))
    return found


def main() -> None:
    print(f"{torch.cuda.get_device_name()}; us: product, 1 adapter, 8 adapters of which rows use one each")
    for outs, columns in SHAPES:
        size = GGMLType.Q4_K.nbytes(outs * columns)
        data = torch.randint(0, 256, (size,), dtype=torch.uint8, device="cuda")
        matrix = PackedMatrix.pack(data, GGMLType.Q4_K, outs, columns)
        one, *_, eight = stacks(outs, columns)
        for rows in ROWS:
            x, y = torch.randn(rows, columns, device="cuda"), torch.zeros(rows, outs, device="cuda")
            ones = torch.ones(rows, 1, device="cuda")
            each = torch.eye(8, device="cuda")[torch.arange(rows, device="cuda") % 8].contiguous()
            times = [
                microseconds(partial(matmul.linear, x, matrix)),
                microseconds(partial(add_low_rank, y, x, one, ones)),
                microseconds(partial(add_low_rank, y, x, eight, each)),
            ]
            print(f"{outs} x {columns}, {rows} rows: " + ", ".join(f"{taken:.1f}" for taken in times))


if __name__ == "__main__":
    main()

"""Measure what adapters add to a product on a GPU: kernels of adapters beside those of a Q4_K matrix.

python bench/gpu_adapters.py
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from gpu_products import packed, seconds

from puna.gguf import GGMLType
from puna.ops.gpu.kernels import matmul
from puna.ops.gpu.kernels.low_rank import LowRankStack, add_low_rank

SHAPES = ((4096, 4096), (14336, 4096), (4096, 14336))  # [out, in]
ROWS = (1, 8, 16, 64, 512, 2048)
RANK = 16


def microseconds(launch: Callable[[], object]) -> float:
    """Return the time of a launch, of ten in a row."""
    return seconds([launch] * 10) * 1e6


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
        matrix = packed(GGMLType.Q4_K, outs, columns)
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

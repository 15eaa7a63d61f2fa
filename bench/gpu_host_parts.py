"""Measure decode steps whose experts the processor computes, on a GPU: what the way there and back costs.

    python bench/gpu_host_parts.py [--layers 8]

Layers have the experts of Qwen3 30B-A3B (128 of 768 x 2048, 8 used, Q4_K), with random weights. The same
step is timed as launched anew, as replayed in segments, and on the processor alone.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from puna.gguf import GGMLType
from puna.ops import Backend, ExpertNetworks, ExpertWeights, Routing, Weight, backend_named
from puna.ops.gpu.graphs import GraphRecorder
from puna.ops.gpu.triton_backend import TritonBackend

COUNT, WIDTH, HIDDEN, USED = 128, 768, 2048, 8


def experts() -> ExpertNetworks:
    def stack(rows: int, columns: int) -> ExpertWeights:
        shape = (COUNT * rows, columns)
        data = np.random.default_rng(0).integers(0, 256, GGMLType.Q4_K.nbytes(shape[0] * columns), np.uint8)
        data.reshape(-1, GGMLType.Q4_K.type_size)[:, :4] = np.frombuffer(
            np.float16([1e-3, 1e-3]).tobytes(), np.uint8
        )
        return ExpertWeights(Weight("experts", data, GGMLType.Q4_K, shape, on_host=True), COUNT)

    return ExpertNetworks(stack(WIDTH, HIDDEN), stack(WIDTH, HIDDEN), stack(HIDDEN, WIDTH))


def milliseconds(step: Callable[[], object]) -> float:
    times = []
    for _ in range(15):
        began = time.perf_counter()
        step()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return median(times[5:]) * 1000


def step_on(ops: Backend, hidden: NDArray[np.float32], layers: list[ExpertNetworks]) -> Callable[[], Any]:
    """Return a step of layers that consist of a norm, a router and experts."""
    rng = np.random.default_rng(1)
    x, norm = ops.array(hidden), ops.array(np.ones(HIDDEN, np.float32))
    router = Weight.from_values("router", rng.standard_normal((COUNT, HIDDEN), np.float32) / 50)
    ops.pack(router)

    def step() -> Any:
        state = x
        for layer in layers:
            normed = ops.rms_norm(state, norm, 1e-6)
            chosen, shares = ops.route(ops.linear(normed, router), Routing(used=USED))
            state = state + ops.experts(normed, chosen, shares, layer)
        return state

    return step


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, default=8)
    layers = [experts() for _ in range(parser.parse_args().layers)]
    gpu, cpu = TritonBackend(torch.device("cuda")), backend_named("cpu")
    print(f"{torch.cuda.get_device_name()}, {cpu.threads()} threads, {len(layers)} layers; ms of a step")
    for rows in (1, 4, 16):
        hidden = np.random.default_rng(rows).standard_normal((rows, HIDDEN), np.float32)
        step = step_on(gpu, hidden, layers)
        expected = step()
        recorded = GraphRecorder().record(step, [])
        assert recorded.program is not None, recorded.obstacle
        assert torch.equal(recorded.result, expected)
        found = [milliseconds(each) for each in (step, recorded.program.run, step_on(cpu, hidden, layers))]
        print(
            f"{rows} rows: launched {found[0]:.2f}, replayed {found[1]:.2f}, processor alone {found[2]:.2f}"
        )


if __name__ == "__main__":
    main()

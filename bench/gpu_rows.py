"""Accuracy and speed of the GPU's kernels for rows, recurrent layers and routing, beside plain torch.

PYTHONPATH=src python bench/gpu_rows.py [--only NAME]

Errors are relative to the largest exact value, computed in float64 on the device. Times are of a graph's
replay, so that they contain no launches from Python; bytes are those that must be read and written once.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, product, starmap
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from puna.ops.gpu.kernels import activations, norms, recurrent, rope, routing

Function = Callable[[], Any]
DEVICE = torch.device("cuda")
ROWS = (1, 16, 4096)
#: Memory that is overwritten between measurements, several times the size of the L2 cache.
FLUSHED_BYTES = 256 << 20


@dataclass
class Case:
    """A kernel, the same in plain torch, and what both should give, in float64."""

    name: str
    ours: Function
    plain: Function | None
    exact: Function | None
    bytes: int
    tolerance: float = 3e-7


def randn(*shape: int) -> Tensor:
    return torch.randn(shape, device=DEVICE)


def row_cases(rows: int, width: int) -> Iterator[Case]:
    x, y, weight = randn(rows, width), randn(rows, width), randn(width)
    xd, yd, wd = x.double(), y.double(), weight.double()
    size, where = 4 * rows * width, f"{rows} x {width}"
    yield Case(
        f"rms_norm {where}",
        lambda: norms.rms_norm(x, weight, 1e-5),
        lambda: F.rms_norm(x, (width,), weight, 1e-5),
        lambda: F.rms_norm(xd, (width,), wd, 1e-5),
        2 * size,
    )
    yield Case(
        f"add_rms_norm {where}",
        lambda: norms.add_rms_norm(x, y, weight, 1e-5)[1],
        lambda: F.rms_norm(x + y, (width,), weight, 1e-5),
        lambda: F.rms_norm((x + y).double(), (width,), wd, 1e-5),
        4 * size,
    )
    yield Case(
        f"layer_norm {where}",
        lambda: norms.layer_norm(x, weight, weight, 1e-5),
        lambda: F.layer_norm(x, (width,), weight, weight, 1e-5),
        lambda: F.layer_norm(xd, (width,), wd, wd, 1e-5),
        2 * size,
    )
    yield Case(
        f"swiglu {where}",
        lambda: activations.swiglu(x, y),
        lambda: F.silu(x) * y,
        lambda: F.silu(xd) * yd,
        3 * size,
    )
    yield Case(
        f"geglu {where}",
        lambda: activations.geglu(x, y),
        lambda: F.gelu(x, approximate="tanh") * y,
        lambda: F.gelu(xd, approximate="tanh") * yd,
        3 * size,
    )
    yield Case(f"gelu {where}", lambda: activations.gelu(x), lambda: F.gelu(x), lambda: F.gelu(xd), 2 * size)
    yield Case(
        f"above {where}",
        lambda: norms.above(x, 1.6448536),
        lambda: (x - x.mean(-1, keepdim=True) - 1.6448536 * x.std(-1, correction=0, keepdim=True)).relu(),
        lambda: (xd - xd.mean(-1, keepdim=True) - 1.6448536 * xd.std(-1, correction=0, keepdim=True)).relu(),
        2 * size,
    )


def plain_rope(x: Tensor, positions: Tensor, frequencies: Tensor) -> Tensor:
    """Rotate halves by angles in the dtype of the frequencies."""
    angles = (positions.to(frequencies.dtype)[:, None] * frequencies)[:, None]
    first, second = x.chunk(2, -1)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    return torch.cat([first * cos - second * sin, first * sin + second * cos], -1)


def rope_cases(rows: int) -> Iterator[Case]:
    frequencies = (500000.0 ** (-2 * np.arange(64) / 128)).astype(np.float32)
    of_rope = SimpleNamespace(frequencies=frequencies, axes=None, axis_count=1, magnitude=1.0, neox=True)
    turns = rope.Turns.of(of_rope, DEVICE)  # type: ignore[arg-type]
    on_device = torch.from_numpy(frequencies).to(DEVICE)
    x, name = randn(rows, 32, 128), f"rope {rows} x 32 heads of 128"
    work = x.clone()
    positions = torch.arange(2**20 - rows, 2**20, dtype=torch.int32, device=DEVICE)

    def rotated() -> Tensor:
        turned = x.clone()
        rope.rope_(turned, positions, turns)
        return turned

    yield Case(
        f"{name}, copied",
        rotated,
        None,
        lambda: plain_rope(x.double(), positions, on_device.double()),
        4 * x.nbytes,
    )
    yield Case(
        name,
        lambda: rope.rope_(work, positions, turns),
        lambda: plain_rope(x, positions, on_device),
        None,
        2 * x.nbytes,
    )


def routing_cases(rows: int, experts: int, used: int) -> Iterator[Case]:
    logits = randn(rows, experts)
    settings = SimpleNamespace(
        used=used, scoring=0, normalize=True, scale=1.0, groups=1, used_groups=1, best_of_group=2
    )
    yield Case(
        f"route {rows} rows, {used} of {experts}",
        lambda: routing.route(logits, settings)[1],  # type: ignore[arg-type]
        lambda: logits.topk(used).values.softmax(-1),
        lambda: logits.double().topk(used).values.softmax(-1),
        logits.nbytes,
        2e-6,
    )


def sequences(rows: int, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return starts, sources and targets of `count` sequences of equal lengths."""
    length = rows // count
    row = torch.arange(rows, dtype=torch.int32, device=DEVICE)
    number = row // length
    return number * length, number, torch.where(row % length == length - 1, number + count, -1).int()


def attention_in_float64(
    q: Tensor, k: Tensor, v: Tensor, d: Tensor, b: Tensor, states: Tensor, count: int
) -> Tensor:
    """Compute the gated delta rule row by row; all sequences at once."""
    heads = v.shape[1]
    q, k, v, d, b = (each.double().unflatten(0, (count, -1)) for each in (q, k, v, d, b))
    q, k = (each.repeat_interleave(heads // each.shape[2], 2) for each in (q, k))
    memory, rows = states[:count].double(), []
    for t in range(v.shape[1]):
        memory = memory * d[:, t, :, None, None].exp()
        found = torch.einsum("shk,shkv->shv", k[:, t], memory)
        memory = memory + torch.einsum("shk,shv->shkv", k[:, t], b[:, t, :, None] * (v[:, t] - found))
        rows.append(torch.einsum("shk,shkv->shv", q[:, t], memory))
    return torch.stack(rows, 1).flatten(0, 1)


def recurrent_cases(rows: int, count: int) -> Iterator[Case]:
    where = f"{count} of {rows // count} rows"
    rows_of = sequences(rows, count)
    q, k = randn(rows, 16, 128) / 11, F.normalize(randn(rows, 16, 128), dim=-1)
    v, d, b = (
        randn(rows, 32, 128),
        -torch.rand(rows, 32, device=DEVICE),
        torch.rand(rows, 32, device=DEVICE),
    )
    states = randn(2 * count, 32, 128, 128)
    yield Case(
        f"gated delta, 32 heads of 128, {where}",
        lambda: recurrent.linear_attention(q, k, v, d, b, None, states, *rows_of, delta=True),
        None,
        (lambda: attention_in_float64(q, k, v, d, b, states, count)) if rows // count <= 512 else None,
        4 * (q.numel() + k.numel() + 2 * v.numel()) + states.nbytes,
        3e-6,
    )
    # Mamba 2: 80 heads of 64, 128 entries.
    x, decays, steps = randn(rows, 80, 64), -torch.rand(rows, 80, device=DEVICE), randn(rows, 80)
    key, query, skips = randn(rows, 1, 128) / 11, randn(rows, 1, 128) / 11, randn(80)
    memories = randn(2 * count, 80, 128, 64)
    yield Case(
        f"Mamba 2, 80 heads of 64, {where}",
        lambda: recurrent.linear_attention(query, key, x, decays, steps, skips, memories, *rows_of),
        None,
        None,
        4 * (2 * x.numel() + 2 * key.numel()) + memories.nbytes,
    )
    inputs, times = randn(rows, 8192), torch.rand(rows, 8192, device=DEVICE)
    rates, of_channels = -torch.rand(16, 8192, device=DEVICE), randn(8192)
    keys, queries, scanned = randn(rows, 16), randn(rows, 16), randn(2 * count, 16, 8192)
    yield Case(
        f"selective_scan, 8192 channels, {where}",
        lambda: recurrent.selective_scan(inputs, times, rates, keys, queries, of_channels, scanned, *rows_of),
        None,
        None,
        3 * inputs.nbytes + scanned.nbytes,
    )
    projected, weight, kept = randn(rows, 8192), randn(4, 8192), randn(2 * count, 3, 8192)
    padded = torch.cat(
        [kept[:count], projected.unflatten(0, (count, -1))], 1
    )  # [sequences, 3 + rows, channels]
    yield Case(
        f"short_conv, 8192 channels, {where}",
        lambda: recurrent.short_conv(projected, weight, None, kept, *rows_of, gated=False),
        lambda: F.silu(F.conv1d(padded.mT, weight.T[:, None], groups=8192)),
        lambda: F.silu(F.conv1d(padded.double().mT, weight.double().T[:, None], groups=8192)).mT.flatten(
            0, 1
        ),
        2 * projected.nbytes,
        1e-6,
    )


SIZES: tuple[tuple[Callable[..., Iterator[Case]], list[tuple[int, ...]]], ...] = (
    (row_cases, list(product(ROWS, (4096, 14336)))),
    (rope_cases, list(product(ROWS))),
    (routing_cases, [(rows, *router) for rows in ROWS for router in ((128, 8), (512, 10))]),
    (recurrent_cases, [(1, 1), (16, 16), (64, 64), (4096, 1), (4096, 8)]),
)


def check_bits() -> None:
    """Assert that rows have the same bits alone and among others, and in whatever batches they come."""
    x, y, weight = randn(4096, 4096), randn(4096, 4096), randn(4096)
    normed, scaled = norms.add_rms_norm(x, y, weight, 1e-5)[1], activations.swiglu(x, y)
    for rows in (slice(7, 8), slice(100, 116), slice(4000, 4096)):
        assert torch.equal(norms.add_rms_norm(x[rows], y[rows], weight, 1e-5)[1], normed[rows])
        assert torch.equal(activations.swiglu(x[rows], y[rows]), scaled[rows])
    q, k = randn(100, 16, 128) / 11, F.normalize(randn(100, 16, 128), dim=-1)
    v, d, b = randn(100, 32, 128), -torch.rand(100, 32, device=DEVICE), torch.rand(100, 32, device=DEVICE)
    states = randn(3, 32, 128, 128)
    whole = recurrent.linear_attention(q, k, v, d, b, None, states, *sequences(100, 1), delta=True)
    last, begin = states[1].clone(), 0
    for part in (1, 2, 3, 29, 64, 1):
        rows, place = slice(begin, begin + part), torch.full((part,), 2, dtype=torch.int32, device=DEVICE)
        starts, kept = torch.zeros_like(place), torch.full_like(place, -1)
        kept[-1] = 1
        if begin:
            states[2] = states[1]
        given = (each[rows] for each in (q, k, v, d, b))
        found = recurrent.linear_attention(
            *given, None, states, starts, place if begin else starts, kept, delta=True
        )
        assert torch.equal(found, whole[rows]), f"rows {begin} to {begin + part}"
        begin += part
    assert torch.equal(states[1], last)
    print("bits do not depend on the batch")


def microseconds(call: Function, flushed: Tensor) -> float:
    """Return the median time of a replay, with the L2 cache flushed before each."""
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    times, begun = [], time.perf_counter()
    while len(times) < 12 and (len(times) < 3 or time.perf_counter() - begun < 0.06):
        flushed.zero_()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(1000 * begin.elapsed_time(end))
    return sorted(times)[len(times) // 2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="cases whose names contain this")
    wanted = parser.parse_args().only
    torch.manual_seed(0)
    flushed = torch.empty(FLUSHED_BYTES, dtype=torch.int8, device=DEVICE)
    empty = microseconds(lambda: flushed[:1].zero_(), flushed)
    print(f"{torch.cuda.get_device_name()}; the smallest kernel takes {empty:.1f} us")
    print(f"{'case':48} {'error':>8} {'us':>9} {'GB/s':>6} {'torch us':>9}")
    begun = time.perf_counter()
    check_bits()
    for cases, sizes in SIZES:
        for case in chain.from_iterable(starmap(cases, sizes)):
            if wanted not in case.name:
                continue
            error, shown = "", ""
            if case.exact is not None:
                exact = case.exact()
                worst = ((case.ours().double() - exact).abs().max() / exact.abs().max()).item()
                error = f"{worst:.1e}" + ("" if worst <= case.tolerance else " BAD")
            if case.bytes:
                ours = microseconds(case.ours, flushed)
                shown = f"{ours:9.1f} {case.bytes / ours / 1000:6.0f}"
            plain = f"{microseconds(case.plain, flushed):9.1f}" if case.plain is not None else ""
            print(f"{case.name:48} {error:>8} {shown} {plain}", flush=True)
    print(f"{time.perf_counter() - begun:.1f} s in all")


if __name__ == "__main__":
    main()

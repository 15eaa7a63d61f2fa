"""Attention over index lists against torch's own attention in float64, and its independence of company."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from puna import ops

DIMS = [(64, 64), (32, 32), (80, 80), (96, 96), (128, 128), (256, 256), (192, 128), (12, 20), (5, 3)]
#: (query heads, key/value heads)
HEADS = [(8, 2), (3, 3), (9, 3), (20, 1)]


@dataclass
class Call:
    """A batch over a cache whose cells lie in no particular order."""

    q: Tensor
    keys: Tensor
    values: Tensor
    cells: Tensor
    starts: Tensor
    counts: Tensor

    @classmethod
    def random(
        cls,
        ranges: list[tuple[int, int]],  # (start, count) per row
        heads: tuple[int, int] = (8, 2),
        dims: tuple[int, int] = (64, 64),
        dtype: torch.dtype = torch.float16,
        seed: int = 0,
    ) -> Call:
        random = torch.Generator().manual_seed(seed)
        listed = max((start + count for start, count in ranges), default=0)
        capacity = listed + 50
        return cls(
            q=torch.randn(len(ranges), heads[0], dims[0], generator=random),
            keys=torch.randn(capacity, heads[1], dims[0], generator=random).to(dtype),
            values=torch.randn(capacity, heads[1], dims[1], generator=random).to(dtype),
            cells=torch.randperm(capacity, generator=random)[:listed].int(),
            starts=torch.tensor([start for start, _ in ranges], dtype=torch.int32),
            counts=torch.tensor([count for _, count in ranges], dtype=torch.int32),
        )

    def run(self, rows: list[int] | None = None, scale: float = 0.2, **settings: Any) -> Tensor:
        rows = list(range(len(self.q))) if rows is None else rows
        return ops.attention(
            self.q[rows],
            self.keys,
            self.values,
            self.cells,
            self.starts[rows],
            self.counts[rows],
            scale,
            **settings,
        )

    def seen(self, row: int) -> tuple[Tensor, Tensor, Tensor]:
        """Query, keys and values of one row in float64, as [1, heads, n, dim]."""
        start, count = int(self.starts[row]), int(self.counts[row])
        cells = self.cells[start : start + count].long()
        query = self.q[row].double()[None, :, None]
        return (
            query,
            self.keys[cells].double().transpose(0, 1)[None],
            self.values[cells].double().transpose(0, 1)[None],
        )


def exact(call: Call, scale: float, softcap: float = 0.0, sinks: Tensor | None = None) -> Tensor:
    """Torch's attention in float64, row by row; sinks as one more cell that holds nothing."""
    heads, group = call.q.shape[1], call.q.shape[1] // call.keys.shape[1]
    result = torch.zeros(len(call.q), heads, call.values.shape[2], dtype=torch.float64)
    for row in range(len(call.q)):
        query, keys, values = call.seen(row)
        if keys.shape[2] == 0:
            continue
        keys, values = keys.repeat_interleave(group, 1), values.repeat_interleave(group, 1)
        if softcap:
            scores = softcap * torch.tanh(query @ keys.transpose(2, 3) * scale / softcap)
            result[row] = (torch.softmax(scores, -1) @ values)[0, :, 0]
            continue
        mask = torch.zeros(1, heads, 1, keys.shape[2], dtype=torch.float64)
        if sinks is not None:
            keys, values = F.pad(keys, (0, 0, 0, 1)), F.pad(values, (0, 0, 0, 1))
            mask = torch.cat([mask, sinks.double()[None, :, None, None]], -1)
        result[row] = F.scaled_dot_product_attention(query, keys, values, attn_mask=mask, scale=scale)[
            0, :, 0
        ]
    return result


def close(got: Tensor, expected: Tensor) -> None:
    assert got.shape == expected.shape
    if expected.numel():
        assert (got.double() - expected).abs().max() <= 3e-6 * expected.abs().max().clamp_min(1e-30)


def prompt(count: int, start: int = 0, before: int = 0) -> list[tuple[int, int]]:
    """Rows of one sequence: each sees the ones before it and itself."""
    return [(start, before + i + 1) for i in range(count)]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=["f16", "f32"])
@pytest.mark.parametrize("dims", DIMS, ids=str)
def test_every_head_dimension(implementation: str, dims: tuple[int, int], dtype: torch.dtype) -> None:
    call = Call.random([*prompt(19), (19, 64), (83, 65), (0, 130)], dims=dims, dtype=dtype)
    close(call.run(), exact(call, 0.2))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=["f16", "f32"])
@pytest.mark.parametrize("heads", HEADS, ids=str)
def test_every_way_to_share_keys(implementation: str, heads: tuple[int, int], dtype: torch.dtype) -> None:
    call = Call.random([*prompt(21, before=55), (76, 3), (79, 1)], heads, (32, 32), dtype)
    close(call.run(), exact(call, 0.2))


@pytest.mark.parametrize("count", [1, 2, 63, 64, 65, 511, 512, 513, 1024, 1600])
def test_lengths_around_tiles_and_chunks(implementation: str, count: int) -> None:
    call = Call.random([(7, count)], dims=(64, 64))
    close(call.run(), exact(call, 0.2))


def test_soft_cap(implementation: str) -> None:
    call = Call.random([*prompt(9), (9, 600)])
    close(call.run(scale=1.0, softcap=3.0), exact(call, 1.0, softcap=3.0))


def test_sinks(implementation: str) -> None:
    call = Call.random([*prompt(9), (9, 600)])
    sinks = torch.tensor([-50.0, -3.0, 0.0, 1.0, 3.0, 5.0, 30.0, 100.0])
    close(call.run(sinks=sinks), exact(call, 0.2, sinks=sinks))


def test_rows_that_see_nothing_are_zero(implementation: str) -> None:
    call = Call.random([(0, 0), (0, 3), (3, 0), (0, 3)])
    for settings in ({}, {"sinks": torch.zeros(8)}, {"softcap": 5.0}):
        result = call.run(**settings)
        assert torch.equal(result[[0, 2]], torch.zeros(2, 8, 64))
        assert result[[1, 3]].abs().min() > 0


def test_no_rows(implementation: str) -> None:
    assert Call.random([]).run().shape == (0, 8, 64)


def test_large_scores_do_not_overflow(implementation: str) -> None:
    call = Call.random(prompt(70))
    close(call.run(scale=1000.0), exact(call, 1000.0))


def test_one_cell_gives_its_value(implementation: str) -> None:
    call = Call.random([(4, 1)], heads=(2, 2))
    assert torch.equal(call.run()[0], call.values[call.cells[4].long()].float())


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=["f16", "f32"])
@pytest.mark.parametrize("dims", [(64, 64), (80, 80), (12, 20)], ids=str)
@pytest.mark.parametrize("heads", HEADS, ids=str)
def test_a_row_comes_out_the_same_alone_as_in_a_batch(
    kernels: str, heads: tuple[int, int], dims: tuple[int, int], dtype: torch.dtype
) -> None:
    rows = [*prompt(70, before=480), (550, 20), (3, 1400), (550, 7), (0, 0), (0, 1)]
    call = Call.random(rows, heads, dims, dtype)
    together = call.run()
    for row in [0, 1, 31, 32, 33, 64, 69, 70, 71, 72, 73, 74]:
        assert torch.equal(call.run([row])[0], together[row])
    backwards = list(reversed(range(len(rows))))
    assert torch.equal(call.run(backwards), together[backwards])
    assert torch.equal(call.run(list(range(40, 70))), together[40:70])


@pytest.mark.parametrize("settings", [{}, {"softcap": 5.0}, {"sinks": torch.arange(8.0)}], ids=str)
def test_threads_change_nothing(kernels: str, settings: dict[str, Any]) -> None:
    call = Call.random([(0, 3000), *prompt(20, start=100), (5, 1200)])
    before = ops.threads()
    results = []
    try:
        for count in (1, 2, 3, 7):
            ops.set_threads(count)
            results.append(call.run(**settings))
            results.append(call.run([0], **settings))
    finally:
        ops.set_threads(before)
    for many, alone in zip(results[::2], results[1::2], strict=True):
        assert torch.equal(many, results[0])
        assert torch.equal(alone, results[0][:1])


def test_calls_from_several_python_threads(kernels: str) -> None:
    calls = [Call.random([(0, 1500), *prompt(30)], seed=seed) for seed in range(4)]
    expected = [call.run() for call in calls]
    wrong = []

    def work(index: int) -> None:
        wrong.extend(index for _ in range(10) if not torch.equal(calls[index].run(), expected[index]))

    threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong

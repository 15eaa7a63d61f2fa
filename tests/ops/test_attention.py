"""Attention over index lists against torch's own attention in float64, and its independence of company."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from puna import ops
from puna.gguf import GGMLType

DIMS = [
    (64, 64), (32, 32), (80, 80), (72, 72), (96, 96), (128, 128), (256, 256), (192, 128), (12, 20), (5, 3),
    (64, 36),
]  # fmt: skip
#: (query heads, key/value heads)
HEADS = [(8, 2), (3, 3), (9, 3), (20, 1)]


#: (of keys, of values)
Types = tuple[GGMLType, GGMLType]
TYPES: list[Types] = [(kind, kind) for kind in ops.KV_TYPES] + [
    (GGMLType.Q8_0, GGMLType.Q4_0), (GGMLType.F16, GGMLType.Q8_0), (GGMLType.Q4_0, GGMLType.BF16),
]  # fmt: skip
FLOATS: list[Types] = [(kind, kind) for kind in (GGMLType.F16, GGMLType.BF16, GGMLType.F32)]


def name(value: object) -> str:
    return (
        "-".join(kind.name for kind in value)
        if isinstance(value, tuple) and isinstance(value[0], GGMLType)
        else str(value)
    )


@pytest.fixture(autouse=True)
def _one_torch_thread() -> Iterator[None]:
    """The exact results are small sums: torch's threads would only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


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
        types: Types = (GGMLType.F16, GGMLType.F16),
        seed: int = 0,
    ) -> Call:
        random = torch.Generator().manual_seed(seed)
        listed = max((start + count for start, count in ranges), default=0)
        capacity = listed + 50
        return cls(
            q=torch.randn(len(ranges), heads[0], dims[0], generator=random),
            keys=ops.kv_pack(torch.randn(capacity, heads[1], dims[0], generator=random), types[0]),
            values=ops.kv_pack(torch.randn(capacity, heads[1], dims[1], generator=random), types[1]),
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
            ops.kv_unpack(self.keys[cells]).double().transpose(0, 1)[None],
            ops.kv_unpack(self.values[cells]).double().transpose(0, 1)[None],
        )


def exact(call: Call, scale: float, softcap: float = 0.0, sinks: Tensor | None = None) -> Tensor:
    """Torch's attention in float64, row by row; sinks as one more cell that holds nothing."""
    heads, group = call.q.shape[1], call.q.shape[1] // call.keys.shape[1]
    result = torch.zeros(len(call.q), heads, ops.kv_shape(call.values)[2], dtype=torch.float64)
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


def window(count: int, size: int, start: int = 0, before: int = 0) -> list[tuple[int, int]]:
    """Rows of one sequence that see at most `size` cells, the last being their own."""
    ends = range(before + 1, before + count + 1)
    return [(start + max(0, end - size), min(end, size)) for end in ends]


def chunked(count: int, size: int, before: int = 0) -> list[tuple[int, int]]:
    """Rows of one sequence that see what lies before them in their chunk of `size`."""
    return [(position // size * size, position % size + 1) for position in range(before, before + count)]


def prompt(count: int, start: int = 0, before: int = 0) -> list[tuple[int, int]]:
    """Rows of one sequence: each sees the ones before it and itself."""
    return [(start, before + i + 1) for i in range(count)]


@pytest.mark.parametrize("types", FLOATS, ids=name)
@pytest.mark.parametrize("dims", DIMS, ids=str)
def test_every_head_dimension(implementation: str, dims: tuple[int, int], types: Types) -> None:
    call = Call.random([*prompt(19), (19, 64), (83, 65), (0, 130)], dims=dims, types=types)
    close(call.run(), exact(call, 0.2))


@pytest.mark.parametrize("types", TYPES, ids=name)
@pytest.mark.parametrize("heads", HEADS, ids=str)
def test_every_way_to_share_keys(implementation: str, heads: tuple[int, int], types: Types) -> None:
    call = Call.random([*prompt(21, before=55), (76, 3), (79, 1)], heads, (32, 64), types)
    close(call.run(), exact(call, 0.2))


#: Root mean square error of one normal number: a step, evenly distributed, which is the largest of 32
#: (2.6) over the codes to one side, or the last bit of a mantissa.
ROUNDING = {
    GGMLType.F32: 0.0,
    GGMLType.F16: 2**-10 / 12**0.5,
    GGMLType.BF16: 2**-7 / 12**0.5,
    GGMLType.Q8_0: 2.6 / 127 / 12**0.5,
    GGMLType.Q4_0: 2.6 / 8 / 12**0.5,
}


@pytest.mark.parametrize("types", TYPES, ids=name)
def test_what_rounding_in_the_cache_costs(implementation: str, types: Types) -> None:
    """Normal keys move scores, and so shares, by as much as they move; values move the result by as much."""
    rows = [(0, 300), (40, 1), (10, 64)]
    kept, stored = Call.random(rows, types=(GGMLType.F32, GGMLType.F32)), Call.random(rows, types=types)
    expected = exact(kept, 0.125)
    error = (stored.run(scale=0.125).double() - expected).square().mean().sqrt()
    bound = (ROUNDING[types[0]] ** 2 + ROUNDING[types[1]] ** 2) ** 0.5
    assert error <= (bound + 1e-6) * expected.square().mean().sqrt()


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
    for extra in ({}, {"sinks": torch.zeros(8)}, {"softcap": 5.0}):
        result = call.run(**extra)
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


@pytest.mark.parametrize(
    ("dims", "types"),
    [
        ((80, 80), FLOATS[0]),
        ((12, 20), FLOATS[2]),
        ((64, 64), FLOATS[0]),
        ((64, 64), (GGMLType.Q8_0, GGMLType.Q4_0)),
    ],
    ids=name,
)
@pytest.mark.parametrize("heads", HEADS, ids=str)
def test_a_row_comes_out_the_same_alone_as_in_a_batch(
    kernels: str, heads: tuple[int, int], dims: tuple[int, int], types: Types
) -> None:
    rows = [
        *prompt(70, before=480),
        (550, 20),
        (3, 1400),
        (550, 7),
        (0, 0),
        (0, 1),
        *window(40, 100, before=90),
    ]
    call = Call.random(rows, heads, dims, types)
    together = call.run()
    for row in [0, 1, 31, 32, 33, 64, 69, 70, 71, 72, 73, 74, 75, 90, 114]:
        assert torch.equal(call.run([row])[0], together[row])
    backwards = list(reversed(range(len(rows))))
    assert torch.equal(call.run(backwards), together[backwards])
    assert torch.equal(call.run(list(range(40, 70))), together[40:70])


@pytest.mark.parametrize("extra", [{}, {"softcap": 5.0}, {"sinks": torch.arange(8.0)}], ids=str)
def test_threads_change_nothing(kernels: str, extra: dict[str, Any]) -> None:
    call = Call.random([(0, 3000), *prompt(20, start=100), (5, 1200)])
    before = ops.threads()
    results = []
    try:
        for count in (1, 2, 3, 7):
            ops.set_threads(count)
            results.append(call.run(**extra))
            results.append(call.run([0], **extra))
    finally:
        ops.set_threads(before)
    for many, alone in zip(results[::2], results[1::2], strict=True):
        assert torch.equal(many, results[0])
        assert torch.equal(alone, results[0][:1])


WINDOWS = {
    "window": window(70, 100, before=60),
    "narrow window": window(70, 3),
    "window across chunks": window(66, 500, start=24, before=500),
    "chunks": chunked(70, 32, before=20),
    "span": [*prompt(5), *[(0, 25)] * 20, *[(0, 26 + i) for i in range(10)]],
    "spans in a window": [(max(0, 100 + i // 8 * 8 - 50), 58) for i in range(64)],
    "several sequences": [*prompt(7, before=100), (1024, 90), *window(9, 40, 2048, 70), (3000, 1), (0, 108)],
    "backwards": list(reversed(window(50, 20))),
    "far apart": [(0, 1), (3000, 1), (0, 3001)],
}


@pytest.mark.parametrize("rows", WINDOWS.values(), ids=WINDOWS)
@pytest.mark.parametrize(
    "extra", [{}, {"softcap": 5.0}, {"sinks": torch.linspace(-2, 4, 8)}], ids=["plain", "cap", "sinks"]
)
def test_what_rows_may_see(implementation: str, rows: list[tuple[int, int]], extra: dict[str, Any]) -> None:
    call = Call.random(rows, dims=(32, 64))
    close(call.run(**extra), exact(call, 0.2, **extra))


@pytest.mark.parametrize("rows", WINDOWS.values(), ids=WINDOWS)
def test_what_rows_may_see_does_not_depend_on_the_others(kernels: str, rows: list[tuple[int, int]]) -> None:
    call = Call.random(rows, dims=(32, 64))
    together = call.run()
    for row in range(0, len(rows), 7):
        assert torch.equal(call.run([row])[0], together[row])


def test_where_cells_and_lists_lie_changes_nothing(kernels: str) -> None:
    call = Call.random([*prompt(40, start=30, before=700), (0, 20)])
    expected = call.run()
    order = torch.randperm(len(call.keys), generator=torch.Generator().manual_seed(5))
    places = torch.empty_like(order)
    places[order] = torch.arange(len(order))
    moved = replace(
        call,
        keys=call.keys[order],
        values=call.values[order],
        cells=torch.cat([torch.zeros(1024, dtype=torch.int32), places[call.cells.long()].int()]),
        starts=call.starts + 1024,
    )
    assert torch.equal(moved.run(), expected)


@pytest.mark.parametrize("types", TYPES, ids=name)
def test_nan_reaches_only_the_rows_that_see_it(kernels: str, types: Types) -> None:
    rows = [*prompt(30, before=50), *window(40, 20, 512, 60), (1024, 70), *[(1024, 80)] * 9]
    call = Call.random(rows, types=types)
    expected = call.run()
    for kind, seen_from in ((call.keys, 60), (call.values, 530), (call.values, 1090)):
        cell = call.cells[seen_from].long()
        kept = kind[cell].clone()
        kind[cell] = ops.kv_pack(torch.full((2, 64), torch.nan), types[0 if kind is call.keys else 1])
        result = call.run()
        for row, (start, count) in enumerate(rows):
            if start <= seen_from < start + count:
                assert result[row].isnan().all()
            else:
                assert torch.equal(result[row], expected[row])
        kind[cell] = kept


row_lists = st.lists(
    st.one_of(
        st.builds(prompt, st.integers(1, 70), st.integers(0, 1500), st.integers(0, 400)),
        st.builds(window, st.integers(1, 70), st.integers(1, 600), st.integers(0, 1500), st.integers(0, 300)),
        st.builds(chunked, st.integers(1, 40), st.integers(1, 50), st.integers(0, 100)),
        st.builds(
            lambda count, start, seen: [(start, seen)] * count,
            st.integers(1, 12), st.integers(0, 1500), st.integers(0, 700),
        ),
    ),
    min_size=1,
    max_size=4,
).map(lambda parts: [row for part in parts for row in part][:40])  # fmt: skip


@pytest.mark.slow
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=row_lists,
    group=st.sampled_from([1, 2, 4, 5, 9]),
    kv_heads=st.integers(1, 2),
    blocks=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    odd=st.tuples(st.integers(1, 140), st.integers(1, 140)),
    types=st.tuples(st.sampled_from(ops.KV_TYPES), st.sampled_from(ops.KV_TYPES)),
    softcap=st.sampled_from([0.0, 4.0]),
    with_sinks=st.booleans(),
    threads=st.integers(1, 5),
    seed=st.integers(0, 2**31),
)
def test_any_call(
    kernels: str,
    rows: list[tuple[int, int]],
    group: int,
    kv_heads: int,
    blocks: tuple[int, int],
    odd: tuple[int, int],
    types: Types,
    softcap: float,
    with_sinks: bool,
    threads: int,
    seed: int,
) -> None:
    dims = [
        32 * full if kind.is_quantized else any_size
        for kind, full, any_size in zip(types, blocks, odd, strict=True)
    ]
    call = Call.random(rows, (group * kv_heads, kv_heads), (dims[0], dims[1]), types, seed)
    sinks = torch.linspace(-3, 3, group * kv_heads) if with_sinks and not softcap else None
    before = ops.threads()
    try:
        ops.set_threads(threads)
        result = call.run(scale=dims[0] ** -0.5, softcap=softcap, sinks=sinks)
    finally:
        ops.set_threads(before)
    close(result, exact(call, dims[0] ** -0.5, softcap, sinks))
    row = seed % len(rows)
    assert torch.equal(call.run([row], scale=dims[0] ** -0.5, softcap=softcap, sinks=sinks)[0], result[row])


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

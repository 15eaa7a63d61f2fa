"""Attention over index lists against torch's own attention in float64."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from puna import _native
from puna.gguf import GGMLType
from puna.ops import KV_TYPES
from tests.ops.attention_calls import (
    FLOATS,
    HEADS,
    TYPES,
    WINDOWS,
    Call,
    Types,
    check,
    chunked,
    close,
    exact,
    multiplies_words,
    name,
    prompt,
    tolerance,
    window,
)
from tests.ops.torch_ops import TorchOps

DIMS = [
    (64, 64), (32, 32), (80, 80), (72, 72), (96, 96), (128, 128), (256, 256), (192, 128), (12, 20), (5, 3),
    (64, 36),
]  # fmt: skip


@pytest.fixture(autouse=True)
def _one_torch_thread() -> Iterator[None]:
    """Give torch one thread: the exact results are small sums, and threads would only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("types", FLOATS, ids=name)
@pytest.mark.parametrize("dims", DIMS, ids=str)
def test_every_head_dimension_matches_torch(ops: TorchOps, dims: tuple[int, int], types: Types) -> None:
    call = Call.random([*prompt(19), (19, 64), (83, 65), (0, 130)], dims=dims, types=types)
    check(ops, call)


@pytest.mark.parametrize("types", TYPES, ids=name)
@pytest.mark.parametrize("heads", HEADS, ids=str)
def test_every_sharing_of_keys_between_heads_matches_torch(
    ops: TorchOps, heads: tuple[int, int], types: Types
) -> None:
    call = Call.random([*prompt(21, before=55), (76, 3), (79, 1)], heads, (32, 64), types)
    check(ops, call)


#: Root mean square error of storing one normal number, uniform over a step: the largest of 32 numbers (2.6)
#: divided by the codes to one side, or the last bit of a mantissa.
ROUNDING = {
    GGMLType.F32: 0.0,
    GGMLType.F16: 2**-10 / 12**0.5,
    GGMLType.BF16: 2**-7 / 12**0.5,
    GGMLType.Q8_0: 2.6 / 127 / 12**0.5,
    GGMLType.Q4_0: 2.6 / 8 / 12**0.5,
}


@pytest.mark.parametrize("types", TYPES, ids=name)
def test_rounding_in_the_cache_costs_no_more_than_its_step_explains(ops: TorchOps, types: Types) -> None:
    """An error in keys moves scores, and so shares, by the same factor; one in values moves the result."""
    rows = [(0, 300), (40, 1), (10, 64)]
    kept, stored = Call.random(rows, types=(GGMLType.F32, GGMLType.F32)), Call.random(rows, types=types)
    expected = exact(kept, 0.125)
    error = (stored.run(ops, scale=0.125).double() - expected).square().mean().sqrt()
    bound = (ROUNDING[types[0]] ** 2 + ROUNDING[types[1]] ** 2) ** 0.5
    assert error <= (bound + 1e-6) * expected.square().mean().sqrt()


@pytest.mark.parametrize("count", [1, 2, 63, 64, 65, 511, 512, 513, 1024, 1600])
def test_lengths_around_tiles_and_chunks_match_torch(ops: TorchOps, count: int) -> None:
    call = Call.random([(7, count)], dims=(64, 64))
    check(ops, call)


@pytest.mark.parametrize("kind", KV_TYPES, ids=lambda kind: kind.name)
@pytest.mark.parametrize("heads", [(8, 1), (6, 2)], ids=str)
def test_values_may_be_the_last_numbers_of_keys(
    ops: TorchOps, heads: tuple[int, int], kind: GGMLType
) -> None:
    """The bits are the same as if the values were stored again, so latents need no second storage."""
    rows = [*prompt(9, before=60), (3, 600), (500, 0)]
    call = Call.random(rows, heads, (96, 64), (kind, kind))
    call.values = call.keys[:, :, call.keys.shape[2] // 3 :].contiguous()
    twice, sinks = check(ops, call), torch.linspace(-2, 4, heads[0])
    capped = call.run(ops, softcap=5.0, sinks=sinks)
    call.values = 64  # type: ignore[assignment]
    assert torch.equal(call.run(ops), twice)
    assert torch.equal(call.run(ops, softcap=5.0, sinks=sinks), capped)


def test_values_that_are_not_whole_blocks_of_the_keys_are_refused(kernels: TorchOps) -> None:
    for kind, dim in ((GGMLType.F16, 97), (GGMLType.F16, 0), (GGMLType.Q8_0, 48)):
        call = Call.random([(0, 5)], dims=(96, 64), types=(kind, kind))
        call.values = dim  # type: ignore[assignment]
        with pytest.raises(ValueError, match=f"attention: the last {dim} numbers of keys of 96"):
            call.run(kernels)


def test_capped_scores_match_torch(ops: TorchOps) -> None:
    call = Call.random([*prompt(9), (9, 600)])
    check(ops, call, 1.0, softcap=3.0)


def test_sinks_match_torch(ops: TorchOps) -> None:
    call = Call.random([*prompt(9), (9, 600)])
    sinks = torch.tensor([-50.0, -3.0, 0.0, 1.0, 3.0, 5.0, 30.0, 100.0])
    check(ops, call, sinks=sinks)


@pytest.mark.parametrize("reach", [0, 3, 130, 2000])
@pytest.mark.parametrize("own", ["last", "anywhere"])
def test_a_bias_by_distance_matches_torch(ops: TorchOps, own: str, reach: int) -> None:
    call = Call.random([*prompt(9), *[(9, 130)] * 70, (140, 600), (20, 0)], heads=(6, 2))
    random = torch.Generator().manual_seed(reach)
    bias = 3 * torch.randn(6, 2 * reach + 1, generator=random)
    given: dict[str, Any] = {"bias": bias}
    if own == "anywhere":
        given["places"] = torch.randint(740, (len(call.q),), generator=random, dtype=torch.int32)
    check(ops, call, **given)
    check(ops, call, softcap=3.0, **given)


def test_rows_that_see_nothing_are_zero(ops: TorchOps) -> None:
    call = Call.random([(0, 0), (0, 3), (3, 0), (0, 3)])
    for extra in ({}, {"sinks": torch.zeros(8)}, {"softcap": 5.0}):
        result = call.run(ops, **extra)
        assert torch.equal(result[[0, 2]], torch.zeros(2, 8, 64))
        assert result[[1, 3]].abs().min() > 0


def test_a_call_without_rows_gives_no_rows(ops: TorchOps) -> None:
    assert Call.random([]).run(ops).shape == (0, 8, 64)


def test_large_scores_do_not_overflow(ops: TorchOps) -> None:
    call = Call.random(prompt(70), heads=(2, 2))
    seen = call.cells[[row // 2 for row in range(70)]].long()
    call.q = call.keys[seen].float()  # so that each row's scores have a clear largest one
    close(call.run(ops, scale=1000.0), call.values[seen].double(), 1e-4)


def test_a_row_that_sees_one_cell_gets_its_value(ops: TorchOps) -> None:
    call = Call.random([(4, 1)], heads=(2, 2))
    result, value = call.run(ops)[0], call.values[call.cells[4].long()].float()
    step = value.abs().amax(-1, keepdim=True) / 32767 if multiplies_words(ops, GGMLType.F16) else 0
    assert ((result - value).abs() <= 0.501 * step).all()


@pytest.mark.parametrize("dim", [1, 31, 64, 128, 576])
@pytest.mark.parametrize("parallel", [True, False])
def test_sums_at_their_bounds_do_not_overflow(ops: TorchOps, dim: int, parallel: bool) -> None:
    """Queries and keys of one direction, or of one channel, give the largest sums; so do equal values."""
    call = Call.random([(0, count) for count in (1, 2, 31, 32, 33, 64, 128, 600)], (2, 1), (dim, dim))
    direction = torch.ones(dim) if parallel else torch.eye(dim)[dim // 2]
    signs = torch.randn(len(call.keys), generator=torch.Generator().manual_seed(1)).sign()
    call.q = direction.expand(call.q.shape).contiguous() * 3e4
    call.keys = (signs[:, None, None] * direction * 2e4).half()
    call.values = (signs[:, None, None].expand(call.values.shape).contiguous() * 6e4).half()
    norm = float(direction.square().sum())
    close(call.run(ops, scale=1 / (6e8 * norm)), exact(call, 1 / (6e8 * norm)), 5e-4)


@pytest.mark.parametrize("types", TYPES, ids=name)
def test_zeros_are_like_other_numbers(ops: TorchOps, types: Types) -> None:
    call = Call.random([*prompt(40), (0, 90)], types=types)
    call.q[3:30:4] = 0
    for held in (call.keys, call.values):
        held[call.cells[[0, 7, 35, 36]].long()] = 0
    check(ops, call)


def spread(name: str, numbers: Tensor) -> Tensor:
    """Return normal numbers [cells, heads, dim] with some of a model's outliers."""
    numbers = numbers.clone()
    if name == "channels":
        numbers[..., 3] *= 30
        numbers[..., 10] += 100
    if name == "cells":
        numbers[::17] *= 40
        numbers[5::29] /= 40
    return numbers


@pytest.mark.parametrize("of_values", ["normal", "channels", "cells"])
@pytest.mark.parametrize("of_keys", ["normal", "channels"])
@pytest.mark.parametrize(
    ("count", "dim"),
    [
        (40, 64), (40, 128), pytest.param(5000, 128, marks=pytest.mark.slow),
        pytest.param(5000, 64, marks=pytest.mark.thorough),
    ],
)  # fmt: skip
def test_arithmetic_costs_less_than_storing_16_bits(
    kernels: TorchOps, count: int, dim: int, of_keys: str, of_values: str
) -> None:
    scale, of_storing, of_arithmetic = dim**-0.5, torch.tensor(0.0), torch.tensor(0.0)
    for seed in range(4):
        random = torch.Generator().manual_seed(seed)
        call = Call.random([(0, count)] * 4, (8, 2), (dim, dim), seed=seed)
        keys, values = (torch.randn(len(call.keys), 2, dim, generator=random) for _ in range(2))
        keys, values = spread(of_keys, keys), spread(of_values, values)
        kept = replace(call, keys=keys, values=values)
        stored = replace(call, keys=keys.half(), values=values.half())
        expected = exact(stored, scale)
        of_storing = of_storing + (expected - exact(kept, scale)).square().mean()
        of_arithmetic = of_arithmetic + (stored.run(kernels, scale=scale).double() - expected).square().mean()
    assert of_arithmetic <= of_storing


@pytest.mark.parametrize("rows", WINDOWS.values(), ids=WINDOWS)
@pytest.mark.parametrize(
    "extra", [{}, {"softcap": 5.0}, {"sinks": torch.linspace(-2, 4, 8)}], ids=["plain", "cap", "sinks"]
)
def test_prompts_windows_and_chunks_match_torch(
    ops: TorchOps, rows: list[tuple[int, int]], extra: dict[str, Any]
) -> None:
    call = Call.random(rows, dims=(32, 64))
    check(ops, call, **extra)


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
    types=st.tuples(st.sampled_from(KV_TYPES), st.sampled_from(KV_TYPES)),
    softcap=st.sampled_from([0.0, 4.0]),
    with_sinks=st.booleans(),
    threads=st.integers(1, 5),
    seed=st.integers(0, 2**31),
)
def test_any_call_matches_torch(
    kernels: TorchOps,
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
    before = _native.threads()
    try:
        _native.set_threads(threads)
        result = call.run(kernels, scale=dims[0] ** -0.5, softcap=softcap, sinks=sinks)
    finally:
        _native.set_threads(before)
    expected = exact(call, dims[0] ** -0.5, softcap, sinks)
    assert (result.double() - expected).abs().max() <= tolerance(kernels, call, dims[0] ** -0.5, expected)
    row = seed % len(rows)
    assert torch.equal(
        call.run(kernels, [row], scale=dims[0] ** -0.5, softcap=softcap, sinks=sinks)[0], result[row]
    )

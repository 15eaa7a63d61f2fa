"""Attention kernels against torch's attention in float64, and a row's bits against its company."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from puna.gguf import GGMLType
from puna.ops import KV_TYPES
from tests.ops.attention_calls import TYPES, WINDOWS, Call, Types, chunked, exact, name, prompt, window
from tests.ops.gpu.launchers import Launchers
from tests.ops.torch_ops import kv_pack, kv_type

attention = pytest.importorskip("puna.ops.gpu.kernels.attention")

#: Rows of decoding, a short prompt (its cells are split too) and a long one: at most 16, at most 256, more.
FEW = [(0, 70), (3, 1), (40, 33), (7, 0)]
SHORT = [*prompt(11, before=30), (3, 20), (0, 0), (90, 17), *window(5, 9, 100, 20)]
#: All of a long prompt but its last rows see nothing, which takes the interpreter no time.
LONG = [*[(0, 0)] * 240, *SHORT]


@pytest.fixture
def gpu(device: torch.device) -> Launchers:
    return Launchers(device, attention)


def planes(held: Tensor) -> tuple[Tensor, Tensor | None, GGMLType]:
    """Return codes, scales and type of a tensor laid out like storage."""
    kind = kv_type(held)
    if not kind.is_quantized:
        return held, None, kind
    codes, scales = held[..., 2:].flatten(-2).contiguous(), held[..., :2].contiguous()
    dtype = torch.int8 if kind is GGMLType.Q8_0 else torch.uint8
    return codes.view(dtype), scales.view(torch.float16).squeeze(-1), kind


def run(
    gpu: Launchers, call: Call, scale: float = 0.2, rows: list[int] | None = None, **settings: Any
) -> Tensor:
    rows = list(range(len(call.q))) if rows is None else rows
    values = call.values if isinstance(call.values, int) else planes(call.values)
    return gpu.attention(
        call.q[rows], planes(call.keys), values, call.cells, call.starts[rows], call.counts[rows], scale,
        **settings,
    )  # fmt: skip


def close(got: Tensor, expected: Tensor, types: Types) -> None:
    """Compare by what `attention` promises for the number of rows and the types."""
    rounds = len(got) > attention.DECODING_ROWS and GGMLType.F16 in types
    rounds |= types[0].is_quantized or types[1].is_quantized
    error = (got.double() - expected).abs().max() / expected.abs().max()
    assert error < (1e-3 if rounds else 1e-5)


@pytest.mark.parametrize("types", TYPES, ids=name)
@pytest.mark.parametrize("rows", [FEW, SHORT], ids=["few", "short"])
def test_every_pair_of_types_matches_torch(gpu: Launchers, rows: list[tuple[int, int]], types: Types) -> None:
    call = Call.random(rows, (2, 1), (64, 32), types)
    close(run(gpu, call), exact(call, 0.2), types)


@pytest.mark.parametrize("heads", [(4, 2), (9, 3), (20, 1), (40, 1)])
def test_every_sharing_of_keys_matches_torch(gpu: Launchers, heads: tuple[int, int]) -> None:
    for rows in ([(0, 20), (9, 20)], [*prompt(15, before=5), (3, 20), (0, 0)]):
        call = Call.random(rows, heads, (16, 16))
        close(run(gpu, call), exact(call, 0.2), (GGMLType.F16, GGMLType.F16))


@pytest.mark.parametrize("dims", [(80, 80), (12, 20), (5, 3), (64, 36), (192, 128)], ids=str)
def test_every_head_dimension_matches_torch(gpu: Launchers, dims: tuple[int, int]) -> None:
    for rows in (FEW, SHORT):
        call = Call.random(rows, (2, 1), dims)
        close(run(gpu, call), exact(call, 0.2), (GGMLType.F16, GGMLType.F16))


@pytest.mark.parametrize("kind", KV_TYPES, ids=lambda kind: kind.name)
def test_values_may_be_the_last_numbers_of_keys(gpu: Launchers, kind: GGMLType) -> None:
    for rows in (FEW, SHORT):
        call = Call.random(rows, (2, 1), (96, 64), (kind, kind))
        call.values = call.keys[:, :, call.keys.shape[2] // 3 :].contiguous()
        twice = run(gpu, call)
        close(twice, exact(call, 0.2), (kind, kind))
        call.values = 64  # type: ignore[assignment]
        assert torch.equal(run(gpu, call), twice)


@pytest.mark.parametrize("rows", [FEW, SHORT, LONG], ids=["few", "short", "long"])
@pytest.mark.parametrize("reach", [3, pytest.param(2000, marks=pytest.mark.thorough)])
def test_caps_sinks_and_biases_match_torch(gpu: Launchers, rows: list[tuple[int, int]], reach: int) -> None:
    call, types = Call.random(rows, (2, 1), (16, 16), (GGMLType.F32, GGMLType.F32)), (GGMLType.F32,) * 2
    random = torch.Generator().manual_seed(reach)
    bias = 3 * torch.randn(2, 2 * reach + 1, generator=random)
    places = torch.randint(150, (len(rows),), generator=random, dtype=torch.int32)
    sinks = torch.tensor([-3.0, 5.0])
    for settings in ({"softcap": 3.0}, {"sinks": sinks}, {"bias": bias, "places": places}):
        close(run(gpu, call, **settings), exact(call, 0.2, **settings), types)  # type: ignore[arg-type]
    settings = {"softcap": 3.0, "bias": bias}
    close(run(gpu, call, **settings), exact(call, 0.2, **settings), types)  # type: ignore[arg-type]


def test_rows_that_see_nothing_are_zero(gpu: Launchers) -> None:
    for rows in ([(0, 0), (0, 3)], [(0, 0), (0, 3)] * 9, [(0, 0)] * 300):
        result = run(gpu, Call.random(rows, (2, 1), (16, 16)), sinks=torch.zeros(2))
        assert torch.equal(result[::2], torch.zeros_like(result[::2]))


def test_a_call_without_rows_gives_no_rows(gpu: Launchers) -> None:
    assert run(gpu, Call.random([], (2, 1), (16, 32))).shape == (0, 2, 32)


def test_a_row_that_sees_one_cell_gets_its_value(gpu: Launchers) -> None:
    for count in (1, 17):
        call = Call.random([(4, 1)] * count, (2, 2), (16, 16))
        assert torch.equal(run(gpu, call)[0], call.values[call.cells[4].long()].float())


@pytest.mark.parametrize("size", [1e-30, 1e-6, 1e6, 1e30])
def test_queries_of_any_size_match_torch(gpu: Launchers, size: float) -> None:
    call = Call.random([(0, 40), (3, 9)], (2, 1), (16, 16))
    call.q *= size
    close(run(gpu, call, 0.2 / size), exact(call, 0.2 / size), (GGMLType.F16, GGMLType.F16))


def test_a_row_has_the_same_bits_whatever_the_batch(gpu: Launchers) -> None:
    rows = [*prompt(9, before=20), (100, 20), (3, 90), *chunked(8, 5, before=60), *window(6, 7, before=9)]
    for types in ((GGMLType.F16, GGMLType.F16), (GGMLType.Q8_0, GGMLType.Q4_0)):
        call = Call.random(rows, (4, 1), (32, 32), types)
        together = run(gpu, call)
        backwards = list(reversed(range(len(rows))))
        assert torch.equal(run(gpu, call, rows=backwards), together[backwards])
        assert torch.equal(run(gpu, call, rows=list(range(5, 23))), together[5:23])
        few = run(gpu, call, rows=[0, 9, 10, 11, 24])
        assert torch.equal(run(gpu, call, rows=[10]), few[2:3])


@pytest.mark.thorough
@pytest.mark.parametrize("rows", WINDOWS.values(), ids=WINDOWS)
def test_prompts_windows_and_chunks_match_torch(gpu: Launchers, rows: list[tuple[int, int]]) -> None:
    call = Call.random(rows, (4, 1), (32, 32))
    together = run(gpu, call)
    close(together, exact(call, 0.2), (GGMLType.F16, GGMLType.F16))
    if len(rows) > attention.DECODING_ROWS:
        assert torch.equal(run(gpu, call, rows=list(range(1, 18))), together[1:18])


def test_the_placement_of_cells_and_lists_changes_no_bit(gpu: Launchers) -> None:
    for rows in ([(30, 70), (0, 20)], [*prompt(17, start=30, before=20), (0, 20)]):
        call = Call.random(rows, (2, 1), (16, 16))
        order = torch.randperm(len(call.keys), generator=torch.Generator().manual_seed(5))
        places = torch.empty_like(order)
        places[order] = torch.arange(len(order))
        moved = replace(
            call,
            keys=call.keys[order],
            values=call.values[order],
            cells=torch.cat([torch.zeros(512, dtype=torch.int32), places[call.cells.long()].int()]),
            starts=call.starts + 512,
        )
        assert torch.equal(run(gpu, moved), run(gpu, call))


@pytest.mark.parametrize(
    "types", [TYPES[1], *(pytest.param(each, marks=pytest.mark.thorough) for each in TYPES[2:])], ids=name
)
def test_nan_reaches_only_the_rows_that_see_it(gpu: Launchers, types: Types) -> None:
    for rows in ([(0, 40), (20, 40), (0, 20)], [*prompt(15, before=15), *window(9, 8, 32, 30), (64, 9)]):
        call = Call.random(rows, (2, 1), (32, 32), types)
        expected = run(gpu, call)
        for kind, seen_from in ((call.keys, 25), (call.values, 23), (call.values, 55)):
            cell = call.cells[seen_from].long()
            kept = kind[cell].clone()
            spoiled = torch.full((1, 32), torch.nan)
            kind[cell] = kv_pack(spoiled, types[0 if kind is call.keys else 1])
            result = run(gpu, call)
            for row, (start, count) in enumerate(rows):
                if start <= seen_from < start + count:
                    assert result[row].isnan().all()
                else:
                    assert torch.equal(result[row], expected[row])
            kind[cell] = kept


def test_cells_that_are_not_listed_are_not_read(gpu: Launchers) -> None:
    """Memory beyond the rows in use may not exist; here it is NaN, and so are unlisted cells."""
    for rows in ([(5, 40)], prompt(17, start=5, before=20)):
        call = Call.random(rows, (2, 1), (16, 16))
        listed = call.cells[5:].long()
        clean = run(gpu, call)
        unlisted = torch.ones(len(call.keys), dtype=torch.bool)
        unlisted[listed] = False
        call.keys[unlisted], call.values[unlisted] = torch.nan, torch.nan
        assert torch.equal(run(gpu, call), clean)

"""Attention kernels against torch's attention in float64, and a row's bits against its company."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from puna.gguf import GGMLType
from puna.ops import KV_TYPES
from tests.ops.attention_calls import TYPES, WINDOWS, Call, Types, chunked, exact, name, prompt, window
from tests.ops.gpu.launchers import Launchers
from tests.ops.gpu.planes import planes
from tests.ops.torch_ops import kv_pack

attention = pytest.importorskip("puna.ops.gpu.kernels.attention")

#: Rows of batches that are computed in each way. A few rows can be computed in any of them, which is cheaper.
REGIMES = {"decoding": 1, "short": attention.DECODING_ROWS + 1, "long": attention.SHORT_ROWS + 1}
FEW = [(3, 50), (7, 0)]
#: Sequences of which one lies in two tiles where eight rows of four heads are one: lists and windows, and
#: rows without cells.
MANY = [*prompt(3, before=15), (30, 17), (0, 0), *window(4, 9, 40, 8)]
ROWS = {"decoding": FEW, "short": MANY, "long": MANY}

#: Batches that choose the same ways by their number of rows.
DECODING = [(0, 70), (3, 1), (40, 33), (7, 0)]
SHORT = [*prompt(11, before=30), (3, 20), (0, 0), (90, 17), *window(5, 9, 100, 20)]
#: All of a long prompt but its last rows see nothing, which takes the interpreter little time.
LONG = [*[(0, 0)] * 240, *SHORT]

F16, F32 = (GGMLType.F16,) * 2, (GGMLType.F32,) * 2
HEADS = (4, 1)


@pytest.fixture
def gpu(device: torch.device) -> Launchers:
    return Launchers(device, attention)


def run(
    gpu: Launchers,
    call: Call,
    regime: str = "",
    scale: float = 0.2,
    rows: list[int] | None = None,
    **settings: Any,
) -> Tensor:
    """Compute some of a call's rows as batches of a regime are, by default that of their number."""
    rows = list(range(len(call.q))) if rows is None else rows
    keys = planes(call.keys)
    values = call.values if isinstance(call.values, int) else planes(call.values)
    if regime:
        shared = isinstance(values, int)
        shape = attention.Shape(
            call.q.shape[1], call.keys.shape[1], call.q.shape[2],
            values if shared else values[0].shape[2] * (2 if values[2] is GGMLType.Q4_0 else 1),
            keys[2], keys[2] if shared else values[2], shared,
        )  # fmt: skip
        family = attention.family_of(gpu.device)
        settings["configuration"] = attention.choose(shape, REGIMES[regime], family)
    return gpu.attention(
        call.q[rows], keys, values, call.cells, call.starts[rows], call.counts[rows], scale, **settings
    )


def close(got: Tensor, expected: Tensor, types: Types = F16, regime: str = "") -> None:
    """Compare by what `attention` promises for the number of rows and the types."""
    rounds = regime != "decoding" if regime else len(got) > attention.DECODING_ROWS
    rounds &= GGMLType.F16 in types
    rounds |= types[0].is_quantized or types[1].is_quantized
    error = (got.double() - expected).abs().max() / expected.abs().max()
    assert error < (1e-3 if rounds else 1e-5)


@pytest.mark.parametrize(
    "regime", ["decoding", *(pytest.param(each, marks=pytest.mark.thorough) for each in ("short", "long"))]
)
def test_the_number_of_rows_chooses_how_they_are_computed(gpu: Launchers, regime: str) -> None:
    count = {"decoding": 2, "short": attention.DECODING_ROWS + 1, "long": attention.SHORT_ROWS + 1}[regime]
    call = Call.random([(0, 0)] * (count - 1) + [(3, 40)], HEADS, (16, 16))
    assert torch.equal(run(gpu, call), run(gpu, call, regime))


def test_every_family_of_devices_has_tiles_for_all_heads_and_types() -> None:
    for family, dim, keys, values in itertools.product(
        attention.FAMILIES, (64, 256, 512), KV_TYPES, KV_TYPES
    ):
        shape = attention.Shape(8, 2, dim, dim, keys, values)
        for rows in REGIMES.values():
            assert attention.choose(shape, rows, family).block >= 16


def test_single_rows_are_multiplied_by_the_instructions_of_tiles() -> None:
    """A warp has as many rows; on Hopper four have 64, elsewhere sums take another order in other tiles."""
    for family, dim, keys in itertools.product(attention.FAMILIES, (64, 256, 512), KV_TYPES):
        shape = attention.Shape(8, 2, dim, dim, keys, keys)
        single, tiles = attention.choose(shape, attention.DECODING_ROWS + 1, family).launches(shape)
        assert single.queries * tiles.warps == tiles.queries * single.warps
        assert single.queries == (min(64, tiles.queries) if family == "hopper" else tiles.queries)
        assert (single.block, single.splits, single.parts) == (tiles.block, tiles.splits, tiles.parts)


@pytest.mark.parametrize(
    "types", [*TYPES[:5], *(pytest.param(each, marks=pytest.mark.thorough) for each in TYPES[5:])], ids=name
)
@pytest.mark.parametrize("regime", ["decoding", pytest.param("short", marks=pytest.mark.thorough), "long"])
def test_every_pair_of_types_matches_torch(gpu: Launchers, regime: str, types: Types) -> None:
    call = Call.random(ROWS[regime], HEADS, (64, 32), types)
    close(run(gpu, call, regime), exact(call, 0.2), types, regime)


@pytest.mark.thorough
@pytest.mark.parametrize("types", TYPES, ids=name)
@pytest.mark.parametrize("rows", [DECODING, SHORT, LONG], ids=list(REGIMES))
def test_every_pair_of_types_matches_torch_in_larger_batches(
    gpu: Launchers, rows: list[tuple[int, int]], types: Types
) -> None:
    call = Call.random(rows, (2, 1), (64, 32), types)
    close(run(gpu, call), exact(call, 0.2), types)


@pytest.mark.parametrize(
    ("regime", "heads"), [("decoding", (20, 1)), ("short", (9, 3)), ("long", (40, 1))], ids=str
)
def test_every_sharing_of_keys_matches_torch(gpu: Launchers, regime: str, heads: tuple[int, int]) -> None:
    call = Call.random([(0, 20)], heads, (16, 16))
    close(run(gpu, call, regime), exact(call, 0.2), F16, regime)


@pytest.mark.thorough
@pytest.mark.parametrize("heads", [(4, 2), (9, 3), (20, 1), (40, 1)])
def test_every_sharing_of_keys_matches_torch_in_larger_batches(
    gpu: Launchers, heads: tuple[int, int]
) -> None:
    for rows in ([(0, 20), (9, 20)], [*prompt(15, before=5), (3, 20), (0, 0)]):
        call = Call.random(rows, heads, (16, 16))
        close(run(gpu, call), exact(call, 0.2))


@pytest.mark.parametrize(("regime", "dims"), [("decoding", (12, 20)), ("long", (5, 3))], ids=str)
def test_odd_head_dimensions_match_torch(gpu: Launchers, regime: str, dims: tuple[int, int]) -> None:
    call = Call.random([(3, 20)], HEADS, dims)
    close(run(gpu, call, regime), exact(call, 0.2), F16, regime)


@pytest.mark.thorough
@pytest.mark.parametrize("dims", [(80, 80), (12, 20), (5, 3), (64, 36), (192, 128), (256, 256)], ids=str)
def test_every_head_dimension_matches_torch(gpu: Launchers, dims: tuple[int, int]) -> None:
    for rows in (DECODING, SHORT):
        call = Call.random(rows, (2, 1), dims)
        close(run(gpu, call), exact(call, 0.2))


def test_values_may_be_the_last_numbers_of_keys(gpu: Launchers) -> None:
    check_shared_values(gpu, "decoding", GGMLType.Q8_0)
    check_shared_values(gpu, "long", GGMLType.F16)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KV_TYPES, ids=lambda kind: kind.name)
@pytest.mark.parametrize("regime", REGIMES)
def test_values_of_every_type_may_be_the_last_numbers_of_keys(
    gpu: Launchers, regime: str, kind: GGMLType
) -> None:
    check_shared_values(gpu, regime, kind)


def check_shared_values(gpu: Launchers, regime: str, kind: GGMLType) -> None:
    call = Call.random(ROWS[regime], HEADS, (96, 64), (kind, kind))
    call.values = call.keys[:, :, call.keys.shape[2] // 3 :].contiguous()
    twice = run(gpu, call, regime)
    close(twice, exact(call, 0.2), (kind, kind), regime)
    call.values = 64  # type: ignore[assignment]
    assert torch.equal(run(gpu, call, regime), twice)


def settings_of(rows: int, heads: int, reach: int) -> dict[str, Any]:
    random = torch.Generator().manual_seed(reach)
    return {
        "bias": 3 * torch.randn(heads, 2 * reach + 1, generator=random),
        "places": torch.randint(150, (rows,), generator=random, dtype=torch.int32),
        "sinks": torch.linspace(-3, 5, heads),
        "softcap": 3.0,
    }


@pytest.mark.parametrize("names", [("sinks", "bias", "places"), ("softcap", "bias")], ids="-".join)
@pytest.mark.parametrize("regime", REGIMES)
def test_caps_sinks_and_biases_match_torch(gpu: Launchers, regime: str, names: tuple[str, ...]) -> None:
    call = Call.random([(3, 30), (4, 30)], HEADS, (16, 16), F32)
    every = settings_of(2, 4, reach=3)
    settings = {name: every[name] for name in names}
    close(run(gpu, call, regime, **settings), exact(call, 0.2, **settings), F32, regime)


@pytest.mark.thorough
@pytest.mark.parametrize("rows", [DECODING, SHORT, LONG], ids=list(REGIMES))
@pytest.mark.parametrize("reach", [3, 2000])
@pytest.mark.parametrize(
    "names", [("softcap",), ("sinks",), ("bias", "places"), ("softcap", "bias")], ids="-".join
)
def test_each_cap_sink_and_bias_matches_torch_in_larger_batches(
    gpu: Launchers, rows: list[tuple[int, int]], reach: int, names: tuple[str, ...]
) -> None:
    call = Call.random(rows, (2, 1), (16, 16), F32)
    every = settings_of(len(rows), 2, reach)
    settings = {name: every[name] for name in names}
    close(run(gpu, call, **settings), exact(call, 0.2, **settings), F32)


@pytest.mark.parametrize("regime", ["decoding", "long"])
def test_rows_that_see_nothing_are_zero(gpu: Launchers, regime: str) -> None:
    call = Call.random([(0, 0), (0, 3)], (2, 1), (16, 16))
    result = run(gpu, call, regime, sinks=torch.zeros(2))
    assert torch.equal(result[0], torch.zeros_like(result[0]))


def test_a_call_without_rows_gives_no_rows(gpu: Launchers) -> None:
    assert run(gpu, Call.random([], (2, 1), (16, 32))).shape == (0, 2, 32)


@pytest.mark.parametrize("regime", ["decoding", "long"])
def test_a_row_that_sees_one_cell_gets_its_value(gpu: Launchers, regime: str) -> None:
    call = Call.random([(4, 1)], (1, 1), (16, 16))
    assert torch.equal(run(gpu, call, regime)[0], call.values[call.cells[4].long()].float())


@pytest.mark.parametrize("size", [1e-30, 1e30])
def test_queries_of_any_size_match_torch(gpu: Launchers, size: float) -> None:
    call = Call.random([(3, 9)], (2, 1), (16, 16))
    call.q *= size
    close(run(gpu, call, "long", 0.2 / size), exact(call, 0.2 / size), F16, "long")


@pytest.mark.parametrize("regime", ["long", pytest.param("short", marks=pytest.mark.thorough)])
def test_a_row_has_the_same_bits_whatever_shares_its_tile(gpu: Launchers, regime: str) -> None:
    call = Call.random(MANY, HEADS, (16, 16))
    together = run(gpu, call, regime)
    backwards = list(reversed(range(len(MANY))))
    assert torch.equal(run(gpu, call, regime, rows=backwards), together[backwards])
    assert torch.equal(run(gpu, call, regime, rows=[2, 3, 4]), together[2:5])


@pytest.mark.thorough
@pytest.mark.parametrize("types", [F16, (GGMLType.Q8_0, GGMLType.Q4_0)], ids=name)
def test_a_row_has_the_same_bits_whatever_the_batch(gpu: Launchers, types: Types) -> None:
    rows = [*prompt(9, before=20), (100, 20), (3, 90), *chunked(8, 5, before=60), *window(6, 7, before=9)]
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
    close(together, exact(call, 0.2))
    if len(rows) > attention.DECODING_ROWS:
        assert torch.equal(run(gpu, call, rows=list(range(1, 18))), together[1:18])


@pytest.mark.parametrize("regime", [pytest.param("decoding", marks=pytest.mark.thorough), "long"])
def test_the_placement_of_cells_and_lists_changes_no_bit(gpu: Launchers, regime: str) -> None:
    call = Call.random([(5, 20)], HEADS, (16, 16))
    assert torch.equal(run(gpu, call.elsewhere(512), regime), run(gpu, call, regime))


def test_nan_reaches_only_the_rows_that_see_it(gpu: Launchers) -> None:
    check_nan(gpu, [*prompt(2, before=15), *window(2, 8, 32, 30)], F16, "long", [(0, 16), (1, 55)])


@pytest.mark.thorough
@pytest.mark.parametrize("types", TYPES[1:], ids=name)
@pytest.mark.parametrize("regime", REGIMES)
def test_nan_of_every_type_reaches_only_the_rows_that_see_it(
    gpu: Launchers, regime: str, types: Types
) -> None:
    rows = [(0, 40), (20, 40), (0, 20), *prompt(12, before=15), *window(9, 8, 32, 30), (64, 9)]
    check_nan(gpu, rows, types, regime, [(0, 25), (1, 23), (1, 55)])


def check_nan(
    gpu: Launchers, rows: list[tuple[int, int]], types: Types, regime: str, spoils: list[tuple[int, int]]
) -> None:
    """Spoil the key (0) or value (1) of one listed cell after another."""
    call = Call.random(rows, HEADS, (32, 32), types)
    expected = run(gpu, call, regime)
    for which, seen_from in spoils:
        held, cell = (call.keys, call.values)[which], call.cells[seen_from].long()
        kept = held[cell].clone()
        held[cell] = kv_pack(torch.full((1, 32), torch.nan), types[which])
        result = run(gpu, call, regime)
        for row, (start, count) in enumerate(rows):
            if start <= seen_from < start + count:
                assert result[row].isnan().all()
            else:
                assert torch.equal(result[row], expected[row])
        held[cell] = kept


@pytest.mark.parametrize("regime", ["decoding", "long"])
def test_cells_that_are_not_listed_are_not_read(gpu: Launchers, regime: str) -> None:
    """Memory beyond the rows in use may not exist; here it is NaN, and so are unlisted cells."""
    call = Call.random([(5, 20)], HEADS, (16, 16))
    listed = call.cells[5:].long()
    clean = run(gpu, call, regime)
    unlisted = torch.ones(len(call.keys), dtype=torch.bool)
    unlisted[listed] = False
    call.keys[unlisted], call.values[unlisted] = torch.nan, torch.nan
    assert torch.equal(run(gpu, call, regime), clean)

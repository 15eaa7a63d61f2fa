"""The kernels that choose cells for sparse attention, against scores by torch in float64."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from puna.gguf import GGMLType
from puna.ops import KV_TYPES
from puna.ops.backend import LIST_ALIGNMENT
from puna.ops.gpu.kernels import indexers
from puna.ops.gpu.triton_backend import TritonBackend
from tests.ops import test_blocks, test_indexer
from tests.ops.attention_calls import prompt
from tests.ops.choices import check_choices_alone
from tests.ops.device_ops import DeviceOps

#: Rows that see nothing, fewer cells than are chosen, as many, and more, in several pieces of their lists.
ROWS = [*prompt(3, before=35), (0, 0), (1024, 40), (512, 130), (2048, 300)]
KINDS = pytest.mark.parametrize("kind", KV_TYPES, ids=lambda kind: kind.name)


@pytest.fixture
def gpu(device: torch.device) -> DeviceOps:
    return DeviceOps(TritonBackend(device))


def cells_of(rows: list[tuple[int, int]] = ROWS, **settings: int) -> test_indexer.Call:
    return test_indexer.Call.random(rows, **{"kind": GGMLType.F32, **settings})  # type: ignore[arg-type]


def blocks_of(rows: list[tuple[int, int]] = ROWS, **settings: int) -> test_blocks.Call:
    return test_blocks.Call.random(rows, **settings)  # type: ignore[arg-type]


@KINDS
def test_the_cells_with_the_largest_scores_are_chosen(gpu: DeviceOps, kind: GGMLType) -> None:
    call = cells_of(kind=kind)
    call.check(call.lists(gpu))


@pytest.mark.parametrize(("heads", "dim"), [(1, 1), (3, 5), (64, 128), (17, 72)], ids=str)
def test_heads_and_keys_may_have_any_size(gpu: DeviceOps, heads: int, dim: int) -> None:
    call = cells_of(heads=heads, dim=dim)
    call.check(call.lists(gpu))


@pytest.mark.parametrize(
    ("group", "most"), [(1, 1), (1, 299), (1, 5000), (2, 2), (7, 35), (16, 128), (130, 130)]
)
def test_any_number_of_groups_may_be_chosen(gpu: DeviceOps, group: int, most: int) -> None:
    call = cells_of(most=most, group=group)
    call.check(call.lists(gpu))


def test_earlier_groups_win_a_tie(gpu: DeviceOps) -> None:
    """All numbers are whole, so scores are equal in whatever order they are summed."""
    for group, most in ((1, 37), (4, 36)):
        call = cells_of(most=most, group=group)
        for each in (call.q, call.weights, call.keys):
            each.round_()
        call.keys[:] = call.keys[0]
        seen = [call.seen(row).tolist() for row in range(len(ROWS))]
        ends = [max(len(each) - len(each) % group, most) for each in seen]
        expected = [each[:most] + each[end:] for each, end in zip(seen, ends, strict=True)]
        assert call.lists(gpu) == expected


def test_among_a_few_different_scores_the_first_are_chosen(gpu: DeviceOps) -> None:
    """Numpy sorts by the score, then by the place."""
    call = cells_of([(0, 3000)], heads=1, dim=1, most=1500)
    call.q[:], call.weights[:] = 1.0, 1.0
    random = torch.Generator().manual_seed(3)
    call.keys[:] = torch.randint(0, 4, call.keys.shape, generator=random).float() * 0.1
    scores = call.keys[call.cells.long(), 0, 0]
    best = scores.argsort(descending=True, stable=True)[:1500].sort().values
    assert call.lists(gpu) == [call.cells[best].tolist()]


def test_nan_counts_as_the_largest_score(gpu: DeviceOps) -> None:
    call = replace(cells_of([(0, 100)]), most=3)
    bad = call.cells[[40, 70]].long()
    call.keys[bad, 0, 2] = torch.nan
    assert set(bad.tolist()) < set(call.lists(gpu)[0])
    call.q[0, 0, 0] = torch.nan
    assert call.lists(gpu)[0] == call.cells[:3].tolist()


def test_infinite_keys_are_scored_as_defined(gpu: DeviceOps) -> None:
    """Tiles have more heads than there are, which must not make NaN of them."""
    call = replace(cells_of([(0, 100)], heads=3), most=5)
    call.q[:], call.weights[:] = call.q.abs(), 1.0
    call.keys[:] = call.keys.abs()
    call.keys[call.cells[[3, 50]].long(), 0] = -torch.inf  # whose scores are 0
    assert not {call.cells[3], call.cells[50]} & set(call.lists(gpu)[0])


def test_neighbours_that_keep_all_share_a_list(gpu: DeviceOps) -> None:
    call = cells_of([*prompt(150), (512, 20), (0, 20)], most=137, dim=8, heads=1)
    lists, begins, counts = gpu.choose_cells(
        call.q, call.weights, call.keys, call.cells, call.starts, call.counts, call.most
    )
    assert begins[:137].unique().numel() == 1
    assert begins[136:].unique().numel() == len(begins) - 136
    assert counts.tolist() == [min(count, 137) for count in call.counts.tolist()]
    assert len(lists) == len(begins) * LIST_ALIGNMENT


@pytest.mark.parametrize(("most", "group"), [(37, 1), (36, 3)])
def test_a_row_chooses_the_same_whatever_else_there_is(gpu: DeviceOps, most: int, group: int) -> None:
    call = cells_of([*ROWS, *prompt(4, before=80)], heads=13, dim=72, most=most, group=group)
    check_choices_alone(call, gpu)


def test_rows_are_scored_in_parts_that_bound_memory(gpu: DeviceOps, monkeypatch: pytest.MonkeyPatch) -> None:
    cells, blocks = cells_of(), blocks_of()
    expected = cells.lists(gpu), blocks.lists(gpu)
    monkeypatch.setattr(indexers, "_MOST_SCORES", 6000)
    assert (cells.lists(gpu), blocks.lists(gpu)) == expected


@KINDS
def test_the_blocks_with_the_largest_products_are_chosen(gpu: DeviceOps, kind: GGMLType) -> None:
    call = blocks_of(kind=kind)
    call.check(call.lists(gpu))


@pytest.mark.parametrize(
    ("block", "most", "local"), [
        pytest.param(1, 1, 0, marks=pytest.mark.thorough), (1, 40, 3), (7, 3, 3), (33, 2, 1), (128, 1, 0),
        (64, 9, 1),
    ],
)  # fmt: skip
def test_blocks_may_have_any_size_and_number(gpu: DeviceOps, block: int, most: int, local: int) -> None:
    call = blocks_of(block=block, most=most, local=local)
    call.check(call.lists(gpu))


@pytest.mark.parametrize(("heads", "dim"), [(1, 32), (5, 20), (17, 128)], ids=str)
def test_blocks_are_chosen_for_any_heads(gpu: DeviceOps, heads: int, dim: int) -> None:
    call = blocks_of(heads=heads, dim=dim)
    together = call.lists(gpu)
    call.check(together)
    assert call.lists(gpu, [5]) == together[5:6]


def test_a_batch_may_be_empty(gpu: DeviceOps) -> None:
    cells, blocks = cells_of(), blocks_of()
    assert cells.lists(gpu, []) == []
    assert blocks.lists(gpu, []) == []

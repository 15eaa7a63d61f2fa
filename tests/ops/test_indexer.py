"""The choice of cells for sparse attention, against scores by torch in float64."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from puna import _native
from puna.gguf import GGMLType
from puna.ops import KV_TYPES
from puna.ops.backend import LIST_ALIGNMENT
from tests.ops.attention_calls import prompt
from tests.ops.choices import check_choices_alone
from tests.ops.torch_ops import TorchOps, kv_pack, kv_unpack

pytestmark = pytest.mark.kernels_of("choose_cells")

#: Rows (start, count) that see fewer cells than chosen, as many, and more, in several pieces of their lists.
ROWS = [*prompt(12, before=30), (0, 0), (1024, 1), (1024, 40), (512, 700), (512, 1), (2048, 1100)]


@dataclass
class Call:
    """A batch over a cache whose cells are in random order."""

    q: Tensor
    weights: Tensor
    keys: Tensor
    cells: Tensor
    starts: Tensor
    counts: Tensor
    most: int
    group: int = 1

    @classmethod
    def random(
        cls,
        rows: list[tuple[int, int]] = ROWS,
        heads: int = 6,
        dim: int = 64,
        kind: GGMLType = GGMLType.F16,
        most: int = 37,
        group: int = 1,
    ) -> Call:
        random = torch.Generator().manual_seed(heads * dim + most)
        listed = max(start + count for start, count in rows)
        capacity = listed + 50
        return cls(
            q=torch.randn(len(rows), heads, dim, generator=random),
            weights=torch.randn(len(rows), heads, generator=random),
            keys=kv_pack(torch.randn(capacity, 1, dim, generator=random), kind),
            cells=torch.randperm(capacity, generator=random)[:listed].int(),
            starts=torch.tensor([start for start, _ in rows], dtype=torch.int32),
            counts=torch.tensor([count for _, count in rows], dtype=torch.int32),
            most=most,
            group=group,
        )

    def lists(self, ops: TorchOps, rows: list[int] | None = None) -> list[list[int]]:
        """Return the cells chosen for each of `rows`."""
        rows = list(range(len(self.q))) if rows is None else rows
        lists, begins, counts = ops.choose_cells(
            self.q[rows], self.weights[rows], self.keys, self.cells, self.starts[rows], self.counts[rows],
            self.most, self.group,
        )  # fmt: skip
        assert lists.dtype == begins.dtype == counts.dtype == torch.int32
        assert not (begins % LIST_ALIGNMENT).any()
        ranges = zip(begins.tolist(), counts.tolist(), strict=True)
        return [lists[begin : begin + count].tolist() for begin, count in ranges]

    def seen(self, row: int) -> Tensor:
        start = int(self.starts[row])
        return self.cells[start : start + int(self.counts[row])].long()

    def scores(self, row: int) -> Tensor:
        """Return the exact score of each whole group of cells that a row sees."""
        last = self.seen(row)[self.group - 1 :: self.group]
        products = self.q[row].double() @ kv_unpack(self.keys[last])[:, 0].double().T
        return self.weights[row].double() @ products.relu()

    def check(self, chosen: list[list[int]]) -> None:
        """Check that the chosen groups of each row have the largest scores, and that all are in order."""
        for row, found in enumerate(chosen):
            seen, scores = self.seen(row), self.scores(row)
            groups, end = len(scores), len(scores) * self.group
            taken = min(groups, self.most // self.group)
            assert found[taken * self.group :] == seen[end:].tolist()
            firsts = seen[:end].view(-1, self.group)[:, 0].tolist()
            places = [firsts.index(cell) for cell in found[: taken * self.group : self.group]]
            assert places == sorted(set(places))
            assert found[: taken * self.group] == seen[:end].view(-1, self.group)[places].view(-1).tolist()
            others = sorted(set(range(groups)) - set(places))
            if others:
                rounding = 1e-5 * float(scores.abs().max())
                assert scores[places].min() >= scores[others].max() - rounding


@pytest.mark.parametrize("kind", KV_TYPES, ids=lambda kind: kind.name)
def test_the_cells_with_the_largest_scores_are_chosen(ops: TorchOps, kind: GGMLType) -> None:
    call = Call.random(kind=kind)
    call.check(call.lists(ops))


@pytest.mark.parametrize(("heads", "dim"), [(1, 1), (3, 5), (64, 128), (13, 72), (7, 20), (2, 16)], ids=str)
def test_heads_and_keys_may_have_any_size(ops: TorchOps, heads: int, dim: int) -> None:
    call = Call.random(heads=heads, dim=dim, kind=GGMLType.F32)
    call.check(call.lists(ops))


@pytest.mark.parametrize("most", [1, 2, 511, 512, 513, 1100, 5000])
def test_any_number_of_cells_may_be_chosen(ops: TorchOps, most: int) -> None:
    call = Call.random(most=most)
    call.check(call.lists(ops))


@pytest.mark.parametrize(
    ("group", "most"), [(2, 2), (2, 36), (4, 36), (7, 35), (16, 512), (16, 1024), (37, 37), (513, 513)]
)
def test_groups_are_chosen_by_the_keys_of_their_last_cells(ops: TorchOps, group: int, most: int) -> None:
    call = Call.random(most=most, group=group)
    call.check(call.lists(ops))


@pytest.mark.parametrize("kind", [GGMLType.F32, GGMLType.Q8_0], ids=lambda kind: kind.name)
def test_only_the_keys_of_last_cells_of_groups_matter(ops: TorchOps, kind: GGMLType) -> None:
    call = Call.random([*prompt(30, before=20), (3, 40)], kind=kind, most=12, group=3)
    chosen = call.lists(ops)
    call.check(chosen)
    last = call.cells[torch.tensor([*range(2, 50, 3)])].long()
    others = torch.ones(len(call.keys), dtype=torch.bool)
    others[last] = False
    call.keys[others] = kv_pack(torch.full((1, 1, 64), 60.0), kind)
    assert call.lists(ops) == chosen


def test_earlier_groups_win_a_tie(ops: TorchOps) -> None:
    call = Call.random(kind=GGMLType.F32, most=36, group=4)
    for each in (call.q, call.weights, call.keys):
        each.round_()
    call.keys[:] = call.keys[0]
    expected = [call.seen(row).tolist() for row in range(len(ROWS))]
    cut = [max(len(seen) - len(seen) % 4, 36) for seen in expected]
    assert call.lists(ops) == [seen[:36] + seen[end:] for seen, end in zip(expected, cut, strict=True)]


def test_earlier_cells_win_a_tie(ops: TorchOps) -> None:
    """All numbers are whole, so scores are equal in whatever order they are summed."""
    call = Call.random(kind=GGMLType.F32)
    for each in (call.q, call.weights, call.keys):
        each.round_()
    call.keys[:] = call.keys[0]
    assert call.lists(ops) == [call.seen(row)[: call.most].tolist() for row in range(len(ROWS))]


def test_cells_without_a_positive_product_are_equal(ops: TorchOps) -> None:
    """Their scores are 0 for heads of either sign, and -0 is no less."""
    call = replace(Call.random(kind=GGMLType.F32), most=5)
    call.q[:], call.weights[:, ::2] = call.q.abs(), -1.0
    call.keys[:] = -call.keys.abs()
    assert call.lists(ops) == [call.seen(row)[: call.most].tolist() for row in range(len(ROWS))]


def test_nan_counts_as_the_largest_score(ops: TorchOps) -> None:
    call = Call.random([(0, 100)], kind=GGMLType.F32, most=3)
    bad = call.cells[[40, 70]].long()
    call.keys[bad, 0, 2] = torch.nan
    assert set(bad.tolist()) < set(call.lists(ops)[0])
    call.q[0, 0, 0] = torch.nan
    assert call.lists(ops)[0] == call.cells[:3].tolist()


def test_neighbours_that_keep_all_share_a_list(ops: TorchOps) -> None:
    call = Call.random([*prompt(50), (512, 20), (0, 20)], most=37)
    lists, begins, counts = ops.choose_cells(
        call.q, call.weights, call.keys, call.cells, call.starts, call.counts, call.most
    )
    assert begins[:37].unique().numel() == 1
    assert begins[36:].unique().numel() == len(begins) - 36
    assert counts.tolist() == [min(count, 37) for count in call.counts.tolist()]
    assert len(lists) == len(begins) * LIST_ALIGNMENT


def test_neighbours_that_keep_all_groups_share_a_list(ops: TorchOps) -> None:
    call = Call.random([*prompt(50), (512, 20)], most=36, group=4)
    _, begins, counts = ops.choose_cells(
        call.q, call.weights, call.keys, call.cells, call.starts, call.counts, call.most, call.group
    )
    assert begins[:39].unique().numel() == 1
    assert begins[38:].unique().numel() == len(begins) - 38
    assert counts.tolist() == [*range(1, 40), *[36, 37, 38, 39] * 2, 36, 37, 38, 20]


@pytest.mark.parametrize(("most", "group"), [(37, 1), (36, 3)])
def test_a_row_chooses_the_same_whatever_else_there_is(ops: TorchOps, most: int, group: int) -> None:
    call = Call.random([*ROWS, *prompt(70, before=480)], heads=13, dim=72, most=most, group=group)
    check_choices_alone(call, ops)


@pytest.mark.parametrize(("most", "group"), [(37, 1), (40, 4)])
def test_the_number_of_threads_changes_no_choice(kernels: TorchOps, most: int, group: int) -> None:
    call = Call.random([(0, 3000), *prompt(20, before=100), (5, 1200)], most=most, group=group)
    before, chosen = _native.threads(), []
    try:
        for count in (1, 2, 3, 7):
            _native.set_threads(count)
            chosen.append(call.lists(kernels))
    finally:
        _native.set_threads(before)
    assert chosen == chosen[:1] * 4


def test_rows_are_scored_in_groups_that_bound_memory(kernels: TorchOps) -> None:
    """Together these rows have more scores than are kept at once."""
    call = Call.random([(0, 20000)] * 60, heads=1, dim=4, kind=GGMLType.F32)
    call.check(call.lists(kernels))


def test_arguments_that_do_not_fit_are_refused(kernels: TorchOps) -> None:
    call = Call.random()
    with pytest.raises(IndexError, match="no cell"):
        replace(call, cells=call.cells + len(call.keys)).lists(kernels)
    with pytest.raises(IndexError, match="row 17 names cells"):
        replace(call, cells=call.cells[:-1]).lists(kernels)
    with pytest.raises(ValueError, match="choose_cells: 0 cells for each of 18 rows are none or too many"):
        replace(call, most=0).lists(kernels)
    with pytest.raises(ValueError, match="none or too many"):
        replace(call, most=2**31).lists(kernels)
    for group in (0, -1, 36, 2**33):
        with pytest.raises(ValueError, match=f"37 cells are not whole groups of {group}"):
            replace(call, group=group).lists(kernels)
    with pytest.raises(ValueError, match="choose_cells"):
        replace(call, weights=call.weights[:, 1:].contiguous()).lists(kernels)
    with pytest.raises(ValueError, match="choose_cells"):
        replace(call, keys=call.keys.repeat(1, 2, 1)).lists(kernels)
    with pytest.raises(ValueError, match="choose_cells"):
        replace(call, q=call.q[..., 1:].contiguous()).lists(kernels)

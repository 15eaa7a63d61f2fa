"""The choice of blocks of cells for sparse attention, against products by torch in float64."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from puna import _native
from puna.gguf import GGMLType
from puna.ops import KV_TYPES
from puna.ops.backend import LIST_ALIGNMENT, list_width
from tests.ops.attention_calls import prompt
from tests.ops.choices import check_choices_alone
from tests.ops.torch_ops import TorchOps, kv_pack, kv_unpack

pytestmark = pytest.mark.kernels_of("choose_blocks")

#: Rows (start, count) that see fewer cells than chosen, as many, and more, in several pieces of their lists.
ROWS = [*prompt(12, before=14), (0, 0), (1024, 1), (1024, 40), (512, 700), (512, 1), (2048, 1100)]


@dataclass
class Call:
    """A batch over a cache whose cells are in random order."""

    q: Tensor
    keys: Tensor
    cells: Tensor
    starts: Tensor
    counts: Tensor
    block: int
    most: int
    local: int

    @classmethod
    def random(
        cls,
        rows: list[tuple[int, int]] = ROWS,
        heads: int = 3,
        dim: int = 32,
        kind: GGMLType = GGMLType.F32,
        block: int = 5,
        most: int = 4,
        local: int = 1,
    ) -> Call:
        random = torch.Generator().manual_seed(heads * dim + block * most)
        listed = max(start + count for start, count in rows)
        capacity = listed + 50
        return cls(
            q=torch.randn(len(rows), heads, dim, generator=random),
            keys=kv_pack(torch.randn(capacity, 1, dim, generator=random), kind),
            cells=torch.randperm(capacity, generator=random)[:listed].int(),
            starts=torch.tensor([start for start, _ in rows], dtype=torch.int32),
            counts=torch.tensor([count for _, count in rows], dtype=torch.int32),
            block=block,
            most=most,
            local=local,
        )

    def choose(self, ops: TorchOps, rows: list[int] | None = None) -> tuple[Tensor, ...]:
        rows = list(range(len(self.q))) if rows is None else rows
        return ops.choose_blocks(
            self.q[rows], self.keys, self.cells, self.starts[rows], self.counts[rows],
            self.block, self.most, self.local,
        )  # fmt: skip

    def lists(self, ops: TorchOps, rows: list[int] | None = None) -> list[list[list[int]]]:
        """Return the cells chosen for each of `rows` and each head."""
        lists, begins, counts = self.choose(ops, rows)
        heads = self.q.shape[1]
        assert lists.dtype == begins.dtype == counts.dtype == torch.int32
        assert begins.shape == counts.shape == (heads, len(self.q) if rows is None else len(rows))
        assert not (begins % LIST_ALIGNMENT).any()
        found: list[list[list[int]]] = []
        for begins_of, counts_of in zip(begins.T.tolist(), counts.T.tolist(), strict=True):
            ranges = zip(begins_of, counts_of, strict=True)
            each = [lists[begin : begin + count].tolist() for begin, count in ranges]
            assert [[number % heads for number in cells] for cells in each] == [
                [head] * len(cells) for head, cells in enumerate(each)
            ]
            found.append([[number // heads for number in cells] for cells in each])
        return found

    def seen(self, row: int) -> list[int]:
        start = int(self.starts[row])
        cells: list[int] = self.cells[start : start + int(self.counts[row])].tolist()
        return cells

    def scores(self, row: int) -> Tensor:
        """Return each head's exact score of each block that a row sees: [heads, blocks]."""
        keys = kv_unpack(self.keys[self.seen(row)])[:, 0].double()
        products = self.q[row].double() @ keys.T
        return torch.stack([part.amax(1) for part in products.split(self.block, dim=1)], dim=1)

    def check(self, chosen: list[list[list[int]]]) -> None:
        """Check that whole blocks are chosen, in order: the last ones, and those with the largest scores."""
        for row, of_heads in enumerate(chosen):
            seen = self.seen(row)
            blocks = [seen[i : i + self.block] for i in range(0, len(seen), self.block)]
            if len(blocks) <= self.most:
                assert of_heads == [seen] * len(of_heads)
                continue
            scores = self.scores(row)
            for head, found in enumerate(of_heads):
                cells = set(found)
                numbers = [i for i, block in enumerate(blocks) if block[0] in cells]
                assert found == [cell for number in numbers for cell in blocks[number]]
                assert len(numbers) == self.most
                last = len(blocks) - self.local
                assert set(range(last, len(blocks))) <= set(numbers)
                taken = [number for number in numbers if number < last]
                others = sorted(set(range(last)) - set(taken))
                if taken and others:
                    rounding = 1e-5 * float(scores[head].abs().max())
                    assert scores[head, taken].min() >= scores[head, others].max() - rounding


@pytest.mark.parametrize("kind", KV_TYPES, ids=lambda kind: kind.name)
def test_the_blocks_with_the_largest_scores_are_chosen(ops: TorchOps, kind: GGMLType) -> None:
    call = Call.random(kind=kind)
    chosen = call.lists(ops)
    call.check(chosen)
    assert any(len(set(map(tuple, of_heads))) > 1 for of_heads in chosen), "heads choose alike"


@pytest.mark.parametrize(("heads", "dim"), [(1, 1), (4, 128), (13, 72), (7, 20), (2, 16)], ids=str)
def test_heads_and_keys_may_have_any_size(ops: TorchOps, heads: int, dim: int) -> None:
    call = Call.random(heads=heads, dim=dim)
    call.check(call.lists(ops))


@pytest.mark.parametrize(
    ("block", "most", "local"),
    [(1, 30, 0), (1, 1, 1), (128, 2, 1), (128, 16, 1), (7, 3, 3), (513, 1, 0), (64, 8, 2), (20, 4, 0)],
    ids=str,
)  # fmt: skip
def test_blocks_may_have_any_size_and_number(ops: TorchOps, block: int, most: int, local: int) -> None:
    call = Call.random(block=block, most=most, local=local)
    call.check(call.lists(ops))


def test_the_last_blocks_are_chosen_whatever_their_scores(ops: TorchOps) -> None:
    call = Call.random([(0, 53)], block=5, most=3, local=2)
    call.keys[call.cells[43:].long()] = 0.0
    call.keys[call.cells[:43].long()] = 1.0
    call.q[:] = 1.0
    assert call.lists(ops)[0] == [[*call.seen(0)[:5], *call.seen(0)[45:]]] * 3


def test_earlier_blocks_win_a_tie(ops: TorchOps) -> None:
    """All numbers are whole, so products are equal in whatever order they are summed."""
    call = Call.random([(0, 53), (0, 700)], local=0)
    call.q.round_()
    call.keys[:] = call.keys[0].round()
    assert call.lists(ops) == [[call.seen(row)[:20]] * 3 for row in range(2)]


def test_nan_counts_as_the_largest_score(ops: TorchOps) -> None:
    call = Call.random([(0, 100)], most=3)
    bad = call.cells[[40, 71]].long()
    call.keys[bad, 0, 2] = torch.nan
    seen = call.seen(0)
    assert call.lists(ops)[0] == [[*seen[40:45], *seen[70:75], *seen[95:]]] * 3


def test_neighbours_that_keep_all_share_a_list(ops: TorchOps) -> None:
    call = Call.random([*prompt(30), (512, 15), (0, 20)])
    lists, begins, counts = call.choose(ops)
    assert [int(each.unique().numel()) for each in begins[:, :20]] == [1] * 3
    assert begins[:, 19:].unique().numel() == 3 * (begins.shape[1] - 19)
    assert counts[0, :20].tolist() == list(range(1, 21))
    assert len(lists) == begins.numel() * list_width(20)


def test_attention_by_head_reads_the_chosen_cells(ops: TorchOps) -> None:
    """It is attention of a head's queries alone to its keys and values."""
    call = Call.random([(0, 53), (512, 300), (0, 9)], heads=2)
    random = torch.Generator().manual_seed(3)
    capacity = len(call.keys)
    storages = []
    for dim in (16, 24):
        storage = ops.backend.storage(GGMLType.F32, capacity, (2, dim))
        storage.provide(capacity)
        numbers = torch.randn(capacity, 2, dim, generator=random)
        storage.write(torch.arange(capacity).numpy(), numbers.numpy())
        storages.append((storage, numbers))
    (keys, key_numbers), (values, value_numbers) = storages
    assert keys.by_head().shape == (2 * capacity, 1, 16)
    query = torch.randn(3, 2, 3, 16, generator=random)
    lists, begins, counts = call.choose(ops)
    for head in range(2):
        found = ops.attention(
            query[:, head].contiguous(),
            keys.by_head(),
            values.by_head(),
            lists,
            begins[head],
            counts[head],
            0.3,
        )
        for row, (begin, count) in enumerate(zip(begins[head].tolist(), counts[head].tolist(), strict=True)):
            cells = lists[begin : begin + count].long() // 2
            shares = torch.softmax(0.3 * query[row, head] @ key_numbers[cells, head].T, dim=-1)
            assert torch.allclose(found[row], shares @ value_numbers[cells, head], atol=1e-5)


def test_a_row_chooses_the_same_whatever_else_there_is(ops: TorchOps) -> None:
    call = Call.random([*ROWS, *prompt(70, before=480)], heads=5, dim=72)
    check_choices_alone(call, ops)


def test_the_number_of_threads_changes_no_choice(kernels: TorchOps) -> None:
    call = Call.random([(0, 3000), *prompt(20, before=100), (5, 1200)])
    before, chosen = _native.threads(), []
    try:
        for count in (1, 2, 3, 7):
            _native.set_threads(count)
            chosen.append(call.lists(kernels))
    finally:
        _native.set_threads(before)
    assert chosen == chosen[:1] * 4


@pytest.mark.slow
def test_rows_are_scored_in_groups_that_bound_memory(kernels: TorchOps) -> None:
    """Together these rows have more products than are kept at once."""
    call = Call.random([(0, 20000)] * 30, heads=2, dim=4, block=128, most=16)
    call.check(call.lists(kernels))


def test_arguments_that_do_not_fit_are_refused(kernels: TorchOps) -> None:
    call = Call.random()
    with pytest.raises(IndexError, match="no cell"):
        replace(call, cells=call.cells + len(call.keys)).lists(kernels)
    with pytest.raises(IndexError, match="row 17 names cells"):
        replace(call, cells=call.cells[:-1]).lists(kernels)
    for changes in (
        {"most": 0}, {"block": 0}, {"local": 5}, {"local": -1}, {"most": 2**31}, {"block": 2**62, "most": 4},
    ):  # fmt: skip
        with pytest.raises(ValueError, match=r"choose_blocks: .* for each of 18 rows are none or too many"):
            replace(call, **changes).lists(kernels)
    with pytest.raises(ValueError, match="choose_blocks"):
        replace(call, keys=call.keys.repeat(1, 2, 1)).lists(kernels)
    with pytest.raises(ValueError, match="choose_blocks"):
        replace(call, q=call.q[..., 1:].contiguous()).lists(kernels)

"""Groups of cells pooled to entries, and lists of cells joined, against their definitions."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from puna import _native
from puna.ops.backend import LIST_ALIGNMENT, list_width
from tests.ops.torch_ops import TorchOps

pytestmark = pytest.mark.kernels_of("pool_groups", "join_lists")


def int32(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


@dataclass
class Groups:
    """Rows that list cells of a cache in random order, some of which complete a group."""

    stored: Tensor  # [capacity, 1, 2 * width]
    cells: Tensor
    starts: Tensor
    counts: Tensor
    bias: Tensor
    overlapping: bool

    @classmethod
    def random(cls, group: int, dim: int, *, overlapping: bool) -> Groups:
        random = torch.Generator().manual_seed(group * dim)
        counts = [*range(2 * group + 1), group] if overlapping else [*range(group + 1), group]
        width, listed = (2 * dim if overlapping else dim), 3 * group + 7
        return cls(
            stored=torch.randn(listed + 9, 1, 2 * width, generator=random) * 2,
            cells=torch.randperm(listed + 9, generator=random)[:listed].int(),
            starts=torch.arange(len(counts), dtype=torch.int32) % (listed - 2 * group),
            counts=int32(*counts),
            bias=torch.randn(group, width, generator=random),
            overlapping=overlapping,
        )

    def pool(self, ops: TorchOps, rows: slice = slice(None)) -> Tensor:
        found: Tensor = ops.pool_groups(
            self.stored, self.cells, self.starts[rows], self.counts[rows], self.bias,
            overlapping=self.overlapping,
        )  # fmt: skip
        return found

    def exact(self) -> Tensor:
        """Pool each group in float64, as the model's authors lay it out: halves side by side."""
        group, width = self.bias.shape
        dim = width // 2 if self.overlapping else width
        result = torch.zeros(len(self.counts), dim, dtype=torch.float64)
        for t, (start, count) in enumerate(zip(self.starts.tolist(), self.counts.tolist(), strict=True)):
            if count not in ({group, 2 * group} if self.overlapping else {group}):
                continue
            rows = self.stored[self.cells[start : start + count].long(), 0].double()
            values, gates = rows.view(count // group, group, 2, width).unbind(2)
            gates = gates + self.bias.double()
            if self.overlapping:
                values, gates = (
                    torch.cat([each[-1, :, dim:], *(group[:, :dim] for group in each[:-1])])
                    for each in (values, gates)
                )
            else:
                values, gates = values[0], gates[0]
            result[t] = (gates.softmax(0) * values).sum(0)
        return result


@pytest.mark.parametrize("overlapping", [False, True], ids=["apart", "overlapping"])
@pytest.mark.parametrize(("group", "dim"), [(1, 1), (3, 20), (4, 128), (7, 65), (128, 33)], ids=str)
def test_complete_groups_are_pooled(ops: TorchOps, group: int, dim: int, overlapping: bool) -> None:
    groups = Groups.random(group, dim, overlapping=overlapping)
    found, exact = groups.pool(ops), groups.exact()
    assert found.dtype == torch.float32
    assert torch.allclose(found.double(), exact, rtol=0, atol=3e-6)
    complete = (groups.counts == group) | (overlapping & (groups.counts == 2 * group))
    assert exact[complete].abs().amax(1).all()
    assert not found[~complete].any()
    for t in range(0, len(found), 3):  # alone
        assert torch.equal(groups.pool(ops, slice(t, t + 1))[0], found[t])


def test_gates_of_any_size_are_pooled(ops: TorchOps) -> None:
    groups = Groups.random(4, 16, overlapping=True)
    groups.stored[..., 32:] *= 1e2
    assert torch.allclose(groups.pool(ops).double(), groups.exact(), rtol=0, atol=1e-3)
    groups.stored[groups.cells[groups.starts[4].long() + 1].long(), 0, 5 + 48] = torch.nan
    assert groups.pool(ops)[4].isnan().nonzero().flatten().tolist() == [5]


def test_no_rows_are_pooled_and_joined(ops: TorchOps) -> None:
    groups = Groups.random(4, 16, overlapping=True)
    assert groups.pool(ops, slice(0)).shape == (0, 16)
    nothing = (groups.cells, groups.starts[:0], groups.counts[:0])
    lists, starts, counts = ops.join_lists(nothing, nothing, 8)
    assert lists.numel() == len(starts) == len(counts) == 0


@pytest.mark.parametrize("most", [9, 512, 513])
def test_lists_are_joined(ops: TorchOps, most: int) -> None:
    random = torch.Generator().manual_seed(most)
    first = torch.randint(0, 99, (70,), generator=random).int(), int32(0, 69, 3, 5, 0), int32(4, 0, 0, 3, 1)
    second = torch.randint(0, 99, (40,), generator=random).int(), int32(39, 2, 7, 40, 0), int32(1, 9, 0, 0, 5)
    lists, starts, counts = ops.join_lists(first, second, most)
    assert lists.dtype == starts.dtype == counts.dtype == torch.int32
    assert len(lists) == 5 * list_width(most)
    assert not (starts % LIST_ALIGNMENT).any()
    assert starts.unique().numel() == 5
    for t, (start, count) in enumerate(zip(starts.tolist(), counts.tolist(), strict=True)):
        parts = [cells[begins[t] : begins[t] + sizes[t]] for cells, begins, sizes in (first, second)]
        assert lists[start : start + count].tolist() == torch.cat(parts).tolist()


def test_the_number_of_threads_changes_no_entry(kernels: TorchOps) -> None:
    groups = Groups.random(128, 200, overlapping=True)
    before, found = _native.threads(), []
    try:
        for count in (1, 2, 3, 7):
            _native.set_threads(count)
            found.append(groups.pool(kernels))
    finally:
        _native.set_threads(before)
    assert all(torch.equal(each, found[0]) for each in found)


def test_groups_that_do_not_fit_are_refused(kernels: TorchOps) -> None:
    groups = Groups.random(3, 4, overlapping=True)
    with pytest.raises(IndexError, match="no cell"):
        replace(groups, cells=groups.cells + len(groups.stored)).pool(kernels)
    with pytest.raises(IndexError, match="row 4 names cells"):
        replace(groups, starts=groups.starts + 10).pool(kernels)
    for changes in (
        {"bias": groups.bias[:, 1:].contiguous()},
        {"bias": groups.bias[:0]},
        {"bias": groups.bias[:, :5].contiguous(), "stored": groups.stored[..., :10].contiguous()},
        {"stored": groups.stored.half()},
        {"stored": groups.stored.repeat(1, 2, 1)},
        {"counts": groups.counts[1:]},
        {"cells": groups.cells.long()},
    ):
        with pytest.raises(ValueError, match="pool_groups"):
            replace(groups, **changes).pool(kernels)


def test_lists_that_do_not_fit_are_refused(kernels: TorchOps) -> None:
    cells, starts, counts = torch.arange(9, dtype=torch.int32), int32(0, 4), int32(3, 5)
    lists = cells, starts, counts
    with pytest.raises(IndexError, match="row 1 has lists of 10 cells, more than 9"):
        kernels.join_lists(lists, lists, 9)
    for other in ((cells[:8], starts, counts), (cells, starts - 1, counts), (cells, starts, -counts)):
        with pytest.raises(IndexError, match="names cells"):
            kernels.join_lists(lists, other, 20)
        with pytest.raises(IndexError, match="names cells"):
            kernels.join_lists(other, lists, 20)
    for most in (-1, 2**31 - 1, 2**40):
        with pytest.raises(ValueError, match="join_lists"):
            kernels.join_lists(lists, lists, most)
    for other in (
        (cells, starts[:1], counts),
        (cells, starts, counts.long()),
        (cells[:, None], starts, counts),
    ):
        with pytest.raises(ValueError, match="join_lists"):
            kernels.join_lists(lists, other, 20)

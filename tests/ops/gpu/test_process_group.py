"""Groups of torch.distributed, here of one process alone; `tests/runner/test_ranks.py` has more."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from puna.ops.gpu.process_group import ProcessGroup


@contextmanager
def group(meeting: Path) -> Iterator[ProcessGroup]:
    found = ProcessGroup(torch.device("cpu"), meeting, 0, 1, 20.0)
    try:
        yield found
    finally:
        found.close()


@pytest.mark.parametrize("name", ["plain", "a space", "100%25", "\u00fcber"])
def test_ranks_meet_in_a_folder_of_any_name(name: str, tmp_path: Path) -> None:
    (tmp_path / name).mkdir()
    with group(tmp_path / name / "meeting") as alone:
        x = torch.arange(6.0).reshape(2, 3)
        assert torch.equal(alone.sum(x.clone()), x)
        assert torch.equal(alone.join(x, [3]), x)
        assert alone.join(x[:0], [3]).shape == (0, 3)
    assert not dist.is_initialized()


def test_group_that_has_been_left_does_not_end_another(tmp_path: Path) -> None:
    with group(tmp_path / "first") as first:
        pass
    with group(tmp_path / "second") as second:
        first.close()
        first.abort()
        assert torch.equal(second.sum(torch.ones(1, 2)), torch.ones(1, 2))


def test_group_can_be_left_after_it_was_aborted(tmp_path: Path) -> None:
    with group(tmp_path / "meeting") as alone:
        alone.abort()
    assert not dist.is_initialized()

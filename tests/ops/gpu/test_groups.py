"""The kernel that pools groups of cells against the definition in float64."""

from __future__ import annotations

import pytest
import torch

from tests.ops.gpu.launchers import Launchers
from tests.ops.test_groups import Groups

groups_kernel = pytest.importorskip("puna.ops.gpu.kernels.groups")


@pytest.mark.parametrize("overlapping", [False, True], ids=["apart", "overlapping"])
@pytest.mark.parametrize(("group", "dim"), [(1, 1), (3, 20), (4, 128), (128, 33)], ids=str)
def test_complete_groups_are_pooled(device: torch.device, group: int, dim: int, overlapping: bool) -> None:
    gpu, groups = Launchers(device, groups_kernel), Groups.random(group, dim, overlapping=overlapping)
    groups.counts, groups.starts = (each[-12:].contiguous() for each in (groups.counts, groups.starts))
    found = groups.pool(gpu)  # type: ignore[arg-type]
    assert torch.allclose(found.double(), groups.exact(), rtol=0, atol=3e-6)
    assert torch.equal(groups.pool(gpu, slice(1, 2))[0], found[1])  # type: ignore[arg-type]

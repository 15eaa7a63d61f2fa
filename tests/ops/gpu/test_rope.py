"""The kernel of rotary positions against angles in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from puna.ops import Rope, Sections

rope_kernel = pytest.importorskip("puna.ops.gpu.kernels.rope")

POSITIONS = torch.tensor([0, 1, -7, 4999, 131071, 2**20, 2**31 - 1, -(2**31)], dtype=torch.int32)


@pytest.fixture
def rotate(device: torch.device) -> Callable[[Tensor, Tensor, Rope], Tensor]:
    torch.default_generator.manual_seed(1234)

    def run(x: Tensor, positions: Tensor, rope: Rope) -> Tensor:
        turned = x.to(device, copy=True)
        rope_kernel.rope_(turned, positions.to(device), rope_kernel.Turns.of(rope, device))
        return turned.cpu()

    return run


def exact(x: Tensor, positions: Tensor, rope: Rope) -> Tensor:
    at = positions.double()
    at = at[:, None] if rope.axes is None or at.dim() == 1 else at[:, torch.from_numpy(rope.axes).long()]
    angles = (at * torch.from_numpy(rope.frequencies).double())[:, None]
    order = torch.arange(2 * rope.pairs)
    order = order.view(2, -1).T.contiguous() if rope.neox else order.view(-1, 2)
    numbers = torch.view_as_complex(x.double()[..., order])
    turned = x.double()
    turned[..., order] = torch.view_as_real(
        numbers * torch.polar(torch.full_like(angles, rope.magnitude), angles)
    )
    return turned


def check(turned: Tensor, x: Tensor, positions: Tensor, rope: Rope) -> None:
    expected = exact(x, positions, rope)
    assert (turned.double() - expected).abs().max() <= 3e-7 * expected.abs().max()
    assert torch.equal(turned[..., 2 * rope.pairs :], x[..., 2 * rope.pairs :])


@pytest.mark.parametrize("neox", [False, True], ids=["normal", "neox"])
@pytest.mark.parametrize(("dims", "head_dim"), [(2, 2), (20, 48), (80, 80), (96, 128), (128, 128)])
def test_rope_matches_its_definition(rotate: Any, neox: bool, dims: int, head_dim: int) -> None:
    rope = Rope.build(dims, 500000.0, neox=neox, magnitude=1.25)
    x = torch.randn(len(POSITIONS), 3, head_dim)
    check(rotate(x, POSITIONS, rope), x, POSITIONS, rope)


@pytest.mark.parametrize("neox", [False, True], ids=["normal", "neox"])
@pytest.mark.parametrize(("sections", "dims", "head_dim"), [((1, 1), 4, 4), ((3, 0, 4, 2), 18, 24)])
def test_rope_on_several_axes_matches_its_definition(
    rotate: Any, neox: bool, sections: tuple[int, ...], dims: int, head_dim: int
) -> None:
    rope = Rope.build(dims, 500000.0, neox=neox, magnitude=1.25, sections=Sections(sections))
    positions = torch.stack([POSITIONS.roll(axis) for axis in range(len(sections))], dim=1)
    x = torch.randn(len(POSITIONS), 3, head_dim)
    check(rotate(x, positions, rope), x, positions, rope)


def test_a_position_that_is_the_same_on_all_axes_is_one_position(rotate: Any) -> None:
    rope, plain = Rope.build(64, sections=Sections((8, 12, 12))), Rope.build(64)
    x = torch.randn(len(POSITIONS), 3, 64)
    expected = rotate(x, POSITIONS, plain)
    assert torch.equal(rotate(x, POSITIONS, rope), expected)
    assert torch.equal(rotate(x, POSITIONS[:, None].repeat(1, 3), rope), expected)


def test_cosines_and_sines_are_accurate_all_around(rotate: Any) -> None:
    """Every quarter and its borders: the frequency of the pairs is a 4096th of a turn."""
    rope = Rope(np.full(1, 2 * np.pi / 4096, np.float32))
    positions = torch.arange(-16, 4112, 31, dtype=torch.int32)
    x = torch.tensor([[[1.0, 0.0]]]).repeat(len(positions), 1, 1)
    expected = exact(x, positions, rope)
    assert (rotate(x, positions, rope).double() - expected).abs().max() < 1.2e-7


def test_many_heads_take_several_programs(rotate: Any) -> None:
    rope = Rope.build(2, 10000.0)
    x = torch.randn(2, 2500, 2)
    check(rotate(x, POSITIONS[3:5], rope), x, POSITIONS[3:5], rope)


def test_rope_accepts_no_rows(rotate: Any) -> None:
    none = torch.empty(0, dtype=torch.int32)
    assert rotate(torch.empty(0, 4, 64), none, Rope.build(64)).shape == (0, 4, 64)


def test_rope_may_rotate_the_end_of_heads_and_back(rotate: Any) -> None:
    rope, x = Rope.build(20), torch.randn(len(POSITIONS), 3, 48)
    turned = rotate(x, POSITIONS, rope.at_end(48))
    assert torch.equal(turned[..., :28], x[..., :28])
    assert torch.equal(turned[..., 28:], rotate(x[..., 28:], POSITIONS, rope))
    back = rotate(turned, POSITIONS, rope.at_end(48).backwards())
    assert (back - x).abs().max() < 1e-6

"""Kernels of recurrent layers against their recurrences in float64."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.ops import test_linear_attention, test_selective_scan, test_short_conv
from tests.ops.gpu.launchers import Launchers
from tests.ops.state_rows import int32

recurrent = pytest.importorskip("puna.ops.gpu.kernels.recurrent")

KINDS = {
    "decayed": {"delta": False},
    "delta": {},
    "delta, decay of keys": {"of_keys": True},
    "tiled": {"delta": False, "tiled": True},
    "removal, decay of keys": {"delta": False, "removes": True, "of_keys": True},
    "removal, tiled": {"delta": False, "removes": True, "tiled": True},
}
LENGTHS = [[], [1], [3, 1, 5]]


@pytest.fixture
def gpu(device: torch.device) -> Launchers:
    return Launchers(device, recurrent)


@pytest.fixture(params=[64, 2], ids=["one sequence in a segment", "several"])
def segments(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recurrent, "SEGMENTS", request.param)
    monkeypatch.setattr(recurrent, "_SEARCH", request.param)


def near(got: Tensor, exact: Tensor, tolerance: float) -> None:
    assert got.shape == exact.shape
    assert got.dtype == torch.float32
    if exact.numel():
        assert (got - exact).abs().max() <= tolerance * (1 + exact.abs().max())


# --- short convolutions ---


@pytest.mark.parametrize("lengths", [[], [1], [1, 1, 1], [5, 1, 20, 2]], ids=str)
@pytest.mark.parametrize(
    ("taps", "channels", "bias"), [(1, 5, False), (2, 300, True), (4, 77, True), (7, 1, False)]
)
def test_convolved_rows_and_states_match_torchs(
    gpu: Launchers, taps: int, channels: int, bias: bool, lengths: list[int]
) -> None:
    problem = test_short_conv.Problem.random(taps, channels, lengths, bias=bias)
    b, _, x = problem.projected.split(channels, dim=1)
    expected, begin = problem.states.clone(), 0
    for number, length in enumerate(lengths):
        seen = torch.cat([problem.states[problem.places[number]], (b * x)[begin : begin + length]])
        expected[problem.places[len(lengths) + number]] = seen[len(seen) - (taps - 1) :]
        begin += length
    states = problem.states.clone()
    near(problem.run(gpu, states), problem.exact(), 1e-6)
    assert torch.equal(states, expected)


@pytest.mark.parametrize("activated", [True, False])
def test_without_gates_a_row_is_its_convolution_or_its_silu(gpu: Launchers, activated: bool) -> None:
    gated = test_short_conv.Problem.random(4, 77, [5, 1, 20, 2], bias=True)
    x = gated.projected[:, :77].contiguous()
    ones = torch.ones_like(x)
    exact = replace(gated, projected=torch.cat([ones, ones, x], dim=1)).exact()
    rows = gated.rows()
    found = gpu.short_conv(x, gated.weight, gated.bias, gated.states, *rows, gated=False, activated=activated)
    near(found, F.silu(exact) if activated else exact, 1e-6)


@pytest.mark.parametrize("parts", [[1] * 20, [2, 17, 1]], ids=str)
def test_bits_of_convolutions_do_not_depend_on_how_a_sequence_is_cut(
    gpu: Launchers, parts: list[int]
) -> None:
    whole = test_short_conv.Problem.random(4, 77, [20], bias=True)
    states, again = whole.states.clone(), whole.states.clone()
    expected = whole.run(gpu, states)
    found, begin, place = [], 0, whole.places[0]
    for number, part in enumerate(parts):
        target = whole.places[1 + number % 11]
        piece = replace(
            whole, projected=whole.projected[begin : begin + part], lengths=[part], places=[place, target]
        )
        found.append(piece.run(gpu, again))
        begin, place = begin + part, target
    assert torch.equal(torch.cat(found), expected)
    assert torch.equal(again[place], states[whole.places[1]])


# --- linear attention ---


@pytest.mark.usefixtures("segments")
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("shape", [pytest.param((1, 1), marks=pytest.mark.thorough), (20, 40)], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_attended_rows_and_memories_match_the_recurrence(
    gpu: Launchers, kind: str, shape: tuple[int, int], lengths: list[int]
) -> None:
    problem = test_linear_attention.Problem.random(
        lengths, key_dim=shape[0], value_dim=shape[1], **KINDS[kind]
    )
    states, (exact, memories) = problem.states.clone(), problem.exact()
    near(problem.run(gpu, states), exact, 2e-5)
    check_states(states, problem.states, lengths, problem.places, memories)


@pytest.mark.thorough
@pytest.mark.parametrize("shape", [(64, 64), (128, 130)], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_large_memories_match_the_recurrence(gpu: Launchers, kind: str, shape: tuple[int, int]) -> None:
    test_attended_rows_and_memories_match_the_recurrence(gpu, kind, shape, [4, 1])


def test_memories_inside_a_sequence_can_be_kept_and_the_last_dropped(gpu: Launchers) -> None:
    problem = test_linear_attention.Problem.random([6])
    others = [place for place in range(10) if place != problem.places[0]][:5]
    states, (exact, memories) = problem.states.clone(), problem.exact()
    near(problem.run(gpu, states, int32([*others, -1])), exact, 2e-5)
    for place, memory in zip(others, memories, strict=False):
        near(states[place], memory, 2e-5)


@pytest.mark.parametrize("kind", ["delta", "removal, decay of keys"])
@pytest.mark.parametrize("parts", [[1] * 7, [2, 4, 1]], ids=str)
def test_bits_of_attention_do_not_depend_on_how_a_sequence_is_cut(
    gpu: Launchers, parts: list[int], kind: str
) -> None:
    whole = test_linear_attention.Problem.random([7], heads=2, key_dim=24, value_dim=40, **KINDS[kind])
    states, again = whole.states.clone(), whole.states.clone()
    expected = whole.run(gpu, states)
    found, begin, place = [], 0, whole.places[0]
    for number, part in enumerate(parts):
        target = [slot for slot in range(10) if slot != place][number % 9]
        found.append(whole.part(slice(begin, begin + part), [place, target]).run(gpu, again))
        begin, place = begin + part, target
    assert torch.equal(torch.cat(found), expected)
    assert torch.equal(again[place], states[whole.places[1]])


@pytest.mark.parametrize("kind", ["delta", "removal, tiled"])
def test_bits_of_attention_do_not_depend_on_neighbours(
    gpu: Launchers, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(recurrent, "SEGMENTS", 2)
    together = test_linear_attention.Problem.random(
        [9, 1, 4], heads=2, key_dim=20, value_dim=37, **KINDS[kind]
    )
    states = together.states.clone()
    found, begin = together.run(gpu, states), 0
    for number, length in enumerate(together.lengths):
        rows = slice(begin, begin + length)
        alone = together.part(rows, [together.places[number], together.places[3 + number]])
        again = together.states.clone()
        assert torch.equal(alone.run(gpu, again), found[rows])
        assert torch.equal(again[alone.places[1]], states[alone.places[1]])
        begin += length


# --- selective scans ---


@pytest.mark.usefixtures("segments")
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("shape", [(1, 1), (5, 3), (16, 77)], ids=str)
def test_scanned_rows_and_states_match_the_recurrence(
    gpu: Launchers, shape: tuple[int, int], lengths: list[int]
) -> None:
    problem = test_selective_scan.Problem.random(lengths, entries=shape[0], channels=shape[1])
    states, (exact, after) = problem.states.clone(), problem.exact()
    near(problem.run(gpu, states), exact, 1e-5)
    check_states(states, problem.states, lengths, problem.places, after)


def test_bits_of_scans_do_not_depend_on_cuts_or_neighbours(
    gpu: Launchers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recurrent, "SEGMENTS", 2)
    together = test_selective_scan.Problem.random([20, 1, 7], channels=50)
    states, alone, begin = together.states.clone(), together.states.clone(), together.places[0]
    found = together.run(gpu, states)
    for part, place in ((slice(0, 11), together.places[7]), (slice(11, 20), together.places[3])):
        piece = together.part(part, [begin, place])
        assert torch.equal(piece.run(gpu, alone), found[part])
        begin = place
    assert torch.equal(alone[begin], states[begin])


def check_states(
    states: Tensor, before: Tensor, lengths: list[int], places: list[int], after: list[Tensor]
) -> None:
    """Assert that each sequence left its last state, and that other slots are as they were."""
    end = 0
    for number, length in enumerate(lengths):
        end += length
        near(states[places[len(lengths) + number]], after[end - 1], 2e-5)
    untouched = places[2 * len(lengths) :] + places[: len(lengths)]
    assert torch.equal(states[untouched], before[untouched])

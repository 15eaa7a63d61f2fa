"""Division of time between prompts and streams, on a machine with computed times."""

from __future__ import annotations

import pytest

from puna.engine.batching import StepLoad
from puna.engine.scheduler import Pace


class Machine:
    """A machine whose steps take `base` seconds, plus `token` for every row."""

    def __init__(self, base: float = 0.02, token: float = 0.002, most: int = 512) -> None:
        self.base, self.token, self.pace = base, token, Pace(most)

    def step(self, streams: int, prompts: int) -> tuple[int, float]:
        """Return the prompt tokens of a step that uses its whole budget, and the time it takes."""
        tokens = self.pace.budget(streams, prompts) if prompts else 0
        seconds = self.base + self.token * (streams + tokens)
        self.pace.measured(StepLoad(streams, tokens, 0), seconds)
        return tokens, seconds

    def alone(self, streams: int) -> float:
        return self.base + self.token * streams


def test_without_streams_a_prompt_gets_the_whole_budget() -> None:
    machine = Machine(token=0.001)
    assert [machine.step(0, 1)[0] for _ in range(3)] == [512] * 3


def test_a_pass_that_waited_for_compiled_kernels_is_forgotten() -> None:
    machine = Machine(token=0.02)
    for _ in range(3):
        machine.step(0, 1)
    assert machine.step(0, 1)[0] == 256
    machine.token = 0.0001
    machine.step(0, 1)
    assert machine.step(0, 1)[0] == 512


def test_a_step_on_a_slow_machine_is_bounded() -> None:
    machine = Machine(token=0.003)
    machine.step(0, 1)
    tokens, seconds = machine.step(0, 1)
    assert 300 < tokens < 360
    assert seconds < 1.1
    slower = Machine(token=0.03)
    slower.step(0, 1)
    assert slower.step(0, 1)[0] == 256


@pytest.mark.parametrize("streams", [1, 3, 8])
@pytest.mark.parametrize(("base", "token"), [(0.02, 0.002), (0.001, 0.0001), (0.05, 0.01)])
def test_a_long_prompt_at_most_doubles_the_time_between_tokens(
    streams: int, base: float, token: float
) -> None:
    machine = Machine(base, token)
    for _ in range(3):
        machine.step(streams, 0)
    steps = [machine.step(streams, 1) for _ in range(200)]
    assert max(seconds for _, seconds in steps) <= 2 * machine.alone(streams)
    # ... and is not held up more than necessary: it gets most of the other half.
    assert sum(tokens for tokens, _ in steps) * token > 0.6 * 200 * machine.alone(streams)


def test_the_bound_holds_after_prompts_were_read_without_streams() -> None:
    machine = Machine()
    for _ in range(5):
        machine.step(0, 4)
    machine.step(1, 4)
    machine.step(4, 0)
    assert all(machine.step(4, 1)[1] <= 2 * machine.alone(4) for _ in range(100))


def test_several_waiting_prompts_get_more_time_than_one_stream() -> None:
    machine = Machine()
    machine.step(1, 0)
    few = [machine.step(1, 1)[0] for _ in range(20)][-1]
    many = [machine.step(1, 15)[0] for _ in range(20)][-1]
    assert many > 10 * few


def test_a_machine_that_becomes_slower_is_noticed() -> None:
    machine = Machine()
    for _ in range(50):
        machine.step(2, 1)
    machine.base *= 4
    machine.token *= 4
    for _ in range(50):
        machine.step(2, 1)
    assert all(machine.step(2, 1)[1] <= 2 * machine.alone(2) for _ in range(50))


def test_a_prompt_always_advances() -> None:
    machine = Machine(base=0.0, token=1.0)
    tokens = [machine.step(1, 1)[0] for _ in range(64)]
    assert sum(tokens) >= 60

from __future__ import annotations

import re

import pytest

from puna.server.fleet.loading import APART_S, FIRST_PAUSE_S, FORGIVEN, LONGEST_PAUSE_S, Crashes


def crash(crashes: Crashes, times: int, now_s: float = 0.0) -> None:
    for _ in range(times):
        crashes.crashed("m", "killed by signal 11", now_s, after_success=False)


def test_few_crashes_are_forgiven() -> None:
    crashes = Crashes()
    assert crashes.refusal("m", 0.0) is None
    crash(crashes, FORGIVEN)
    assert crashes.refusal("m", 0.0) is None


def test_repeated_crashes_cause_a_pause_stating_its_length_and_reason() -> None:
    crashes = Crashes()
    crash(crashes, FORGIVEN + 1)
    refusal = crashes.refusal("m", 1.0)
    assert refusal is not None
    assert f"crashed {FORGIVEN + 1} times in a row" in refusal
    assert f"another {FIRST_PAUSE_S - 1:.0f} s" in refusal
    assert "killed by signal 11" in refusal
    assert crashes.refusal("m", FIRST_PAUSE_S) is None
    assert crashes.refusal("other", 1.0) is None


def test_pauses_double_up_to_the_longest() -> None:
    crashes = Crashes()
    crash(crashes, FORGIVEN)
    pauses = []
    for _ in range(12):
        crash(crashes, 1)
        refusal = crashes.refusal("m", 0.0)
        assert refusal is not None
        found = re.search(r"another (\d+) s", refusal)
        assert found is not None
        pauses.append(int(found[1]))
    assert pauses[:3] == [FIRST_PAUSE_S, 2 * FIRST_PAUSE_S, 4 * FIRST_PAUSE_S]
    assert pauses[-1] == LONGEST_PAUSE_S
    assert pauses == sorted(pauses)


@pytest.mark.parametrize(("after_success", "later_s"), [(True, 0.0), (False, APART_S + 1)])
def test_success_or_a_long_time_between_resets_the_count(after_success: bool, later_s: float) -> None:
    crashes = Crashes()
    crash(crashes, FORGIVEN + 5)
    assert crashes.crashed("m", "exit status 1", later_s, after_success=after_success) == 1
    assert crashes.refusal("m", later_s) is None

"""Turns for long work: who is next, and who may not take the last place."""

from __future__ import annotations

import asyncio

import pytest

from puna.errors import ServerBusyError
from puna.server.jobs.turns import WorkSlot, WorkSlots


def turns(places: int, *, of_client: int = 99, of_kind: int = 99, longest_queue: int = 99) -> WorkSlots:
    return WorkSlots(places, of_client=of_client, of_kind=of_kind, longest_queue=longest_queue)


def have_come(*waiting: WorkSlot) -> list[bool]:
    return [turn.is_granted for turn in waiting]


def test_turns_come_in_order_as_places_become_free() -> None:
    all_turns = turns(2)
    first, second, third, fourth = (all_turns.enter("a") for _ in range(4))
    assert have_come(first, second, third, fourth) == [True, True, False, False]
    assert [all_turns.ahead_of(third), all_turns.ahead_of(fourth)] == [2, 3]
    second.leave()
    assert have_come(third, fourth) == [True, False]
    third.leave()
    first.leave()
    assert have_come(fourth) == [True]


def test_client_with_fewer_places_goes_first() -> None:
    all_turns = turns(2)
    heavy = [all_turns.enter("greedy") for _ in range(5)]
    light = all_turns.enter("modest")
    heavy[0].leave()
    assert have_come(light, *heavy[2:]) == [True, False, False, False]


def test_one_client_and_one_kind_leave_places_to_others() -> None:
    all_turns = turns(4, of_client=3, of_kind=2)
    one = [all_turns.enter("a", kind) for kind in ("x", "x", "x", "y", "z")]
    assert have_come(*one) == [True, True, False, True, False]
    assert have_come(all_turns.enter("b", "x"), all_turns.enter("b", "z")) == [False, True]


def test_abandoned_turn_never_comes() -> None:
    all_turns = turns(1)
    first, left, last = (all_turns.enter("a") for _ in range(3))
    left.leave()
    first.leave()
    assert have_come(left, last) == [False, True]
    left.leave()  # leaving twice is allowed
    assert have_come(last) == [True]


def test_full_queue_raises_server_busy() -> None:
    all_turns = turns(1, longest_queue=1)
    working, waiting = all_turns.enter("a"), all_turns.enter("a")
    with pytest.raises(ServerBusyError):
        all_turns.enter("b")
    working.leave()
    assert have_come(waiting) == [True]


def test_waiting_reports_how_many_are_ahead_until_the_turn_comes() -> None:
    async def wait() -> list[int]:
        all_turns = turns(1)
        first, second, third = (all_turns.enter("a") for _ in range(3))
        reported = []
        async for ahead in third.waiting():
            reported.append(ahead)
            (first if ahead == 2 else second).leave()
        return reported

    assert asyncio.run(wait()) == [2, 1]


def test_immediate_turn_does_not_wait() -> None:
    async def wait() -> list[int]:
        return [ahead async for ahead in turns(1).enter("a").waiting()]

    assert asyncio.run(wait()) == []

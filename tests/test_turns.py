"""Fairness of turns between clients, in any order of arrival."""

from __future__ import annotations

from bisect import insort
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from puna.turns import ClientRotation, Turn

#: A client's new sequence, whether it first withdraws its waiting ones, and how many are served afterwards.
ARRIVALS = st.lists(
    st.tuples(st.sampled_from("abcd"), st.sampled_from([False, False, False, True]), st.integers(0, 3)),
    min_size=1,
    max_size=60,
)


@given(ARRIVALS)
@settings(max_examples=200)
def test_next_sequence_waits_for_at_most_one_of_each_other_client(
    arrivals: list[tuple[str, bool, int]],
) -> None:
    turns = ClientRotation()
    waiting: list[tuple[Turn, int, str]] = []
    served: list[int] = []
    ahead: dict[int, dict[int, str]] = {}  # sequences waiting ahead of a client's only one

    def serve() -> None:
        turn, number, client = waiting.pop(0)
        turns.served(client, turn)
        served.append(number)

    for number, (client, gives_up, count) in enumerate(arrivals):
        if gives_up and any(other == client for _, _, other in waiting):
            waiting = [entry for entry in waiting if entry[2] != client]
            turns.emptied(client)
        if all(other != client for _, _, other in waiting):
            ahead[number] = {before: other for _, before, other in waiting}
        insort(waiting, (turns.take(client), number, client))
        for _ in range(min(count, len(waiting))):
            serve()
    while waiting:
        serve()
    for number, before in ahead.items():
        if number in served:
            first = Counter(before[other] for other in served[: served.index(number)] if other in before)
            assert all(count == 1 for count in first.values())


def test_single_client_is_served_in_order_of_arrival() -> None:
    turns = ClientRotation()
    taken = [turns.take("") for _ in range(5)]
    for turn in taken[:3]:
        turns.served("", turn)
    taken += [turns.take("") for _ in range(5)]
    assert taken == sorted(set(taken))


def test_departed_clients_are_forgotten() -> None:
    turns = ClientRotation()
    for number in range(1000):
        turns.served(f"{number}", turns.take(f"{number}"))
        turns.served("always", turns.take("always"))
    assert len(turns._latest) <= 2

"""The automaton agrees with searching the text anew after every byte."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from puna.engine.text import StopSearch, stop_search

TEXT = st.text("abé", max_size=12)


@given(st.lists(st.text("abé", min_size=1, max_size=4), min_size=1, max_size=5), TEXT)
def test_depth_and_match_agree_with_a_plain_search(stops: list[str], text: str) -> None:
    search, state, read = StopSearch(stops), 0, b""
    for byte in text.encode():
        state = search.step(state, byte)
        read += bytes([byte])
        beginnings = {stop.encode()[:size] for stop in stops for size in range(1, len(stop.encode()) + 1)}
        assert search.depth(state) == max(
            (len(start) for start in beginnings if read.endswith(start)), default=0
        )
        ended = [stop for stop in stops if read.endswith(stop.encode())]
        assert search.found(state) == max(ended, key=len, default="")


def test_the_same_stop_strings_are_prepared_once() -> None:
    assert stop_search(("a", "b")) is stop_search(("a", "b"))
    assert stop_search(("",)) is None

"""Log lines are complete however the bytes arrive, and never longer than the limit."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from puna.runner.spawned import LONGEST_LINE, Lines


@given(st.text(st.sampled_from("aé\n"), max_size=40), st.integers(1, 7))
def test_lines_are_complete_and_in_order(text: str, step: int) -> None:
    lines, data = Lines(), text.encode()
    found = [line for i in range(0, len(data), step) for line in lines.feed(data[i : i + step])]
    assert found + lines.end() == text.splitlines()


def test_long_line_is_cut_and_says_so() -> None:
    lines = Lines()
    assert not any(lines.feed(b"x" * 1000) for _ in range(1000))
    long, short = lines.feed(b"\nshort\n")
    assert long == "x" * LONGEST_LINE + f" [... {1_000_000 - LONGEST_LINE} more bytes]"
    assert short == "short"
    assert lines.end() == []

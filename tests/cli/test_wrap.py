"""Word wrap, tested by the resulting screen."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from wcwidth import wcswidth

from puna.cli.answer import WordWrap
from tests.cli.screen import screen_lines


def shown(text: str, columns: int, pieces: int = 1) -> list[str]:
    wrap = WordWrap(lambda: columns)
    return screen_lines("".join(wrap.feed(text[i : i + pieces]) for i in range(0, len(text), pieces)))


def test_a_word_that_does_not_fit_moves_down_whole() -> None:
    assert shown("the quick brown fox", 11) == ["the quick ", "brown fox"]


def test_a_space_at_the_edge_becomes_the_line_break() -> None:
    assert shown("abcd efgh ijkl", 4) == ["abcd", "efgh", "ijkl"]


def test_a_word_longer_than_the_line_is_split() -> None:
    assert shown("see abcdefghij", 4) == ["see ", "abcd", "efgh", "ij"]


def test_line_breaks_of_the_text_stay() -> None:
    assert shown("one\n\n  two three\n", 8) == ["one", "", "  two ", "three", ""]


def test_code_blocks_are_not_wrapped() -> None:
    code = "```python\nprint('a rather long line of code')\n```"
    assert shown(code + "\nand some text", 10) == [*code.split("\n"), "and some ", "text"]


def test_wide_characters_count_double_and_break_anywhere() -> None:
    assert shown("日本語の文章", 5) == ["日本", "語の", "文章"]
    assert shown("ab 日本語", 6) == ["ab 日", "本語"]


def test_the_width_may_change_during_an_answer() -> None:
    columns = 20
    wrap = WordWrap(lambda: columns)
    output = wrap.feed("one two three ")
    columns = 8
    assert screen_lines(output + wrap.feed("four five")) == ["one two three ", "four ", "five"]


words = st.lists(st.text("abcdefghé", min_size=1, max_size=12), max_size=30)


@given(words, st.integers(12, 40), st.integers(1, 9))
def test_words_stay_whole_and_lines_fit(text: list[str], columns: int, pieces: int) -> None:
    lines = shown(" ".join(text), columns, pieces)
    assert " ".join(lines).split() == text
    assert all(len(line) <= columns for line in lines)


@given(st.text("ab 日語\n", max_size=80), st.integers(2, 20))
def test_nothing_is_lost_and_every_line_fits(text: str, columns: int) -> None:
    lines = shown(text, columns)
    assert "".join("".join(lines).split()) == "".join(text.split())
    assert all(wcswidth(line) <= columns for line in lines)

"""Thinking is separated from content wherever the stream is cut."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from puna.chat.answers.family import AnswerParser
from puna.chat.answers.parts import Said, Thought
from tests.chat.answers.reading import THINK, read, reading


def split(pieces: list[str], prompt: str = "") -> tuple[str, str]:
    found = read(reading("plain", thinking=THINK, prompt=prompt, tools=[]), pieces)
    return found.thinking, found.text


@pytest.mark.parametrize(
    ("pieces", "thinking", "content"),
    [
        (["<think> internal </think> world"], "internal ", "world"),
        ([" a<think>b</think>"], "", " a<think>b</think>"),
        (["<think>a</think>b<think>c</think>d"], "a", "b<think>c</think>d"),
        (["<thi", "nk>x</think", ">y"], "x", "y"),
        (["<think>x"], "x", ""),
        (["\n <think>\n\nx\n</think>\n\n y "], "x\n", "y "),
        (["<think></think>y"], "", "y"),
        (["plain"], "", "plain"),
        (["<thi"], "", "<thi"),
        (["  "], "", "  "),
        ([""], "", ""),
        (["<think>a</thin</think>b"], "a</thin", "b"),
        (["<think>a</thi"], "a</thi", ""),
        (["<think>a<</think>b"], "a<", "b"),
    ],
)
def test_an_answer_is_split(pieces: list[str], thinking: str, content: str) -> None:
    assert split(pieces) == (thinking, content)


def test_a_tag_is_held_back_until_it_is_certain() -> None:
    parser = AnswerParser(reading("plain", thinking=THINK, tools=[]))
    assert parser.feed("<thi") == []
    assert parser.feed("nk>x</think") == [Thought("x")]
    assert parser.feed(">y") == [Said("y")]


def test_thinking_has_begun_if_the_prompt_ends_in_the_tag() -> None:
    assert split(["a</think>b"], prompt="Q\n<think>\n") == ("a", "b")
    assert split(["a</think>b"], prompt="Q\n<think>\n.") == ("", "a</think>b")


_TEXT = st.lists(
    st.sampled_from(["<think>", "</think>", "<thi", "</th", "<", ">", " ", "\n", "a", "b", "think"]),
    max_size=12,
).map("".join)


@given(_TEXT, st.lists(st.integers(0, 60), max_size=8))
def test_cuts_make_no_difference(text: str, cuts: list[int]) -> None:
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[a:b] for a, b in itertools.pairwise(places)]
    assert split(pieces) == split([text]) == expected(text)


def expected(text: str) -> tuple[str, str]:
    """Return thinking and text by the rule, with all of the answer at hand."""
    thinking, said, mentioned = "", "", 0
    if match := re.match(r"\s*<think>\s*(.*?)(?:</think>\s*|\Z)", text, re.DOTALL):
        thinking, text = match[1], text[match.end() :]
    while match := re.search("<think>|</think>", text):
        said, text = said + text[: match.start()], text[match.end() :]
        begins_line = not said.rpartition("\n")[2].strip()
        if match[0] == "<think>":
            thought = re.match(r"\s*(.*?)</think>\s*", text, re.DOTALL)
            if begins_line and thought:
                thinking, text = thinking + thought[1], text[thought.end() :]
            else:
                said, mentioned = said + match[0], mentioned + 1
        elif mentioned:
            said, mentioned = said + match[0], mentioned - 1
        elif begins_line:
            text = text.lstrip()
        else:
            more = re.match(r"([ \t]*</think>)*", text)
            assert more
            tags, text = match[0] + more[0], text[more.end() :]
            if not re.match(r"[ \t]*(\r|\n|\Z)", text):
                said += tags
    return thinking, said + text


@pytest.mark.parametrize(
    ("answer", "thinking", "content"),
    [
        ("The sum is 4.\n</think>\n\nIt is 4.", "", "The sum is 4.\nIt is 4."),
        ("The sum is 4.</think>\n\nIt is 4.", "", "The sum is 4.\n\nIt is 4."),
        ("</think>\n\nIt is 4.", "", "It is 4."),
        ("The sum is 4.</think></think>\nIt is 4.", "", "The sum is 4.\nIt is 4."),
        ("<think>a</think>Yes.\n<think>b</think>\nNo.", "ab", "Yes.\nNo."),
        ("Yes.\n<think> b", "", "Yes.\n<think> b"),
        ('re.sub("<think>.*?</think>", "", text)', "", 're.sub("<think>.*?</think>", "", text)'),
        ("Close `</think>` first.", "", "Close `</think>` first."),
    ],
)
def test_tags_later_in_an_answer_are_markup_around_lines(answer: str, thinking: str, content: str) -> None:
    assert split(list(answer)) == split([answer]) == (thinking, content)

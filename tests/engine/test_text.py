"""Release of generated text.

The first stop string in the text counts, and U+FFFD replaces a byte that fits no character.
"""

from __future__ import annotations

import codecs

import pytest
from hypothesis import given
from hypothesis import strategies as st

from puna.chat.answers.parts import Said, Thought
from puna.engine.answers import _in_order
from puna.engine.text import TextStream, TokenText, incomplete_tail
from puna.protocol import CallDelta


def run(pieces: list[bytes], stop: list[str]) -> tuple[list[str], list[int], str | None]:
    """Return the released chunks, the numbers of pieces in each, and the stop string found."""
    stream, shown, tokens = TextStream(stop), [], []
    for number, piece in enumerate(pieces):
        released = stream.feed(TokenText(number, piece))
        shown.append(released.text)
        tokens += [piece.token for piece in released.pieces]
        if released.stop is not None:
            return shown, tokens, released.stop
    released = stream.flush()
    return [*shown, released.text], tokens + [piece.token for piece in released.pieces], None


def test_text_without_stops_passes_at_once() -> None:
    assert run([b"Hel", b"lo"], []) == (["Hel", "lo", ""], [0, 1], None)


def test_a_stop_string_across_tokens_ends_the_text_before_it() -> None:
    shown, tokens, stop = run([b"one ", b"<e", b"nd", b"> two"], ["<end>"])
    assert ("".join(shown), stop) == ("one ", "<end>")
    assert tokens == [0]


def test_a_token_that_is_only_partly_cut_keeps_its_entry() -> None:
    shown, tokens, stop = run([b"a", b"b<end>"], ["<end>"])
    assert ("".join(shown), tokens, stop) == ("ab", [0, 1], "<end>")


@pytest.mark.parametrize(  # one log-probability for every remaining piece
    ("pieces", "stop", "text", "left"),
    [
        (["hello", "world"], "world", "hello", 1),
        (["hello", "wor"], "or", "hellow", 2),
        (["Hello", " there", "!"], "!", "Hello there", 2),
        (["Hello", " the", "re!"], "there!", "Hello ", 2),
        (["hello", " wor"], "llo w", "he", 1),
    ],
)
def test_text_before_a_stop_string_is_released(pieces: list[str], stop: str, text: str, left: int) -> None:
    shown, tokens, found = run([piece.encode() for piece in pieces], [stop])
    assert ("".join(shown), tokens, found) == (text, list(range(left)), stop)


def test_held_text_is_released_with_the_text_after_it() -> None:
    shown, tokens, _ = run([b"a ", b"wo", b"man"], ["world"])
    assert shown == ["a ", "", "woman", ""]
    assert tokens == [0, 1, 2]


def test_the_earliest_stop_wins_whatever_its_place_in_the_list() -> None:
    shown, _, stop = run([b"x", b"B and A"], ["A", "B"])
    assert ("".join(shown), stop) == ("x", "B")
    shown, _, stop = run([b"xayb"], ["b", "a"])
    assert ("".join(shown), stop) == ("x", "a")


def test_text_that_only_began_like_a_stop_is_released() -> None:
    shown, tokens, stop = run([b"a<e", b"x>"], ["<end>"])
    assert shown == ["a", "<ex>", ""]
    assert (tokens, stop) == ([0, 1], None)


def test_held_text_is_released_at_the_end() -> None:
    assert run([b"a<en"], ["<end>"]) == (["a", "<en"], [0], None)


def test_overlapping_beginnings_of_a_stop_are_all_remembered() -> None:
    shown, _, stop = run([b"a", b"a", b"b"], ["aab"])
    assert ("".join(shown), stop) == ("", "aab")
    shown, _, stop = run([b"a", b"a", b"a", b"b", b"!"], ["aab"])
    assert ("".join(shown), stop) == ("a", "aab")


def test_characters_are_never_split() -> None:
    euro = "€".encode()
    assert run([euro[:1], euro[1:2], euro[2:], b"!"], []) == (["", "", "€", "!", ""], [0, 1, 2, 3], None)
    assert run([b"\xf0\x9f", b"\x98\x80"], []) == (["", "\U0001f600", ""], [0, 1], None)


def test_half_a_character_at_the_end_is_dropped() -> None:
    assert run([b"a\xe2\x82"], []) == (["a", ""], [0], None)


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_a_character_is_released_with_its_last_byte(text: str) -> None:
    shown, _, _ = run([bytes([byte]) for byte in text.encode()], [])
    assert [chunk for chunk in shown if chunk] == list(text)


@given(st.binary(max_size=30))
def test_bytes_that_cannot_become_a_character_are_replaced_at_once(data: bytes) -> None:
    shown, tokens, _ = run([bytes([byte]) for byte in data], [])
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    # An unfinished character at the end is not shown.
    assert shown == [*(decoder.decode(bytes([byte])) for byte in data), ""]
    assert tokens == list(range(len(data)))


def test_empty_stop_strings_are_ignored() -> None:
    assert run([b"a"], [""]) == (["a", ""], [0], None)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", 0), (b"a", 0), ("é".encode(), 0), (b"\xc3", 1), (b"a\xe2", 1), (b"a\xe2\x82", 2),
        (b"\xf0\x9f\x98", 3), ("😀".encode(), 0), (b"\x80\x80", 0), (b"\xff", 0), (b"\xc0", 0),
        (b"\xe0\x80", 0), (b"\xf4\x90", 0), (b"\xf0\x9f\xc3", 1),
        (b"\xc2", 1), (b"\xe0\xa0", 2), (b"\xe0", 1), (b"\xf0\x92\x8a", 3), (b"\xf0\x92", 2), (b"\xf0", 1),
        (b"hi", 0), (b"\xc2\xa3", 0), (b"\xe0\xa0\x80", 0), (b"\xf0\x92\x8a\xb7", 0),
    ],
)  # fmt: skip
def test_the_incomplete_tail_of_utf_8_is_found(data: bytes, expected: int) -> None:
    assert incomplete_tail(data) == expected


@given(
    st.text(max_size=40), st.lists(st.integers(1, 5), min_size=1), st.lists(st.text(min_size=1, max_size=4))
)
def test_the_cuts_of_text_into_tokens_make_no_difference(
    text: str, lengths: list[int], stops: list[str]
) -> None:
    data, pieces, at = text.encode(), [], 0
    while at < len(data):
        length = lengths[len(pieces) % len(lengths)]
        pieces.append(data[at : at + length])
        at += length
    shown, tokens, stop = run(pieces, stops)
    ends = [(text.find(s), s) for s in stops if s in text]
    if ends:
        # A stop is found once all of it has arrived, so one that ends earlier in the text may be found before
        # the one that begins first; both end the text before a stop.
        assert stop in stops
        assert text.startswith("".join(shown) + stop)
        assert not any(s in "".join(shown) for s in stops)
    else:
        assert ("".join(shown), stop) == (text, None)
        assert tokens == list(range(len(pieces)))


def test_parts_released_together_keep_their_order() -> None:
    call = CallDelta(0, "a", "f", "{}")
    assert _in_order([Thought("a"), Said("b"), call, call]) == [("a", "b", [call, call])]
    assert _in_order([call, Said("b"), Thought("c"), Said("d")]) == [
        ("", "", [call]),
        ("", "b", []),
        ("c", "d", []),
    ]

"""Text from tokens as they arrive."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from puna.model.tokenizer import StreamDecoder, Tokenizer
from tests.model.tokenizer.vocabularies import build, gpt2_bytes


@pytest.fixture(scope="module")
def bytewise(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """A vocabulary of single bytes: token id = byte."""
    path = tmp_path_factory.mktemp("stream") / "v.gguf"
    return build(path, "gpt2", tokens=gpt2_bytes(), merges=["a b"], pre="gpt-2")


def test_a_character_comes_out_with_its_last_byte(bytewise: Tokenizer) -> None:
    decoder = StreamDecoder(bytewise)
    assert [decoder.feed(byte) for byte in "a🦙é".encode()] == ["a", "", "", "", "🦙", "", "é"]
    assert decoder.flush() == ""


@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_chunks_are_whole_characters_that_join_to_the_text(bytewise: Tokenizer, text: str) -> None:
    decoder = StreamDecoder(bytewise)
    assert [chunk for byte in text.encode() if (chunk := decoder.feed(byte))] == list(text)


@given(data=st.binary(max_size=30))
def test_any_bytes_can_be_fed(bytewise: Tokenizer, data: bytes) -> None:
    decoder = StreamDecoder(bytewise)
    text = "".join(decoder.feed(byte) for byte in data) + decoder.flush()
    whole = data.decode(errors="replace")
    # An unfinished character at the end is dropped instead of replaced.
    assert whole == text or (whole.removesuffix("\ufffd") == text)


def test_an_unfinished_character_is_dropped_at_the_end(bytewise: Tokenizer) -> None:
    decoder = StreamDecoder(bytewise)
    assert [decoder.feed(byte) for byte in b"a\xf0\x9f"] == ["a", "", ""]
    assert decoder.flush() == ""
    assert decoder.feed(ord("b")) == "b"


def test_bytes_that_cannot_become_a_character_are_replaced(bytewise: Tokenizer) -> None:
    decoder = StreamDecoder(bytewise)
    assert "".join(decoder.feed(byte) for byte in b"\xffa\xe2b") == "\ufffda\ufffdb"

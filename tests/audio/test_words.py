"""Words of tokens against transformers' functions."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers.models.whisper.tokenization_whisper import _combine_tokens_into_words

from puna.audio.languages import LANGUAGES
from puna.audio.words import words_of


class Spelling:
    """The part of transformers' tokenizer that joining uses, for a token of each piece."""

    eos_token_id = 1 << 30

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pieces

    def decode(self, tokens: list[int], **_: bool) -> str:
        return b"".join(self._pieces[token] for token in tokens).decode(errors="replace")


def expected(pieces: list[bytes], language: str) -> list[tuple[str, list[int]]]:
    words, tokens, _ = _combine_tokens_into_words(
        Spelling(pieces), [*range(len(pieces))], LANGUAGES[language]
    )
    return [*zip(words, tokens, strict=True)]


def found(pieces: list[bytes], language: str) -> list[tuple[str, list[int]]]:
    return [(word.text, [*range(word.begin, word.end)]) for word in words_of(pieces, language)]


def cut(text: str, seed: int) -> list[bytes]:
    """Return the bytes of `text` in pieces of 1 to 4, with a cut before each space."""
    chance, data, pieces, begin = random.Random(seed), text.encode(), [], 0
    while begin < len(data):
        end = min(begin + chance.randint(1, 4), len(data))
        space = data.find(b" ", begin + 1, end)
        pieces.append(data[begin : space if space > 0 else end])
        begin += len(pieces[-1])
    return pieces


TEXTS = {
    "en": ' Ask not, "what (your) country can do..." It\'s 5.5 ¿no? - [yes]!',
    "de": " Schöne Grüße – aus Köln: „gut“.",
    "ja": "あなたの国があなたのために何ができるか、を問うな。「はい」",
    "zh": "不要问,你的国家! (能)为你做什么",
    "th": "อย่าถามว่า 5 ประเทศ",
    "yue": " 唔好問。 OK ?",
    "fr": "L'été , c'est « bien » ! 🙂 ",
}


@pytest.mark.parametrize("language", TEXTS)
def test_words_are_those_of_the_reference(language: str) -> None:
    for seed in range(20):
        pieces = cut(TEXTS[language], seed)
        assert found(pieces, language) == expected(pieces, language)


@given(
    st.lists(st.sampled_from([" a", "b", " (", '"', " ", ".", " .", "é", ", ", "…", "-", " -", "。"])),
    st.sampled_from(["en", "ja"]),
)
def test_punctuation_is_joined_as_in_the_reference(texts: list[str], language: str) -> None:
    pieces = [text.encode() for text in texts]
    assert found(pieces, language) == expected(pieces, language)


@given(st.lists(st.binary(max_size=3)))
def test_wrong_bytes_are_part_of_a_word(pieces: list[bytes]) -> None:
    words = words_of(pieces, "en")
    assert [place for word in words for place in range(word.begin, word.end)] == [*range(len(pieces))]
    assert "".join(word.text for word in words) == b"".join(pieces).decode(errors="replace")

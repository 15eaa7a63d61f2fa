"""Words of a transcript, joined from tokens as in Whisper's reference (`tokenizer.py`, `timing.py`)."""

from __future__ import annotations

import codecs
import string
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

#: Languages that do not separate words by spaces, by code: their parts are characters.
_UNSPACED: Final = frozenset({"zh", "ja", "th", "lo", "my", "yue"})
#: Punctuation that belongs to the word after it, and to the one before.
_OPENING: Final = "\"'“¡¿([{-"
_CLOSING: Final = "\"'.。,，!！?？:：”)]}、"


@dataclass
class WordTokens:
    """A word, and its tokens [begin, end) of a text."""

    text: str  # begins with a space where words are separated by them
    begin: int
    end: int


def words_of(pieces: Sequence[bytes], language: str) -> list[WordTokens]:
    """Return the words that `pieces` make up, the texts of tokens, in a language given by its code."""
    words = _characters(pieces)
    if language not in _UNSPACED:
        words = _spaced(words)
    return _with_punctuation(words)


def _characters(pieces: Sequence[bytes]) -> list[WordTokens]:
    """Return the shortest runs of tokens that end with a whole character. Wrong bytes become U+FFFD."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    found: list[WordTokens] = []
    text, begin = "", 0
    for index, piece in enumerate(pieces):
        last = index + 1 == len(pieces)
        text += decoder.decode(piece, last)
        if last or not decoder.getstate()[0]:
            found.append(WordTokens(text, begin, index + 1))
            text, begin = "", index + 1
    return found


def _spaced(parts: list[WordTokens]) -> list[WordTokens]:
    """Join parts to words, which begin with a space, or are a token of punctuation."""
    found: list[WordTokens] = []
    for part in parts:
        if not found or part.text.startswith(" ") or part.text.strip() in string.punctuation:
            found.append(part)
        else:
            _join(found[-1], part)
    return found


def _with_punctuation(words: list[WordTokens]) -> list[WordTokens]:
    """Join punctuation with the words that it belongs to."""
    opened: list[WordTokens] = []  # the last word first
    for word in reversed(words):
        if opened and word.text.startswith(" ") and word.text.strip() in _OPENING:
            _join(word, opened.pop())
        opened.append(word)
    found: list[WordTokens] = []
    for word in reversed(opened):
        if found and not found[-1].text.endswith(" ") and word.text in _CLOSING:
            _join(found[-1], word)
        else:
            found.append(word)
    return found


def _join(word: WordTokens, following: WordTokens) -> None:
    word.text += following.text
    word.end = following.end

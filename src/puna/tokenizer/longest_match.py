"""Encoders that repeatedly take the longest token: WordPiece (BERT) and World (RWKV)."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Mapping
from operator import neg
from typing import Final, Generic, TypeVar

import regex  # type: ignore[import-untyped]
from tokenizers import normalizers

from puna.errors import TokenizerError
from puna.tokenizer.patterns import LONG_TEXT
from puna.tokenizer.tokenizer import WordCache
from puna.tokenizer.vocabulary import SPACE, Piece, TokenType, Vocabulary

Text = TypeVar("Text", str, bytes)

_START: Final = 3  # lengths are kept by so many characters, or bytes, at the start of a token


class LongestMatch(Generic[Text]):
    """Finds in a text which of the tokens `ids` begins at a place, the longest of them.

    Only lengths that tokens with that start have are tried, which keeps it quick where nothing ends a token.
    """

    def __init__(self, ids: Mapping[Text, int]) -> None:
        self._ids: Mapping[Text, int] = ids
        self._short: list[int] = list(range(_START - 1, 0, -1))
        self._lengths: dict[Text, list[int]] = {}  # descending
        for text in ids:
            length = len(text)
            if length >= _START:
                known = self._lengths.setdefault(text[:_START], self._short[:])
                if (at := bisect_left(known, -length, key=neg)) == len(known) or known[at] != length:
                    known.insert(at, length)

    def find(self, text: Text, at: int) -> tuple[int, int] | None:
        """The token's id, and the index after it; None if none begins there."""
        for length in self._lengths.get(text[at : at + _START], self._short):
            piece = text[at : at + length]
            id = self._ids.get(piece)
            if id is not None:
                return id, at + len(piece)
        return None


# As in BERT, every ASCII character except letters, digits, spaces and controls counts as punctuation.
_WORD = regex.compile(r"[!-/:-@\[-`{-~\p{P}]|[^\s!-/:-@\[-`{-~\p{P}]+")


class WordPieceEncoder:
    """BERT's tokenizer. GGUF files mark tokens that start a word with U+2581, not those that continue one."""

    def __init__(
        self, vocabulary: Vocabulary, unknown: int | None, *, lowercase: bool, strip_accents: bool
    ) -> None:
        if unknown is None:
            raise TokenizerError(f"{vocabulary.where}: key 'tokenizer.ggml.unknown_token_id' is missing")
        self._unknown = unknown
        self._normalizer = normalizers.BertNormalizer(
            clean_text=True, handle_chinese_chars=True, strip_accents=strip_accents, lowercase=lowercase
        )
        self._longest = LongestMatch(vocabulary.plain_ids)
        self._cache = WordCache()

    def encode(self, text: str, *, first: bool) -> list[int]:
        ids: list[int] = []
        cache = self._cache
        for word in _WORD.findall(self._normalized(text), concurrent=len(text) > LONG_TEXT):
            known = cache.get(word)
            if known is None:
                known = self._word(SPACE + word)
                cache.put(word, known)
            ids += known
        return ids

    def _normalized(self, text: str) -> str:
        """The library lets no other thread run while it is at work, so it gets long texts in slices."""
        # Each character becomes what it does alone: the marks whose order depends on others are left out.
        starts = range(0, len(text), LONG_TEXT)
        return "".join(self._normalizer.normalize_str(text[at : at + LONG_TEXT]) for at in starts)

    def _word(self, word: str) -> list[int]:
        """Ids of one word; just the unknown token if part of the word has no token."""
        ids: list[int] = []
        at = 0
        while at < len(word):
            found = self._longest.find(word, at)
            if found is None:
                return [self._unknown]
            id, at = found
            ids.append(id)
        return ids


#: Bytes of a token: twice those of the longest that is known.
_MAX_BYTES: Final = 256
_ESCAPE: Final = re.compile(rb"\\(?:x([0-9A-Fa-f]{2})|(.))", re.DOTALL)
_ESCAPED: Final = {b"t": b"\t", b"n": b"\n", b"r": b"\r"}


class WorldEncoder:
    """Greedy, whatever words are. Tokens are any bytes, spelled in files as in Python's `repr` of them."""

    def __init__(self, vocabulary: Vocabulary, unknown: int | None) -> None:
        kinds = TokenType.NORMAL, TokenType.USER_DEFINED, TokenType.BYTE
        ids = {bytes_of(vocabulary.texts[id]): id for id in vocabulary.of_type(*kinds)}
        ids.pop(b"", None)
        if (longest := max(map(len, ids), default=0)) > _MAX_BYTES:
            raise TokenizerError(
                f"{vocabulary.where}: a token has {longest} bytes; at most {_MAX_BYTES} are read"
            )
        lacking = next((byte for byte in range(256) if bytes([byte]) not in ids), None)
        if unknown is None and lacking is not None:
            raise TokenizerError(
                f"{vocabulary.where}: no token is the byte {lacking:#04x} alone, and key "
                "'tokenizer.ggml.unknown_token_id' is missing"
            )
        self._unknown = unknown
        self._longest = LongestMatch(ids)

    def encode(self, text: str, *, first: bool) -> list[int]:
        data, ids, at, find = text.encode(), [], 0, self._longest.find
        while at < len(data):
            found = find(data, at)
            if found is None:  # then there is an unknown token
                assert self._unknown is not None
                found = self._unknown, at + 1
            id, at = found
            ids.append(id)
        return ids


def bytes_of(spelling: str) -> bytes:
    """The bytes that a token of this spelling stands for."""
    return _ESCAPE.sub(_unescaped, spelling.encode(errors="surrogatepass"))


def _unescaped(match: re.Match[bytes]) -> bytes:
    digits, character = match.groups()
    if digits is not None:
        return bytes([int(digits, 16)])
    return _ESCAPED.get(character, character)


def escaped_piece(vocabulary: Vocabulary) -> Piece:
    """A function from token id to bytes for the tokens of `WorldEncoder`."""

    def piece(id: int) -> bytes:
        text, kind = vocabulary.texts[id], vocabulary.types[id]
        return text.encode() if kind in (TokenType.CONTROL, TokenType.UNKNOWN) else bytes_of(text)

    return piece

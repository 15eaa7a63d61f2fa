"""Encoders that repeatedly take the longest matching token: WordPiece (BERT) and World (RWKV)."""

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

_START: Final = 3  # characters or bytes of a token's start, by which lengths are indexed


class LongestMatch(Generic[Text]):
    """A search for the longest of the tokens `ids` at a position in a text.

    It tries only the lengths of tokens with the same start, which keeps it fast for texts without word ends.
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
        """Return the id of the longest token at `at` and the index after it, or None."""
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
        """Normalise a text, a long one in slices, because the library blocks other threads while it runs."""
        # Characters are normalised independently: marks whose order depends on their neighbours are removed.
        starts = range(0, len(text), LONG_TEXT)
        return "".join(self._normalizer.normalize_str(text[at : at + LONG_TEXT]) for at in starts)

    def _word(self, word: str) -> list[int]:
        """Return the ids of one word; just the unknown token if part of the word has no token."""
        ids: list[int] = []
        at = 0
        while at < len(word):
            found = self._longest.find(word, at)
            if found is None:
                return [self._unknown]
            id, at = found
            ids.append(id)
        return ids


#: Bytes of a token: twice the longest known.
_MAX_BYTES: Final = 256
_ESCAPE: Final = re.compile(rb"\\(?:x([0-9A-Fa-f]{2})|(.))", re.DOTALL)
_ESCAPED: Final = {b"t": b"\t", b"n": b"\n", b"r": b"\r"}


class WorldEncoder:
    """RWKV's greedy encoder, which ignores words.

    Tokens are any bytes, spelled in files like Python's `repr`.
    """

    def __init__(self, vocabulary: Vocabulary, unknown: int | None) -> None:
        kinds = TokenType.NORMAL, TokenType.USER_DEFINED, TokenType.BYTE
        ids = {bytes_of(vocabulary.texts[id]): id for id in vocabulary.of_type(*kinds)}
        ids.pop(b"", None)
        if (longest := max(map(len, ids), default=0)) > _MAX_BYTES:
            raise TokenizerError(
                f"{vocabulary.where}: a token has {longest} bytes; the maximum is {_MAX_BYTES}"
            )
        lacking = next((byte for byte in range(256) if bytes([byte]) not in ids), None)
        if unknown is None and lacking is not None:
            raise TokenizerError(
                f"{vocabulary.where}: no token stands for the byte {lacking:#04x}, and key "
                "'tokenizer.ggml.unknown_token_id' is missing"
            )
        self._unknown = unknown
        self._longest = LongestMatch(ids)

    def encode(self, text: str, *, first: bool) -> list[int]:
        data, ids, at, find = text.encode(), [], 0, self._longest.find
        while at < len(data):
            found = find(data, at)
            if found is None:  # in which case there is an unknown token
                assert self._unknown is not None
                found = self._unknown, at + 1
            id, at = found
            ids.append(id)
        return ids


def bytes_of(spelling: str) -> bytes:
    """Return the bytes that a token spelled `spelling` stands for."""
    return _ESCAPE.sub(_unescaped, spelling.encode(errors="surrogatepass"))


def _unescaped(match: re.Match[bytes]) -> bytes:
    digits, character = match.groups()
    if digits is not None:
        return bytes([int(digits, 16)])
    return _ESCAPED.get(character, character)


def escaped_piece(vocabulary: Vocabulary) -> Piece:
    """Return a function from token id to bytes for the tokens of `WorldEncoder`."""

    def piece(id: int) -> bytes:
        text, kind = vocabulary.texts[id], vocabulary.types[id]
        return text.encode() if kind in (TokenType.CONTROL, TokenType.UNKNOWN) else bytes_of(text)

    return piece

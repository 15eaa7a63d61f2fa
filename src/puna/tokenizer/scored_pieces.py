"""PLaMo's way of splitting text: into the pieces with the largest total score, without regard to words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from puna.errors import TokenizerError
from puna.tokenizer.vocabulary import Piece, TokenType, Vocabulary, byte_of

#: Steps per unit of a score: costs are integers, so that sums are exact.
_STEPS: Final = 1e4
#: Cost, in steps, of a character that becomes bytes; pieces that cost twice as much are not used.
_BYTES_COST: Final = 10_000_000
#: Characters of a piece: hostile vocabularies have lengths that take long to try.
_MAX_CHARACTERS: Final = 256
_BOM: Final = "\ufeff"
_START: Final = 2  # characters of a piece's start, by which lengths are indexed
_SINGLE: Final = (1,)
_AS_BYTES: Final = -1  # in place of a piece's id


class ScoredPieceEncoder:
    """Encoder of texts as the pieces with the largest total score; of equal ones, those that begin longest.

    A character that no piece covers becomes the tokens of its bytes in UTF-8.
    """

    def __init__(self, vocabulary: Vocabulary, scores: Sequence[float]) -> None:
        self._pieces: dict[str, tuple[int, int, int]] = {}  # cost, characters, id
        self._lengths: dict[str, list[int]] = {}  # descending, of pieces that begin so
        bytes_of: dict[int, int] = {}
        for id in vocabulary.of_type(TokenType.BYTE):
            if (byte := byte_of(vocabulary.texts[id])) is not None:
                bytes_of[byte] = id
        if lacking := [byte for byte in range(256) if byte not in bytes_of]:
            raise TokenizerError(f"{vocabulary.where}: no token stands for the byte {lacking[0]:#04x}")
        self._bytes = [bytes_of[byte] for byte in range(256)]
        lengths: dict[str, set[int]] = {}
        for id in vocabulary.of_type(TokenType.NORMAL, TokenType.USER_DEFINED):
            text, cost = vocabulary.texts[id], _steps(-scores[id])
            if not text or cost >= 2 * _BYTES_COST:
                continue
            if len(text) > _MAX_CHARACTERS:
                raise TokenizerError(
                    f"{vocabulary.where}: a token has {len(text)} characters; the maximum is "
                    f"{_MAX_CHARACTERS}"
                )
            self._pieces[text] = cost, len(text), id
            lengths.setdefault(text[:_START], set()).add(len(text))
        for start, each in lengths.items():
            each.add(1)
            self._lengths[start] = sorted(each, reverse=True)

    def encode(self, text: str, *, first: bool) -> list[int]:
        text = text.removeprefix(_BOM)
        chosen, ids, at = self._choose(text), [], 0
        while at < len(text):
            count, id = chosen[at]
            ids += (
                [id] if id != _AS_BYTES else [self._bytes[byte] for byte in text[at].encode(errors="replace")]
            )
            at += count
        return ids

    def _choose(self, text: str) -> list[tuple[int, int]]:
        """Return the best piece at each character of `text`: its number of characters and its id."""
        pieces, lengths = self._pieces, self._lengths
        costs, chosen = [0] * (len(text) + 1), [(1, _AS_BYTES)] * len(text)
        for at in range(len(text) - 1, -1, -1):  # costs are those of the text from each character on
            best = math.inf
            for length in lengths.get(text[at : at + _START], _SINGLE):
                if (found := pieces.get(text[at : at + length])) is not None:
                    cost, count, id = found
                    if (total := cost + costs[at + count]) < best:
                        best, chosen[at] = total, (count, id)
            if (total := costs[at + 1] + _BYTES_COST) < best:
                best, chosen[at] = total, (1, _AS_BYTES)
            costs[at] = int(best)
        return chosen


def _steps(cost: float) -> int:
    """Return the nearest number of steps, the larger one of two."""
    return int(math.copysign(math.floor(abs(cost) * _STEPS + 0.5), cost))


def raw_piece(vocabulary: Vocabulary) -> Piece:
    """Return a function from token id to bytes for the tokens of `ScoredPieceEncoder`."""

    def piece(id: int) -> bytes:
        text = vocabulary.texts[id]
        byte = byte_of(text) if vocabulary.types[id] == TokenType.BYTE else None
        return text.encode(errors="replace") if byte is None else bytes([byte])

    return piece

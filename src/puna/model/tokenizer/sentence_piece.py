"""SentencePiece BPE: merges are ranked by the score of the resulting token (spec B5)."""

from __future__ import annotations

import math
import struct

from sentencepiece import SentencePieceProcessor

from puna.errors import TokenizerError
from puna.model.tokenizer.pieces import byte_of
from puna.model.tokenizer.vocabulary import TokenType, Vocabulary

# Field numbers and values of sentencepiece_model.proto.
_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3
_PIECE_TEXT, _PIECE_SCORE, _PIECE_TYPE = 1, 2, 3
_MODEL_TYPE, _MODEL_TYPE_BPE, _BYTE_FALLBACK = 3, 2, 35
_NAME, _ADD_PREFIX, _REMOVE_SPACES, _ESCAPE_SPACES = 1, 3, 4, 5
_NORMAL, _UNKNOWN, _CONTROL, _BYTE = 1, 2, 3, 6


class SentencePieceEncoder:
    """Encodes with the `sentencepiece` library, the file's tokens and scores, and no normalisation."""

    def __init__(self, vocabulary: Vocabulary, scores: list[float], *, space_prefix: bool) -> None:
        if any(math.isnan(score) for score in scores):
            raise TokenizerError(f"{vocabulary.where}: a token's score is not a number")
        self._size = len(vocabulary)
        model, extra = _model(vocabulary, scores)
        self._drop = extra > 0
        self._space_prefix = space_prefix
        try:
            self._processor = SentencePieceProcessor(model_proto=model)
        except RuntimeError as error:
            raise TokenizerError(f"{vocabulary.where}: the vocabulary is not usable ({error})") from error

    def encode(self, text: str, *, first: bool) -> list[int]:
        if first and self._space_prefix:
            text = " " + text
        ids: list[int] = self._processor.encode(text, out_type=int)
        return [id for id in ids if id < self._size] if self._drop else ids


def _model(vocabulary: Vocabulary, scores: list[float]) -> tuple[bytes, int]:
    """The vocabulary as a serialised model, and the number of pieces added to it.

    Only plain tokens can be produced from text; all others become control pieces. The library requires
    distinct names without NUL, one unknown piece and all 256 bytes.
    """
    plain = vocabulary.plain_ids
    mark = "\1"
    while any(text.startswith(mark) for text in plain):
        mark += "\1"
    parts: list[bytes] = []
    bytes_seen: set[int] = set()
    for id, (text, kind, score) in enumerate(zip(vocabulary.texts, vocabulary.types, scores, strict=True)):
        if plain.get(text) != id or "\0" in text:
            parts.append(_piece(f"{mark}{id}", 0.0, _CONTROL))
            continue
        byte = byte_of(text) if kind == TokenType.BYTE or not vocabulary.has_types else None
        if byte is not None and text == f"<0x{byte:02X}>":
            bytes_seen.add(byte)
            parts.append(_piece(text, score, _BYTE))
        else:
            parts.append(_piece(text, score, _NORMAL))
    parts += [_piece(f"<0x{byte:02X}>", 0.0, _BYTE) for byte in range(256) if byte not in bytes_seen]
    parts.append(_piece(mark, 0.0, _UNKNOWN))
    extra = len(parts) - len(vocabulary)
    parts.append(_message(_TRAINER, _number(_MODEL_TYPE, _MODEL_TYPE_BPE) + _number(_BYTE_FALLBACK, 1)))
    normalizer = _message(_NAME, b"identity") + _number(_ADD_PREFIX, 0) + _number(_REMOVE_SPACES, 0)
    parts.append(_message(_NORMALIZER, normalizer + _number(_ESCAPE_SPACES, 1)))
    return b"".join(parts), extra


def _piece(text: str, score: float, kind: int) -> bytes:
    body = _message(_PIECE_TEXT, text.encode())
    body += bytes((_PIECE_SCORE << 3 | 5,)) + struct.pack("<f", score)
    return _message(_PIECES, body + _number(_PIECE_TYPE, kind))


def _message(number: int, body: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(body)) + body


def _number(number: int, value: int) -> bytes:
    return _varint(number << 3) + _varint(value)


def _varint(value: int) -> bytes:
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)

"""A vocabulary as the serialised model that the `sentencepiece` library reads (sentencepiece_model.proto)."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

from puna.model.tokenizer.vocabulary import TokenType, Vocabulary

UNIGRAM, BPE = 1, 2

# Field numbers of the format.
_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3
_PIECE_TEXT, _PIECE_SCORE, _PIECE_TYPE = 1, 2, 3
_MODEL_TYPE, _BYTE_FALLBACK = 3, 35
_NAME, _CHARSMAP, _ADD_PREFIX, _REMOVE_SPACES, _ESCAPE_SPACES = 1, 2, 3, 4, 5


@dataclass(frozen=True)
class Rules:
    """How text is normalised and cut into pieces."""

    kind: int  # UNIGRAM or BPE
    byte_fallback: bool
    charsmap: bytes = b""
    space_prefix: bool = False
    remove_extra_spaces: bool = False


def serialized(
    vocabulary: Vocabulary, scores: list[float], types: Mapping[int, TokenType], rules: Rules
) -> tuple[bytes, int]:
    """The model, and the number of pieces added to it.

    Tokens are pieces of `types`; those that it lacks are control pieces, which no text becomes. The library
    requires distinct names without NUL, one unknown piece and, to fall back to bytes, all 256 of them.
    """
    mark = "\1"
    while any(text.startswith(mark) for text in vocabulary.plain_ids):
        mark += "\1"
    parts: list[bytes] = []
    bytes_seen: set[str] = set()
    unknown = False
    for id, (text, score) in enumerate(zip(vocabulary.texts, scores, strict=True)):
        kind = types.get(id, TokenType.CONTROL)
        if kind == TokenType.BYTE:
            bytes_seen.add(text)
        unknown |= kind == TokenType.UNKNOWN
        named = kind not in (TokenType.CONTROL, TokenType.UNKNOWN)
        parts.append(_piece(text, score, kind) if named else _piece(f"{mark}{id}", 0.0, kind))
    if rules.byte_fallback:
        names = (f"<0x{byte:02X}>" for byte in range(256))
        parts += [_piece(name, 0.0, TokenType.BYTE) for name in names if name not in bytes_seen]
    if not unknown:
        parts.append(_piece(mark, 0.0, TokenType.UNKNOWN))
    extra = len(parts) - len(vocabulary)
    trainer = _number(_MODEL_TYPE, rules.kind) + _number(_BYTE_FALLBACK, rules.byte_fallback)
    normalizer = _message(_NAME, b"identity") + _message(_CHARSMAP, rules.charsmap)
    normalizer += _number(_ADD_PREFIX, rules.space_prefix)
    normalizer += _number(_REMOVE_SPACES, rules.remove_extra_spaces) + _number(_ESCAPE_SPACES, 1)
    parts += [_message(_TRAINER, trainer), _message(_NORMALIZER, normalizer)]
    return b"".join(parts), extra


def _piece(text: str, score: float, kind: TokenType) -> bytes:
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

"""SentencePiece's two ways of splitting text into pieces, both by the `sentencepiece` library.

BPE merges by the score of the resulting token (spec B5). Unigram finds the pieces with the largest total
log-probability (Kudo, arXiv:1804.10959), after replacing characters. The library gets the vocabulary as a
serialised model (sentencepiece_model.proto).

The table of replacements (sentencepiece's normalizer.cc) is the size of a trie in bytes, the trie, and the
replacements, each ending in a zero byte. The trie is a double array (darts-clone) of 32-bit units. From a
unit at index i the unit of the next byte b is at `i ^ offset ^ b`, and where a key ends, `i ^ offset` holds
the position of its replacement.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from sentencepiece import SentencePieceProcessor

from puna.errors import TokenizerError
from puna.tokenizer.vocabulary import TokenType, Vocabulary, byte_of

_SIZE_BYTES = 4
_IS_VALUE = np.uint32(1 << 31)
_HAS_VALUE = np.uint32(1 << 8)
_WIDE = np.uint32(1 << 9)
#: Limit on the bytes a character is replaced by. Unicode's longest compatibility form has 33.
LONGEST_REPLACEMENT = 128


def checked(charsmap: bytes, where: str) -> bytes:
    """Return `charsmap` if no lookup in it can leave it. Raises TokenizerError otherwise.

    The library does not check the table, which comes from an untrusted file.
    """
    size = int.from_bytes(charsmap[:_SIZE_BYTES], "little")
    if len(charsmap) < _SIZE_BYTES + size or size % 4 or not size:
        raise TokenizerError(f"{where}: the trie has {size} bytes, which do not fit the table")
    units = np.frombuffer(charsmap[_SIZE_BYTES : _SIZE_BYTES + size], "<u4")
    replacements = np.frombuffer(charsmap[_SIZE_BYTES + size :], np.uint8)
    if not replacements.size or replacements[-1]:
        raise TokenizerError(f"{where}: the last replacement is not terminated")
    inner = np.flatnonzero((units & _IS_VALUE) == 0).astype(np.uint32)
    found = units[inner]
    children = inner ^ ((found >> np.uint32(10)) << ((found & _WIDE) >> np.uint32(6)))
    if children.size and int((children | np.uint32(0xFF)).max()) >= len(units):
        raise TokenizerError(f"{where}: a lookup leaves the trie")
    places = units[children[(found & _HAS_VALUE) != 0]] & ~_IS_VALUE
    if places.size:
        if int(places.max()) >= len(replacements):
            raise TokenizerError(f"{where}: a key has no replacement")
        ends = np.flatnonzero(replacements == 0)
        if int((ends[np.searchsorted(ends, places)] - places).max()) > LONGEST_REPLACEMENT:
            raise TokenizerError(f"{where}: a replacement has more than {LONGEST_REPLACEMENT} bytes")
    return charsmap


UNIGRAM, BPE = 1, 2

# Field numbers of the format.
_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3
_PIECE_TEXT, _PIECE_SCORE, _PIECE_TYPE = 1, 2, 3
_MODEL_TYPE, _BYTE_FALLBACK = 3, 35
_NAME, _CHARSMAP, _ADD_PREFIX, _REMOVE_SPACES, _ESCAPE_SPACES = 1, 2, 3, 4, 5


@dataclass(frozen=True)
class Rules:
    """Settings of normalisation and splitting."""

    kind: int  # UNIGRAM or BPE
    byte_fallback: bool
    charsmap: bytes = b""
    space_prefix: bool = False
    remove_extra_spaces: bool = False


def serialized(
    vocabulary: Vocabulary, scores: list[float], types: Mapping[int, TokenType], rules: Rules
) -> tuple[bytes, int]:
    """Return the serialised model, and the number of pieces added to it.

    Tokens in `types` become pieces of that type; others become control pieces, which no text is encoded as.
    The library requires distinct names without NUL, one unknown piece and, for byte fallback, all 256 byte
    pieces.
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


#: Types that text may become in a Unigram vocabulary. Unused tokens are known to the library, but never
#: chosen.
_OF_UNIGRAM = (TokenType.NORMAL, TokenType.USER_DEFINED, TokenType.UNUSED)


class SentencePieceEncoder:
    """An encoder by the `sentencepiece` library with the file's tokens and scores, without normalisation."""

    def __init__(self, vocabulary: Vocabulary, scores: list[float], *, space_prefix: bool) -> None:
        types: dict[int, TokenType] = {}
        for text, id in _encodable(vocabulary).items():
            byte = vocabulary.types[id] == TokenType.BYTE or not vocabulary.has_types
            types[id] = TokenType.BYTE if byte and _names_byte(text) else TokenType.NORMAL
        self._library = _Library(vocabulary, scores, types, Rules(BPE, byte_fallback=True))
        self._space_prefix = space_prefix

    def encode(self, text: str, *, first: bool) -> list[int]:
        return self._library.encode(" " + text if first and self._space_prefix else text)


class UnigramEncoder:
    """An encoder using the `sentencepiece` library with the file's tokens, scores and normalisation.

    Text without a token becomes bytes if every byte has a token, otherwise the unknown token.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        scores: list[float],
        unknown: int | None,
        *,
        charsmap: bytes,
        space_prefix: bool,
        remove_extra_spaces: bool,
    ) -> None:
        if unknown is None:
            raise TokenizerError(f"{vocabulary.where}: key 'tokenizer.ggml.unknown_token_id' is missing")
        where = f"{vocabulary.where}: key 'tokenizer.ggml.precompiled_charsmap'"
        types: dict[int, TokenType] = {}
        bytes_: list[int] = []
        for text, id in _encodable(vocabulary).items():
            kind = TokenType(vocabulary.types[id])
            if kind in _OF_UNIGRAM:
                types[id] = kind
            elif kind == TokenType.BYTE and _names_byte(text):
                bytes_.append(id)
        spells = len(bytes_) == 256
        types |= dict.fromkeys(bytes_ if spells else [], TokenType.BYTE)
        types[unknown] = TokenType.UNKNOWN
        rules = Rules(
            UNIGRAM,
            byte_fallback=spells,
            charsmap=checked(charsmap, where) if charsmap else b"",
            space_prefix=space_prefix,
            remove_extra_spaces=remove_extra_spaces,
        )
        self._rules = rules
        self._made = partial(_Library, vocabulary, scores, types)
        self._libraries = {space_prefix: self._made(rules)}

    def encode(self, text: str, *, first: bool) -> list[int]:
        # Removing extra spaces also strips those at the start of a text, of which one may be needed as the
        # prefix.
        rules = self._rules
        prefix = rules.space_prefix if first else rules.remove_extra_spaces and text[:1].isspace()
        if prefix not in self._libraries:  # few texts continue another
            self._libraries[prefix] = self._made(replace(rules, space_prefix=prefix))
        return self._libraries[prefix].encode(text)


class _Library:
    """A model loaded by the library."""

    def __init__(
        self, vocabulary: Vocabulary, scores: list[float], types: Mapping[int, TokenType], rules: Rules
    ) -> None:
        if any(math.isnan(score) for score in scores):
            raise TokenizerError(f"{vocabulary.where}: a token's score is not a number")
        self._size = len(vocabulary)
        model, extra = serialized(vocabulary, scores, types, rules)
        self._drop = extra > 0
        try:
            self._processor = SentencePieceProcessor(model_proto=model)
        except RuntimeError as error:
            raise TokenizerError(f"{vocabulary.where}: the vocabulary is not usable ({error})") from error

    def encode(self, text: str) -> list[int]:
        """Return the pieces of `text`, without those that stand for no token."""
        ids: list[int] = self._processor.encode(text, out_type=int)
        return [id for id in ids if id < self._size] if self._drop else ids


def _encodable(vocabulary: Vocabulary) -> dict[str, int]:
    """Return the ids that text may become; the library does not support pieces with NUL."""
    return {text: id for text, id in vocabulary.plain_ids.items() if "\0" not in text}


def _names_byte(text: str) -> bool:
    byte = byte_of(text)
    return byte is not None and text == f"<0x{byte:02X}>"

"""The tokenizer of RWKV: repeatedly takes the longest token at the start of the rest of a text's bytes."""

from __future__ import annotations

import re
from typing import Final

from puna.errors import TokenizerError
from puna.model.tokenizer.longest import LongestMatch
from puna.model.tokenizer.pieces import Piece
from puna.model.tokenizer.vocabulary import TokenType, Vocabulary

#: Bytes of a token: twice those of the longest that is known.
_MOST_BYTES: Final = 256
_ESCAPE: Final = re.compile(rb"\\(?:x([0-9A-Fa-f]{2})|(.))", re.DOTALL)
_ESCAPED: Final = {b"t": b"\t", b"n": b"\n", b"r": b"\r"}


class WorldEncoder:
    """Greedy, whatever words are. Tokens are any bytes, spelled in files as in Python's `repr` of them."""

    def __init__(self, vocabulary: Vocabulary, unknown: int | None) -> None:
        kinds = TokenType.NORMAL, TokenType.USER_DEFINED, TokenType.BYTE
        ids = {bytes_of(vocabulary.texts[id]): id for id in vocabulary.of_type(*kinds)}
        ids.pop(b"", None)
        if (longest := max(map(len, ids), default=0)) > _MOST_BYTES:
            raise TokenizerError(
                f"{vocabulary.where}: a token has {longest} bytes; at most {_MOST_BYTES} are read"
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

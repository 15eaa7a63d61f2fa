"""Pieces: the bytes a token adds to the text, derived from its spelling in the vocabulary."""

from __future__ import annotations

import re
from collections.abc import Callable

from puna.model.tokenizer.vocabulary import TokenType, Vocabulary

#: SentencePiece's stand-in for a space.
SPACE = "▁"


def byte_characters() -> list[str]:
    """The printable character that GPT-2 uses for each of the 256 bytes (spec B3)."""
    characters = []
    for byte in range(256):
        if byte == 0xAD:
            characters.append("\u0143")
        elif byte <= 0x20:
            characters.append(chr(byte + 0x100))
        elif 0x7F <= byte <= 0xA0:
            characters.append(chr(byte + 0xA2))
        else:
            characters.append(chr(byte))
    return characters


_BYTE_OF = {character: bytes([byte]) for byte, character in enumerate(byte_characters())}
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")

#: Types of tokens whose piece is their spelling.
_LITERAL = frozenset((TokenType.CONTROL, TokenType.UNKNOWN, TokenType.USER_DEFINED))

Piece = Callable[[int], bytes]


def byte_of(text: str) -> int | None:
    """The byte of a token spelled `<0xHH>`; None for other spellings."""
    match = _BYTE_TOKEN.fullmatch(text)
    return int(match[1], 16) if match else None


def byte_level_piece(vocabulary: Vocabulary) -> Piece:
    """A function from token id to bytes for byte-level BPE."""

    def piece(id: int) -> bytes:
        text = vocabulary.texts[id]
        if vocabulary.types[id] in _LITERAL:
            return text.encode()
        mapped = (_BYTE_OF.get(character) for character in text)
        return b"".join(
            byte if byte is not None else (" " if character == SPACE else character).encode()
            for character, byte in zip(text, mapped, strict=True)
        )

    return piece


def spaced_piece(vocabulary: Vocabulary) -> Piece:
    """A function from token id to bytes where spaces are spelled U+2581 and bytes `<0xHH>`."""

    def piece(id: int) -> bytes:
        text = vocabulary.texts[id]
        kind = vocabulary.types[id]
        if kind in (TokenType.CONTROL, TokenType.UNKNOWN):
            return text.encode()
        byte = byte_of(text) if kind != TokenType.USER_DEFINED else None
        return text.replace(SPACE, " ").encode() if byte is None else bytes([byte])

    return piece

"""The validated token list of a GGUF file, lookups in it, and the bytes that each token adds to a text."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import cached_property

import numpy as np

from puna.errors import TokenizerError
from puna.gguf import GGUFFile, NumberArray, StringArray

logger = logging.getLogger(__name__)

PREFIX = "tokenizer.ggml."

_ABSENT_IDS = (-1, 0xFFFFFFFF)  # written by converters if there is no such token


class TokenType(IntEnum):
    """The type of a token, numbered as in `tokenizer.ggml.token_type`."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


_TYPES = frozenset(int(kind) for kind in TokenType)
_HIDDEN = frozenset((TokenType.CONTROL, TokenType.UNKNOWN))


@dataclass(frozen=True)
class Vocabulary:
    """Every token's text and type; `types[i]` belongs to `texts[i]`."""

    texts: list[str]
    types: list[int]
    has_types: bool = True
    where: str = field(default="vocabulary", compare=False)

    def __len__(self) -> int:
        return len(self.texts)

    @cached_property
    def ids(self) -> dict[str, int]:
        """The id of every text; the highest one if a text occurs more than once."""
        return {text: id for id, text in enumerate(self.texts) if text}

    @cached_property
    def plain_ids(self) -> dict[str, int]:
        """The ids that ordinary text may be encoded as: all except control and unknown tokens.

        Leaving these out prevents a prompt from spelling out a control token.
        """
        return {text: id for text, id in self.ids.items() if self.types[id] not in _HIDDEN}

    def of_type(self, *kinds: TokenType) -> list[int]:
        """Return the ids of the tokens of these types, in order."""
        wanted = set(kinds)
        return [id for id, kind in enumerate(self.types) if kind in wanted]

    def is_control(self, id: int) -> bool:
        return self.types[id] == TokenType.CONTROL

    def with_control(self, ids: Iterable[int]) -> Vocabulary:
        """Return the same vocabulary with the tokens `ids` marked as control tokens."""
        types = list(self.types)
        for id in ids:
            types[id] = TokenType.CONTROL
        return replace(self, types=types)


def read_vocabulary(file: GGUFFile) -> Vocabulary:
    """Read the tokens of `file`. Raises TokenizerError if they are missing or do not match their types."""
    texts = strings(file, "tokens")
    if not texts:
        raise TokenizerError(
            f"{file.path.name}: key '{PREFIX}tokens' is missing or empty; the file has no vocabulary, "
            "so it cannot be used with text"
        )
    types = numbers(file, "token_type", len(texts))
    vocabulary = Vocabulary(
        texts=texts,
        types=[int(kind) if kind in _TYPES else int(TokenType.NORMAL) for kind in types]
        if types is not None
        else [int(TokenType.NORMAL)] * len(texts),
        has_types=types is not None,
        where=file.path.name,
    )
    repeated = sum(map(bool, texts)) - len(vocabulary.ids)
    if repeated:
        logger.warning(
            "%s: %d tokens have the same text as another; the last one is used", file.path.name, repeated
        )
    return vocabulary


def strings(file: GGUFFile, name: str) -> list[str] | None:
    """Return the strings of key `tokenizer.ggml.<name>`, or None. Raises TokenizerError for another type."""
    value = file.get(PREFIX + name)
    if value is None:
        return None
    if not isinstance(value, StringArray):
        raise TokenizerError(f"{file.path.name}: key '{PREFIX}{name}' is not an array of strings")
    return value.tolist()


def numbers(file: GGUFFile, name: str, count: int) -> list[float] | None:
    """Return the first `count` numbers of key `tokenizer.ggml.<name>`, or None.

    Raises TokenizerError for another type or if there are fewer.
    """
    value = file.get(PREFIX + name)
    if value is None:
        return None
    if not isinstance(value, NumberArray):
        raise TokenizerError(f"{file.path.name}: key '{PREFIX}{name}' is not an array of numbers")
    if len(value) < count:
        raise TokenizerError(
            f"{file.path.name}: key '{PREFIX}{name}' has {len(value)} entries for {count} tokens; "
            "the file is damaged or was converted incorrectly"
        )
    if len(value) > count:
        logger.warning("%s: '%s%s' has more entries than there are tokens", file.path.name, PREFIX, name)
    found = value.numpy()[:count]
    if found.dtype.kind == "f":
        with np.errstate(over="ignore"):
            bad = np.flatnonzero(~np.isfinite(found.astype(np.float32)))
        if bad.size:
            raise TokenizerError(
                f"{file.path.name}: key '{PREFIX}{name}' has {found[bad[0]]} for token {bad[0]}, "
                "which is not a float32 number"
            )
    numbers: list[float] = found.tolist()
    return numbers


def token_id(file: GGUFFile, name: str, size: int) -> int | None:
    """Return the token id of key `tokenizer.ggml.<name>`, or None.

    Raises TokenizerError unless it is an integer below `size`, the size of the vocabulary.
    """
    value = file.get(PREFIX + name)
    if value is None or value in _ABSENT_IDS:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise TokenizerError(f"{file.path.name}: key '{PREFIX}{name}' is not a token id")
    if not 0 <= value < size:
        raise TokenizerError(
            f"{file.path.name}: key '{PREFIX}{name}' is {value}, "
            f"but the last token of the vocabulary is {size - 1}"
        )
    return value


def flag(file: GGUFFile, name: str, default: bool) -> bool:
    """Return the boolean of key `tokenizer.ggml.<name>`; `default` if missing or of another type."""
    value = file.get(PREFIX + name)
    return bool(value) if isinstance(value, bool | int) else default


#: SentencePiece's stand-in for a space.
SPACE = "▁"

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")

Piece = Callable[[int], bytes]


def byte_of(text: str) -> int | None:
    """Return the byte of a token spelled `<0xHH>`, or None for other spellings."""
    match = _BYTE_TOKEN.fullmatch(text)
    return int(match[1], 16) if match else None


def spaced_piece(vocabulary: Vocabulary) -> Piece:
    """Return a function from token id to bytes where spaces are spelled U+2581 and bytes `<0xHH>`."""

    def piece(id: int) -> bytes:
        text = vocabulary.texts[id]
        kind = vocabulary.types[id]
        if kind in (TokenType.CONTROL, TokenType.UNKNOWN):
            return text.encode()
        byte = byte_of(text) if kind != TokenType.USER_DEFINED else None
        return text.replace(SPACE, " ").encode() if byte is None else bytes([byte])

    return piece

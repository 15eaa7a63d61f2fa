"""The vocabulary of RWKV's World models: each token's number, text or bytes, and length, on a line."""

from __future__ import annotations

import ast
from typing import Final

from puna.convert.config import Config
from puna.convert.tokens import Tokens
from puna.errors import ConversionError, shown
from puna.tokenizer.vocabulary import TokenType

#: The file, which all of them share.
WORLD: Final = "rwkv_vocab_v20230424.txt"
_MOST_LINE: Final = 1 << 12  # of a token of 128 bytes, all of them escaped


def world_tokens(text: str, config: Config) -> Tokens:
    """The vocabulary of the file `text`. Raises ConversionError that names a line which is none of it."""
    lines = text.removesuffix("\n").split("\n")
    tokens = Tokens.empty("rwkv", int(config.get("vocab_size") or len(lines) + 1))
    tokens.put(0, "<s>", TokenType.CONTROL)
    for number, line in enumerate(lines, 1):
        id, token = _token(line, number)
        tokens.put(id, repr(token)[2:-1], TokenType.NORMAL)
        if token == b"\n\n":  # between what one says and the other
            tokens.more["eot_token_id"] = id
    tokens.more |= {"bos_token_id": 0, "eos_token_id": 0}
    return tokens


def _token(line: str, number: int) -> tuple[int, bytes]:
    id, _, rest = line.partition(" ")
    literal, _, length = rest.rpartition(" ")
    try:
        found = ast.literal_eval(literal) if len(line) <= _MOST_LINE else None
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        found = None
    token = found.encode(errors="replace") if isinstance(found, str) else found
    if not isinstance(token, bytes) or not id.isdecimal() or length != str(len(token)) or len(id) > 9:
        raise ConversionError(
            f"{WORLD}: line {number} is {shown(line)}, not a token's number, text and length"
        )
    return int(id), token

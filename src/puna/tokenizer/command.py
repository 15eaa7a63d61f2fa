"""The core of `puna tokenize`, independent of the terminal: text in, rows or JSON lines out."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from puna.errors import RequestError
from puna.gguf import open_gguf
from puna.tokenizer.load import tokenizer_from_gguf
from puna.tokenizer.tokenizer import Tokenizer


def open_tokenizer(path: Path) -> Tokenizer:
    """Return the tokenizer of the GGUF file at `path`.

    Raises GGUFError, TokenizerError and UnsupportedModelError.
    """
    with open_gguf(path) as file:
        return tokenizer_from_gguf(file)


def token_rows(
    tokenizer: Tokenizer, text: str, *, add_special: bool = True, parse_special: bool = True
) -> Iterator[tuple[int, str]]:
    """Yield (id, piece) of every token of `text`; the piece is printable on one line."""
    for id in tokenizer.encode(text, add_special=add_special, parse_special=parse_special):
        yield id, printable(tokenizer.piece(id))


def printable(piece: bytes) -> str:
    r"""Return `piece` as text, with unprintable characters and invalid bytes escaped (`\n`, `\xe2`)."""
    text = piece.decode(errors="backslashreplace")
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )


def token_lines(
    tokenizer: Tokenizer,
    lines: Iterable[str | bytes],
    *,
    add_special: bool = True,
    parse_special: bool = True,
) -> Iterator[str]:
    """Yield `{"ids": [...]}` for every line `{"text": ...}`, skipping blank lines.

    Raises RequestError naming the first line that is not such an object.
    """
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        text = _text_of(line, number)
        ids = tokenizer.encode(text, add_special=add_special, parse_special=parse_special)
        yield json.dumps({"ids": ids})


def _text_of(line: str | bytes, number: int) -> str:
    try:
        value = json.loads(line if isinstance(line, str) else line.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise RequestError(f"line {number}: not valid UTF-8 ({error.reason} at byte {error.start})") from None
    except RecursionError:
        raise RequestError(f"line {number}: the JSON is nested too deeply") from None
    except ValueError as error:
        raise RequestError(f"line {number}: not valid JSON ({error})") from None
    if not isinstance(value, dict) or not isinstance(value.get("text"), str):
        raise RequestError(f'line {number}: expected an object like {{"text": "hello"}}')
    text: str = value["text"]
    return text

"""`puna tokenize`: the tokens of a text, in this process."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from puna.cli import terminal
from puna.cli.local_models import model_path
from puna.errors import RequestError

if TYPE_CHECKING:
    from puna.model.tokenizer import Tokenizer


def tokenize(
    model: str, words: Sequence[str] | None, *, jsonl: bool, add_special: bool, parse_special: bool
) -> None:
    """Print ids and pieces of the text in `words`, else of standard input; with `jsonl` ids, line by line."""
    if jsonl and words:
        raise RequestError("--jsonl reads its texts from standard input: leave out TEXT")
    from puna.gguf import open_gguf
    from puna.model.tokenizer import tokenizer_from_gguf

    with open_gguf(model_path(model)) as file:
        tokenizer = tokenizer_from_gguf(file)
    if jsonl:
        for text in read_texts(sys.stdin.buffer):
            ids = tokenizer.encode(text, add_special=add_special, parse_special=parse_special)
            print(json.dumps({"ids": ids}), flush=True)
        return
    text = " ".join(words) if words else terminal.read_stdin()
    for token in tokenizer.encode(text, add_special=add_special, parse_special=parse_special):
        print(f"{token:>7}  {spelled(tokenizer, token)}")


def read_texts(lines: Iterable[bytes]) -> Iterator[str]:
    """The `text` of each line. Raises RequestError naming the line."""
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            item = json.loads(line)
        except ValueError as error:
            raise RequestError(f"line {number} is not JSON: {error}") from None
        text = item.get("text") if isinstance(item, dict) else None
        if not isinstance(text, str):
            raise RequestError(f'line {number} is not an object like {{"text": "..."}}: {line[:60]!r}')
        yield text


def spelled(tokenizer: Tokenizer, token: int) -> str:
    """A token for the eye: its text in quotes; control tokens by their name, stray bytes as `\\xNN`."""
    if tokenizer.is_control(token):
        return tokenizer.token(token)
    text = tokenizer.piece(token).decode("utf-8", "backslashreplace")
    return '"' + "".join(_visible(character) for character in text) + '"'


def _visible(character: str) -> str:
    if character.isprintable():
        return character
    return {"\n": "\\n", "\t": "\\t", "\r": "\\r"}.get(character, ascii(character)[1:-1])

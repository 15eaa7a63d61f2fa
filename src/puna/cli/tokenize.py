"""`puna tokenize`: the tokens of a text, in this process."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from puna.cli import terminal
from puna.cli.local_models import model_path
from puna.errors import RequestError


def tokenize(
    model: str,
    words: Sequence[str] | None,
    *,
    jsonl: bool,
    add_special: bool,
    parse_special: bool,
    as_json: bool = False,
) -> None:
    """Print the id and text of each token in `words`, or in standard input if there are none.

    With `jsonl`, read JSON lines from standard input and print JSON lines of ids. Tokens are printed in
    quotes, except control tokens; `as_json` prints a JSON array of objects instead.
    """
    if jsonl and words:
        raise RequestError("--jsonl reads texts from standard input; it cannot be combined with TEXT")
    from puna.model.tokenizer.command import open_tokenizer, token_lines, token_rows

    tokenizer = open_tokenizer(model_path(model))
    if jsonl:
        lines = sys.stdin.buffer
        for answer in token_lines(tokenizer, lines, add_special=add_special, parse_special=parse_special):
            print(answer, flush=True)
        return
    text = " ".join(words) if words else terminal.read_stdin()
    rows = token_rows(tokenizer, text, add_special=add_special, parse_special=parse_special)
    if as_json:
        print(json.dumps([{"id": id, "text": piece} for id, piece in rows]))
        return
    for id, piece in rows:
        print(f"{id:>7}  {piece}" if tokenizer.is_control(id) else f'{id:>7}  "{piece}"')

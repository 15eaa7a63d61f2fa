"""Prompts for filling a gap in code, of the vocabulary's tokens for that (arXiv 2207.14255, 2409.12186)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from puna.errors import UnavailableError
from puna.protocol import Excerpt, Infill
from puna.tokenizer import Tokenizer
from puna.tokenizer.special_ids import GapIds

#: Most tokens around the gap, as in llama.cpp's server. At least half of the context is for other files.
_AROUND: Final = 2048

#: Tokens beside the text: BOS, and those before prefix, suffix and middle.
_MARKS: Final = 4

#: Separates excerpts where the vocabulary has no token for it, as in llama.cpp's server.
_SNIPPET: Final = "\n\n--- snippet ---\n\n"

#: Names for files and the repository that have none, as in llama.cpp's server.
_REPOSITORY, _FILE, _EXCERPT = "myproject", "filename", "tmp"


def infill_tokens(gap: Infill, tokenizer: Tokenizer, context: int, num_predict: int) -> tuple[list[int], int]:
    """Return the prompt for `gap` that leaves room for `num_predict` tokens, and how many were dropped.

    The text nearest to the gap stays. Where not all fits, three quarters of the room are for the text before
    it, and the beginning of the excerpts is left out. Raises UnavailableError for a model that was not
    trained to fill in.
    """
    ids = tokenizer.gap
    if ids is None:
        raise UnavailableError(
            "this model does not fill in: its vocabulary has no tokens before a prefix, a suffix and a middle"
        )

    def encode(text: str, *, first: bool = False) -> list[int]:
        return tokenizer.encode(text, add_special=False, parse_special=False, first=first)

    before, after = encode(gap.before, first=True) + encode(gap.line), encode(gap.after)
    extra = _extra(gap.extra, ids, tokenizer)
    space = context - min(max(num_predict, 0), context // 2)
    around = min(_AROUND, space // 2 if gap.extra else space - len(extra))
    room = max(around - _MARKS, 0)
    most_before = max(room * 3 // 4, room - len(after))
    kept_before = before[max(len(before) - most_before, 0) :]
    kept_after = after[: room - len(kept_before)]
    # This room does not depend on the text around the gap: otherwise each key typed would move the excerpts.
    kept_extra = extra[max(len(extra) - max(space - around, 0), 0) :]
    begin = [tokenizer.bos_id] if tokenizer.add_bos and tokenizer.bos_id is not None else []
    tokens = [*begin, *kept_extra, ids.prefix, *kept_before, ids.suffix, *kept_after, ids.middle]
    dropped = len(before) + len(after) + len(extra) - len(kept_before) - len(kept_after) - len(kept_extra)
    return tokens, dropped


def _extra(excerpts: Sequence[Excerpt], ids: GapIds, tokenizer: Tokenizer) -> list[int]:
    """Return the tokens before the prefix: names of the repository and of files, and the excerpts."""

    def encode(text: str) -> list[int]:
        return tokenizer.encode(text, add_special=False, parse_special=False)

    tokens: list[int] = []
    if ids.repository is not None:
        tokens += [ids.repository, *encode(f"{_REPOSITORY}\n")]
    for excerpt in excerpts:
        if ids.file is not None:
            tokens += [ids.file, *encode(f"{excerpt.filename or _EXCERPT}\n")]
        else:
            tokens += encode(_SNIPPET)
        tokens += encode(excerpt.text)
    if ids.file is not None:
        tokens += [ids.file, *encode(f"{_FILE}\n")]
    return tokens

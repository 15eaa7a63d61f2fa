"""Running the steps of a pre-tokenizer over text."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import regex

from puna.model.tokenizer.patterns import Digits

Split = Callable[[str], list[str]]


@cache
def splitter(step: str | Digits) -> Split:
    """A function cutting text by `step`; the pieces it returns, none empty, join to the text again."""
    return _by_digits(step) if isinstance(step, Digits) else _by_pattern(step)


def _by_pattern(pattern: str) -> Split:
    # VERSION1 for set operations; its full case folding would let one letter match several.
    compiled = regex.compile(f"({pattern})", regex.VERSION1)

    def split(text: str) -> list[str]:
        return [piece for piece in compiled.split(text) if piece]

    return split


def _by_digits(step: Digits) -> Split:
    run = regex.compile(step.run)

    def split(text: str) -> list[str]:
        cuts: list[int] = [0]
        for match in run.finditer(text):
            begin, end = match.span()
            cuts += range(end - (end - begin) // 3 * 3, end, 3)
            if step.isolate:
                cuts += (begin, end)
        cuts.append(len(text))
        cuts = sorted(set(cuts))
        return [text[begin:end] for begin, end in zip(cuts, cuts[1:], strict=False)]

    return split

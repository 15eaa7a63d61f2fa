"""Applies the steps of a pre-tokenizer to text."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import pairwise

import regex  # type: ignore[import-untyped]

from puna.model.tokenizer.patterns import Digits

#: Characters from which on it is worth the time to let go of Python's lock.
LONG_TEXT = 1 << 14

Split = Callable[[str], list[str]]


@cache
def splitter(step: str | Digits) -> Split:
    """A function that splits text by `step`. The pieces, some of them possibly empty, add up to the text."""
    return _by_digits(step) if isinstance(step, Digits) else _by_pattern(step)


def _by_pattern(pattern: str) -> Split:
    # VERSION1 supports set operations, which one of the patterns needs.
    split = regex.compile(f"({pattern})", regex.VERSION1).split
    # In a long text, let other threads run between matches.
    return lambda text: split(text, concurrent=len(text) > LONG_TEXT)


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
        return [text[begin:end] for begin, end in pairwise(cuts)]

    return split

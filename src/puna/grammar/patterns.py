"""Regular expressions of schemas: which of them is wrong, and why, in the words of the library."""

from __future__ import annotations

import re
from collections.abc import Iterable

from llguidance import LLMatcher

from puna.errors import RequestError


def check_patterns(patterns: Iterable[tuple[str, str]]) -> None:
    """Raises `RequestError` for the first of `patterns`, each with its place, that cannot be used."""
    for pattern, place in patterns:
        if reason := LLMatcher.validate_grammar(LLMatcher.grammar_from_regex(pattern)):
            raise RequestError(f"format: the pattern at {place} cannot be used: {short(reason)}") from None


def short(reason: str) -> str:
    """The library's message on one line, without the source that it quotes."""
    line = re.sub(r" \d+ \| .*", "", " ".join(reason.split()))
    return line.rpartition(" error: ")[2] if "regex parse error: " in line else line

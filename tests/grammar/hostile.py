"""Formats of a few kilobytes that take unlimited time or memory unless stopped."""

from __future__ import annotations

from typing import Any, Final


def _terms(count: int) -> list[str]:
    """Return patterns whose intersection has a derivative for each subset of them."""
    return [f"[a-z]{{2}}{chr(ord('a') + i % 26)}{i}" for i in range(count)]


def patterns(count: int) -> dict[str, Any]:
    """Return a schema of about 2 KB, for which the library searches without limits for a matching text."""
    terms = [{"pattern": term} for term in _terms(count)]
    return {
        "type": "object",
        "properties": {"a": {"type": "string", "allOf": terms}},
        "required": ["a"],
    }


PATTERNS: Final = patterns(40)

#: The same in Lark, after a text that is always allowed: small vocabularies reach it only there.
LARK: Final = "start: T\nT: /q{40}/ (" + " & ".join(f"/(?s:.*){each}(?s:.*)/" for each in _terms(40)) + ")?\n"

#: Matches any text of letters in exponentially many ways.
AMBIGUOUS: Final = 'start: s\ns: "" | s s s s s s | /[a-z]/\n'

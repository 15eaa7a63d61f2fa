"""Diagnosis of unusable schemas: the part at fault and the reason, mostly in the library's words."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from puna.errors import RequestError

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

#: Limits, in the library's units of work, of compiling (about a second at most) and of one step of an answer.
#: The library does not count all of its work; the limits of the grammar process are inescapable.
_MAX_WORK: Final = 200_000
LIMITS: Final = LLParserLimits(
    initial_lexer_fuel=_MAX_WORK,
    step_lexer_fuel=200_000,
    step_max_items=50_000,
    max_lexer_states=50_000,
    max_grammar_size=200_000,
    verbose_errors=False,
)

#: Parts examined, each of which takes a tenth of a millisecond.
_MAX_PARTS: Final = 2000

#: Notation of JSON: white space as people and models write it, but not endlessly.
GUIDANCE: Final[JsonCompileOptions] = {"whitespace_pattern": r"[ ]|\n[ \t]{0,20}", "lenient": False}


def check_patterns(patterns: Iterable[tuple[str, str]]) -> None:
    """Raise `RequestError` for the first unusable one of `patterns`, given with their places."""
    for pattern, place in patterns:
        if reason := LLMatcher.validate_grammar(LLMatcher.grammar_from_regex(pattern)):
            raise RequestError(f"format: the pattern at {place} cannot be used: {short(reason)}") from None


def check_parts(parts: Iterable[tuple[str, Any]]) -> None:
    """Raise `RequestError` for the first unusable schema of `parts`, given with their places."""
    for place, schema in islice(parts, _MAX_PARTS):
        if reason := LLMatcher.validate_grammar(schema_grammar(schema)):
            if "coerce_one_of" in reason:
                reason = "only schemas that obviously exclude each other are supported; anyOf takes any"
            raise RequestError(f"format: the schema at {place} cannot be used: {short(reason)}") from None


def check_terminal(terminal: str, place: str) -> None:
    """Raise `RequestError` if no text matches a Lark `terminal`, or following it takes too much work."""
    grammar = LLMatcher.grammar_from_lark(f"start: TEXT\nTEXT: {terminal}\nANY: /(?s:.*)/")
    matcher = LLMatcher(_bytes(), grammar, log_level=0, limits=LIMITS)
    if not matcher.is_error():
        matcher.compute_bitmask()
    if not matcher.is_error():
        return
    if "fuel" in matcher.get_error() or "too" in matcher.get_error():
        raise RequestError(
            f"the text at {place} takes more work to follow than is allowed: "
            "a smaller minLength or pattern takes less"
        )
    raise RequestError(f"no text satisfies the schema at {place}")


@cache
def _bytes() -> LLTokenizer:
    return LLTokenizer("byte")


def schema_grammar(schema: Any) -> str:
    """Return the grammar of the JSON that a checked schema accepts."""
    return LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=GUIDANCE)


def short(reason: str) -> str:
    """Return the library's message on one line, without the quoted source."""
    if "Unable to determine if regex is empty" in reason:
        return (
            f"to find a text that matches all of its patterns takes more than {_MAX_WORK:,} steps, "
            "the limit for one format; use fewer or simpler patterns"
        )
    line = re.sub(r" \d+ \| .*", "", " ".join(reason.split()))
    return line.rpartition(" error: ")[2] if "regex parse error: " in line else line

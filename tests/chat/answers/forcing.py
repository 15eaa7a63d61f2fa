"""Random answers that follow the grammar of a family's calls."""

from __future__ import annotations

import json
import random

import jsonschema
import numpy as np
from llguidance import LLMatcher, LLTokenizer

from puna.chat.answers.family import Reading
from puna.chat.answers.registry import FAMILIES
from tests.chat.answers.reading import Read

#: Families whose models call tools, and the ends of their prompts where calls depend on them.
CALLING = [name for name, family in FAMILIES.items() if family.calls is not None]
PROMPTS = {"functionary": ">>>"}
BYTES = LLTokenizer("byte")


def matcher_of(grammar: str) -> LLMatcher:
    """Return a matcher of a Lark grammar whose tokens are bytes."""
    return LLMatcher(BYTES, LLMatcher.grammar_from_lark(grammar), log_level=0)


def said(grammar: str, dice: random.Random, most: int = 1500) -> str | None:
    """Return an answer of random allowed bytes, preferring markup; None if it gets too long."""
    matcher = matcher_of(grammar)
    assert not matcher.is_error(), matcher.get_error()
    text = b""
    while not matcher.is_stopped() and len(text) < most:
        if matcher.is_accepting() and dice.random() < 0.3:
            break
        mask = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
        allowed = [int(byte) for byte in np.flatnonzero(mask) if byte < 256]
        marks = [byte for byte in allowed if byte in b'</"\\}])>|n']
        byte = dice.choice(marks if marks and dice.random() < 0.35 else allowed)
        assert matcher.consume_token(byte)
        text += bytes([byte])
    return text.decode(errors="replace") if matcher.is_accepting() else None


def check_arguments(how: Reading, found: Read) -> None:
    """Check that the calls found are of tools of the request, with valid arguments."""
    for name, arguments in found.calls:
        assert name in how.tools, name
        checker = jsonschema.FormatChecker()
        jsonschema.validate(json.loads(arguments), how.tools[name].parameters, format_checker=checker)

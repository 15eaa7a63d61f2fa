"""Answer formats: schemas, regular expressions and grammars, most of them valid, some endless or huge."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from puna.gguf import open_gguf
from puna.grammar.compiled import Grammars
from puna.grammar.constraint import Constraint
from puna.grammar.format import Format
from puna.store.bundled import DEMO_FILE
from puna.tokenizer import tokenizer_from_gguf
from tests.fuzz.case import Bounds
from tests.fuzz.hostile_bytes import damaged

BOUNDS = Bounds(seconds=4.0)

_KEYWORDS = (
    "type", "properties", "required", "items", "prefixItems", "minItems", "maxItems", "anyOf", "allOf",
    "oneOf", "$ref", "enum", "const", "pattern", "format", "minLength", "maxLength", "minimum", "multipleOf",
    "additionalProperties", "patternProperties", "minProperties", "not", "$defs", "$id", "$anchor", "x",
    "x-guidance",
)  # fmt: skip
_REFERENCES = ("#", "#/", "#/$defs/a", "#/properties/a", "#/allOf/0", "#a", "http://x/y", "#/%", "a#b")
_LEAVES = (
    None, True, False, 0, 1, -1, 2.5, 1e308, 10**30, "", "a", "object", "array", "string", "integer", "é\n",
    "date", "uuid", "\ud800", [], {}, ["a"], ["string", "null"],
)  # fmt: skip
_ATOMS = (
    "a",
    "[a-z]",
    ".",
    "\\d",
    "é",
    "(?i)x",
    "\\p{L}",
    "^",
    "$",
    "\\b",
    "[^\\n]",
    "(?=a)",
    "\\1",
    "(?s).",
)
_LARK = (
    'start: "a" b',
    "b: /[0-9]+/",
    'start: start "a" |',
    "start: %json {}",
    'A: ~"a" & /.*/',
    "%ignore / /",
)
_GBNF = ('root ::= "a" b', "b ::= [0-9]+", "root ::= root", "b ::= (b | [^a]){2,9999999}", "root ::= .*")


@cache
def _grammars() -> Grammars:
    return Grammars(tokenizer_from_gguf(open_gguf(DEMO_FILE)))


def fuzz(dice: random.Random, folder: Path) -> None:
    constraint = _grammars().constraint(_format(dice))
    _speak(dice, constraint)


def _speak(dice: random.Random, constraint: Constraint) -> None:
    for _ in range(40):
        if constraint.finished:
            return
        allowed = np.flatnonzero(np.unpackbits(constraint.allowed().view(np.uint8), bitorder="little"))
        forced = constraint.forced()
        constraint.accept(forced[0] if forced else int(dice.choice(allowed)))


def _format(dice: random.Random) -> Format:
    match dice.randrange(5):
        case 0:
            return Format.json_schema(_schema(dice, dice.choice((2, 4, 40))))
        case 1:
            return Format.regex(_regex(dice, 4) * dice.choice((1, 1, 1000)))
        case 2:
            return Format.choice([_regex(dice, 2) for _ in range(dice.choice((1, 3, 5000)))])
        case _:
            lines = dice.choice((_LARK, _GBNF))
            text = "\n".join(dice.choice(lines) for _ in range(dice.choice((1, 3, 300))))
            return Format.grammar(damaged(dice, text.encode()).decode(errors="replace"))


def _schema(dice: random.Random, depth: int) -> Any:
    if not depth or dice.random() < 0.1:
        return dice.choice(_LEAVES)
    found: dict[str, Any] = {}
    for _ in range(dice.choice((1, 1, 2, 3, 3 if depth > 5 else 30))):
        keyword = dice.choice(_KEYWORDS)
        match keyword:
            case "properties" | "patternProperties" | "$defs":
                names = dice.sample(["a", "b", "^c", "é", ""], dice.randint(0, 3))
                found[keyword] = {name: _schema(dice, depth - 1) for name in names}
            case "anyOf" | "allOf" | "oneOf" | "prefixItems":
                found[keyword] = [_schema(dice, depth - 1) for _ in range(dice.randint(0, 2))]
            case "items" | "additionalProperties" | "not":
                found[keyword] = _schema(dice, depth - 1)
            case "$ref":
                found[keyword] = dice.choice(_REFERENCES)
            case "pattern":
                found[keyword] = _regex(dice, 3)
            case _:
                found[keyword] = dice.choice(_LEAVES)
    return found


def _regex(dice: random.Random, depth: int) -> str:
    if not depth:
        return dice.choice(_ATOMS)
    inner = [_regex(dice, depth - 1) for _ in range(dice.randint(1, 3))]
    form = dice.choice(("({})", "({})*", "({}){{0,9}}", "({}){{1000}}", "({}){{99999}}", "{}|", "[{}", "({}"))
    return form.format("".join(inner))

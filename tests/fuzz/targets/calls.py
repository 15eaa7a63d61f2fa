"""Forced calls of tools with hostile names and schemas, in every family's markup: written, and read again.

What the grammar of calls allows must be read as calls of these tools, with valid arguments and, unless the
calls are optional, without text.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from puna.chat.answers.family import Reading
from puna.chat.answers.registry import FAMILIES
from puna.chat.answers.tools import Tool
from puna.grammar.calls import calls_grammar
from tests.chat.answers.forcing import CALLING, PROMPTS, check_arguments, said
from tests.chat.answers.reading import cut, read
from tests.fuzz.case import Bounds

BOUNDS = Bounds(seconds=4.0)

#: Names of tools, parameters and members: plain ones, and ones that hold pieces of markup.
_NAMES = (
    "a", "b", "get_weather", "x-y.z", "é", "a b", " a", "a ", 'a"', '"a"', "a\\", "a>", "a>b", "<a", "a<b>",
    "a=b", "a:b", "a,b", "a(b)", "a/b", "a{", "}", "[a]", "a\nb", "\n", "", "0", "item", "null", "a'b", "$x",
    "</parameter>", "<parameter=a>", "</function>", "<arg_key>", "</arg_key>", "</arg_value>", "<tool_call>",
    "</tool_call>", "</a>", '">', "<|\"|>", "<escape>", "json", "all", "commentary", "python", "\u2028", "\t",
)  # fmt: skip
_VALUES: tuple[dict[str, Any], ...] = (
    {"type": "string", "maxLength": 4},
    {"type": "integer", "minimum": 3, "maximum": 9},
    {"type": "boolean"},
    {"type": "null"},
    {"type": "number"},
    {"enum": ["low", 2, None, "</x>", 'c"d', "null", "true", ""]},
    {"const": "\n"},
    {"type": "string", "enum": ["", " ", "\n", "x\ny", "<tool_call>", "</parameter>", "0", "é", "\\"]},
    {"type": "string", "pattern": "^[a-c]{2}/[0-9]$"},
    {"type": "string", "format": "date"},
    {"type": ["integer", "string"], "maxLength": 3},
    {"type": ["object", "null"], "maxProperties": 1},
    {"anyOf": [{"type": "string", "maxLength": 4}, {"type": "integer"}]},
    {"type": "array", "items": {"type": "number"}, "maxItems": 2},
    {"type": "array", "items": {"type": "string", "maxLength": 2}, "minItems": 1, "maxItems": 2},
)


def fuzz(dice: random.Random, folder: Path) -> None:
    tools = {tool.name: tool for tool in (_tool(dice) for _ in range(dice.choice((1, 1, 2, 4))))}
    family = dice.choice(CALLING)
    reading = Reading(
        FAMILIES[family],
        prompt=PROMPTS.get(family, ""),
        tools=tools,
        choice=dice.choice(("required", "auto", f"function:{dice.choice(sorted(tools))}")),
        strict=True,
        parallel=dice.random() < 0.3,
    )
    answer = said(calls_grammar(reading, json.dumps), dice)
    if answer is None:
        return
    size = dice.choice((1, 3, 1000, 10**6))
    found = read(reading, cut(answer, range(size, len(answer), size)))
    if reading.choice != "auto":
        assert found.calls, answer
        assert not found.text.strip(), answer
    check_arguments(reading, found)


def _tool(dice: random.Random) -> Tool:
    return Tool(_name(dice) or "f", _object(dice, 2))  # tools without names are refused before


def _object(dice: random.Random, depth: int) -> dict[str, Any]:
    names = list(dict.fromkeys(_name(dice) for _ in range(dice.choice((0, 1, 1, 2, 4)))))
    required = [name for name in names if dice.random() < 0.6]
    properties = {name: _value(dice, depth) for name in names}
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _value(dice: random.Random, depth: int) -> dict[str, Any]:
    if not depth or dice.random() < 0.7:
        return dice.choice(_VALUES)
    if dice.random() < 0.5:
        return _object(dice, depth - 1)
    return {"type": "array", "items": _value(dice, depth - 1), "maxItems": 2}


def _name(dice: random.Random) -> str:
    return dice.choice(_NAMES) if dice.random() < 0.9 else dice.choice(_NAMES) + dice.choice(_NAMES)

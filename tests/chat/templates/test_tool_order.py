"""Equal tools are written equally, in whatever order they and their keys arrive."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

from puna.chat.templates.tool_order import ordered
from tests.chat.templates.conversations import TOOLS

SCHEMA: dict[str, Any] = {
    "type": "object",
    "description": "d",
    "properties": {
        "type": {"type": "string", "description": "a property with the name of a keyword"},
        "at": {"type": "object", "properties": {"y": {"type": "number"}, "x": {"$ref": "#/$defs/x"}}},
        "many": {"type": "array", "items": {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}]}},
    },
    "required": ["type", "at"],
    "additionalProperties": False,
    "$defs": {"x": {"type": "number", "default": {"b": 1, "a": 2}, "examples": [{"b": 1, "a": 2}]}},
}


def tool(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "description": "d", "parameters": SCHEMA}}


def shuffled(value: Any, dice: random.Random, *, names: bool = False) -> Any:
    """Return `value` with the keys of schemas in another order; `names` are names of properties."""
    if isinstance(value, list):
        return [shuffled(one, dice) for one in value]
    if not isinstance(value, dict):
        return value
    keys = list(value)
    if not names:
        dice.shuffle(keys)
    return {
        key: value[key]
        if key in ("default", "examples") and not names
        else shuffled(value[key], dice, names=key in ("properties", "$defs") and not names)
        for key in keys
    }


def test_tools_and_keys_in_any_order_are_written_equally() -> None:
    tools = [tool(name) for name in ("write", "read", "edit", "mcp__b__look", "mcp__a__look")]
    expected = json.dumps(ordered(tools))
    for seed in range(20):
        dice = random.Random(seed)
        other = [shuffled(one, dice) for one in tools]
        dice.shuffle(other)
        assert json.dumps(ordered(other)) == expected


def test_nothing_but_the_order_changes() -> None:
    tools = [tool("b"), tool("a"), {"type": "function"}, {"type": "x", "function": {"parameters": [1]}}]
    before = copy.deepcopy(tools)
    assert sorted(map(str, map(_plain, ordered(tools)))) == sorted(map(str, map(_plain, tools)))
    assert tools == before


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return sorted((key, _plain(one)) for key, one in value.items())
    return [_plain(one) for one in value] if isinstance(value, list) else value


def test_properties_keep_their_order_as_models_write_arguments_in_it() -> None:
    (made,) = ordered([tool("f")])
    assert list(made["function"]["parameters"]["properties"]) == ["type", "at", "many"]
    assert list(made["function"]["parameters"]["properties"]["at"]["properties"]) == ["y", "x"]
    assert list(made["function"]["parameters"]["$defs"]["x"]["default"]) == ["b", "a"]


def test_tools_in_the_usual_order_are_unchanged() -> None:
    swapped = copy.deepcopy(TOOLS)
    parameters = swapped[0]["function"]["parameters"]
    swapped[0]["function"]["parameters"] = {
        key: parameters[key] for key in ("type", "properties", "required")
    }
    assert json.dumps(ordered(swapped)) == json.dumps(swapped)

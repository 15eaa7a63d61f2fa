"""Untyped texts as values of a tool's parameters."""

from __future__ import annotations

import json
from typing import Any

import pytest

from puna.chat.answers.tools import Tool
from tests.chat.answers.reading import read, reading, tool


@pytest.mark.parametrize(
    ("types", "text", "value"),
    [
        # Ollama's order of types, whatever the order in the schema: `parseValue` of its Qwen 3 Coder.
        ("string", "Null", None),
        (["string", "boolean"], "TRUE", True),
        (["string", "integer"], "12", 12),
        (["number", "integer"], "12", 12),
        (["string", "number"], "1.5", 1.5),
        (["string", "array"], "[1]", [1]),
        (["string", "object"], '{"a": 1}', {"a": 1}),
        (["array", "object"], '{"a": 1}', {"a": 1}),
        ("boolean", "perhaps", False),
        (["boolean", "string"], "perhaps", "perhaps"),
        (["boolean", "integer"], "perhaps", "perhaps"),
        ("integer", "1.5", "1.5"),
        ("integer", "many", "many"),
        ("number", "2", 2),
        ("array", "[1", "[1"),
        ("object", "[1]", "[1]"),
        ("string", "12", "12"),
        (None, "12", "12"),
    ],
)
def test_the_schema_decides_the_type_of_a_text(types: str | list[str] | None, text: str, value: Any) -> None:
    schema = {"type": types} if types else {}
    found = json.loads(Tool("f", {"properties": {"a": schema}}).value_of(schema, text))
    assert (found, type(found)) == (value, type(value))
    kinds = [types] if isinstance(types, str) else types or []
    union = {"anyOf": [{"type": kind} for kind in kinds]}
    assert json.loads(Tool("f", {"properties": {"a": union}}).value_of(union, text)) == value
    assert json.loads(Tool("f", {"properties": {"a": union}}).value_of(None, "12")) == "12"


def test_schemas_of_members_and_items_are_found_through_references_and_unions() -> None:
    number = {"type": "number"}
    node = {"properties": {"a": number, "more": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/list"}]}}}
    found = Tool("f", {"$defs": {"list": {"type": "array", "items": node}}, "properties": {"n": node}})
    more = found.member(found.member(found.parameters, "n"), "more")
    assert found.types_of(more) == ["array", "null"]
    assert found.member(found.items(more), "a") == number
    assert found.member(found.items(more), "b") is None
    assert found.member({"additionalProperties": number}, "b") == number
    assert found.items(number) is None


@pytest.mark.parametrize("name", ["get-time", "get.time", "get time", "get_time"])
def test_names_that_harmony_models_write_with_underscores_are_recognised(name: str) -> None:
    answer = "<|channel|>commentary to=functions.get_time <|constrain|>json<|message|>{}<|call|>"
    assert read(reading("harmony", tools=[tool(name)]), [answer]).calls == [(name, "{}")]

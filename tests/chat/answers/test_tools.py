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
    found = json.loads(Tool("f", {"properties": {"a": {"type": types} if types else {}}}).value("a", text))
    assert (found, type(found)) == (value, type(value))
    kinds = [types] if isinstance(types, str) else types or []
    union = {"properties": {"a": {"anyOf": [{"type": kind} for kind in kinds]}}}
    assert json.loads(Tool("f", union).value("a", text)) == value
    assert json.loads(Tool("f", union).value("other", "12")) == "12"


@pytest.mark.parametrize("name", ["get-time", "get.time", "get time", "get_time"])
def test_names_that_harmony_models_write_with_underscores_are_recognised(name: str) -> None:
    answer = "<|channel|>commentary to=functions.get_time <|constrain|>json<|message|>{}<|call|>"
    assert read(reading("harmony", tools=[tool(name)]), [answer]).calls == [(name, "{}")]

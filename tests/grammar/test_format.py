"""Formats as requests give them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from puna.errors import RequestError
from puna.grammar.format import LONGEST, MAX_CHOICES, Format, format_of


def test_empty_formats_are_none() -> None:
    assert format_of(None) is None
    assert format_of("") is None


def test_json_means_an_object_and_a_schema_is_kept() -> None:
    assert format_of("json") == Format.json_object()
    assert json.loads(Format.json_object().text) == {"type": "object"}
    schema = {"type": "object", "properties": {"b": {}, "a": {}}}
    found = format_of(schema)
    assert found is not None
    assert list(json.loads(found.text)["properties"]) == ["b", "a"]  # answers follow this order
    assert found == Format.json_schema(json.dumps(schema))


@pytest.mark.parametrize("value", [True, False])
def test_a_boolean_is_a_schema(value: bool) -> None:
    assert format_of(value) == Format("json_schema", json.dumps(value))


def test_a_grammar_is_gbnf_or_lark() -> None:
    assert Format.grammar('root ::= "a"').kind == "gbnf"
    assert Format.grammar('start: "a"').kind == "lark"


@pytest.mark.parametrize("value", ["xml", '"json"', 5, ["json"]])
def test_any_other_format_is_refused(value: Any) -> None:
    with pytest.raises(RequestError, match=r'invalid format: .*; expected "json" or a valid JSON Schema'):
        format_of(value)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Format.json_schema("{"), "the JSON schema is not valid JSON"),
        (lambda: Format.json_schema("[" * 200), "nested too deeply"),
        (lambda: Format.json_schema(3), "an object or a boolean, not 3"),
        (lambda: Format.json_schema({"const": float("nan")}), "cannot be written as JSON"),
        (lambda: Format.json_schema({"const": object()}), "cannot be written as JSON"),
        (lambda: Format.json_schema({"const": "x" * LONGEST["json_schema"]}), "at most 262,144"),
        (lambda: Format.regex(""), "a regular expression is a text"),
        (lambda: Format.regex("\ud800"), "lone surrogates"),
        (lambda: Format.regex("x" * 20_000), "has 20,000 bytes, and at most 16,384"),
        (lambda: Format.grammar(["a"]), "a grammar is a text"),
        (lambda: Format.choice("ab"), "a list of strings, not 'ab'"),
        (lambda: Format.choice([]), "at least one string"),
        (lambda: Format.choice(["a", 1]), "at least one string"),
        (lambda: Format.choice(["a"] * (MAX_CHOICES + 1)), "at most 10,000 choices"),
    ],
)
def test_invalid_formats_are_refused_with_a_reason(make: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        make()

"""Supported and refused formats, which random answers cannot violate."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from functools import reduce
from typing import Any

import jsonschema
import pytest

from puna.errors import RequestError
from puna.grammar.compiled import Grammars
from puna.grammar.format import Format
from puna.tokenizer import Tokenizer
from tests.grammar.schemas import random_schema

Spoken = Callable[..., bytes | None]


@pytest.mark.parametrize("seed", range(40))
def test_random_answers_satisfy_the_schema(grammars: Grammars, spoken: Spoken, seed: int) -> None:
    dice = random.Random(seed)
    schema = random_schema(dice)
    said = spoken(grammars.constraint(Format.json_schema(schema)), dice)
    if said is not None:  # white space and optional properties may take longer
        validator = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker())
        assert list(validator.iter_errors(json.loads(said))) == []


def test_most_random_answers_end(grammars: Grammars, spoken: Spoken) -> None:
    ends = 0
    for seed in range(40):
        dice = random.Random(seed)
        ends += spoken(grammars.constraint(Format.json_schema(random_schema(dice))), dice) is not None
    assert ends >= 30


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("format", "pattern"),
    [
        (Format.regex(r"[A-C]\d{2,4}(x|yz)"), r"[A-C]\d{2,4}(x|yz)"),
        (Format.choice(["a.b", "[c]", "ü\n", "^$|"]), r"a\.b|\[c\]|ü\n|\^\$\|"),
        (Format.grammar('start: "<" NAME ">"\nNAME: /[a-z]{1,3}/'), "<[a-z]{1,3}>"),
        (Format.grammar('root ::= "(" [0-9]+ ")" | "none"'), r"\([0-9]+\)|none"),
        (Format.json_schema(True), r"(?s).*"),
    ],
)
def test_random_answers_satisfy_other_formats(
    grammars: Grammars, spoken: Spoken, format: Format, pattern: str, seed: int
) -> None:
    said = spoken(grammars.constraint(format), random.Random(seed))
    assert said is None or re.fullmatch(pattern, said.decode())


def test_json_is_any_object(grammars: Grammars, spoken: Spoken) -> None:
    values = [spoken(grammars.constraint(Format.json_object()), random.Random(seed)) for seed in range(20)]
    assert all(isinstance(json.loads(value), dict) for value in values if value is not None)
    assert any(value is not None for value in values)


def test_unknown_string_formats_are_ignored(grammars: Grammars) -> None:
    """JSON Schema allows them, and a property may be called format."""
    schema = {
        "type": "object",
        "properties": {"format": {"type": "integer", "format": "int32"}, "b": {"format": "password"}},
        "required": ["format"],
    }
    grammars.matcher(Format.json_schema(schema))


@pytest.mark.parametrize(
    ("schema", "value", "fits"),
    [
        ({"properties": {"a": {"type": "null"}}}, {"a": None, "b": 1}, False),
        ({"type": "array", "items": {"properties": {"a": {}}}}, [{"b": 1}], False),
        ({"anyOf": [{"type": "object", "properties": {"a": {}}}, {"type": "null"}]}, {"b": 1}, False),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"type": "object", "properties": {"a": {}}}}}, {"b": 1}, False),
        ({"properties": {"a": {}}, "additionalProperties": True}, {"b": 1}, True),
        ({"properties": {"a": {}}, "patternProperties": {"^b$": {}}}, {"b": 1}, True),
        ({"allOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]}, {"a": 1, "b": 1}, True),
        (
            {"$ref": "#/$defs/a", "properties": {"b": {}}, "$defs": {"a": {"properties": {"a": {}}}}},
            {"b": 1, "a": 2},
            True,
        ),
        ({"anyOf": [{"properties": {"a": {}}}], "properties": {"b": {}}}, {"b": 1, "a": 1}, True),
        ({"type": "object"}, {"b": 1}, True),
    ],
)
def test_objects_have_no_other_properties_unless_the_schema_allows_them(
    grammars: Grammars, tokenizer: Tokenizer, schema: Any, value: Any, fits: bool
) -> None:
    """Ollama behaves the same; combined schemas may each know only some of the properties."""
    matcher = grammars.matcher(Format.json_schema(schema))
    taken = {json.dumps(one) for one in (value, dict(reversed(value.items())) if fits else value)}
    found = set()
    for text in taken:
        tokens = tokenizer.encode(text, add_special=False)
        found.add(matcher.validate_tokens(tokens) == len(tokens))
    assert (True in found) == fits
    jsonschema.validate(value, schema)


LIST: Any = {"type": "object", "properties": {"next": {"$ref": "#"}}}

#: A list that is not empty.
ONE: Any = {"type": "array", "minItems": 1}

WRONG: list[tuple[Any, str]] = [
    ({"properties": {"a": {"not": {}}}}, 'the keyword "not" at #/properties/a is not supported'),
    ({"items": {"uniqueItems": True}}, 'the keyword "uniqueItems" at #/items'),
    ({"$ref": "#/$defs/a", "$defs": {"a": {"if": {}}}}, 'the keyword "if" at #/\\$defs/a'),
    (
        {"oneOf": [{"type": "integer"}, {"type": "number"}]},
        "at #/oneOf cannot .* obviously exclude",
    ),
    ({"$ref": "#"}, "no value satisfies the schema: #/\\$ref leads to itself without end"),
    (LIST | {"required": ["next"]}, "#/properties/next/\\$ref leads to itself without end"),
    ({"$ref": "#/$defs/a", "$defs": {"a": {"allOf": [{"$ref": "#"}]}}}, "leads to itself without end"),
    ({"type": "array", "items": {"$ref": "#"}, "minItems": 1}, "leads to itself without end"),
    ({"type": "object", "properties": {"a": False}, "required": ["a"]}, "no value satisfies the schema"),
    ({"properties": {"a": {"$ref": "#/$defs/b"}}}, "#/properties/a/\\$ref points to '#/\\$defs/b', which"),
    ({"$ref": "https://example.com/s"}, "is in another document"),
    ({"$ref": 3}, "#/\\$ref must be a string, not 3"),
    ({"$ref": "#/anyOf/" + "9" * 5000, "anyOf": [{}]}, "#/\\$ref points to"),
    ({"$ref": "#other", "$defs": {"a": {"$anchor": "one"}}}, "#/\\$ref points to '#other'"),
    ({"items": {"$ref": "#/$defs/a"}, "$defs": {"a": {"$id": "b", "$ref": "#/$defs/a"}}}, "points to"),
    (
        {"properties": {"a": {"minLength": 10**6}}},
        "#/properties/a/minLength is 1,000,000, and at most",
    ),
    ({"items": {"minItems": 10**30}}, "#/items/minItems is 1,000,000,.*, and at most 1,000 is supported"),
    ({"items": {"maxItems": "3"}}, "#/items/maxItems must be a whole number of at least 0, not '3'"),
    ({"items": {"multipleOf": -1}}, "#/items/multipleOf must be above 0"),
    ({"items": {"minimum": True}}, "#/items/minimum must be a number, not True"),
    ({"items": {"pattern": 3}}, "#/items/pattern must be a string"),
    ({"items": {"required": [3]}}, "#/items/required must be a list of strings"),
    ({"items": {"enum": []}}, "#/items/enum must be a list of at least one value"),
    ({"items": None}, "#/items: a schema is an object or a boolean, not None"),
    (
        ONE | {"items": {"type": "integer", "minimum": 3, "maximum": 2}},
        "the schema at #/items cannot be used",
    ),
    (ONE | {"items": {"type": "string", "pattern": "^a$", "minLength": 3}}, "the schema at #/items cannot"),
    ({"items": {"const": 10**400}}, "#/items/const is too large a number"),
    ({"items": {"$dynamicAnchor": "a"}}, 'the keyword "\\$dynamicAnchor" at #/items'),
    ({"properties": {str(i): {} for i in range(1001)}}, "#/properties there are 1,001 properties"),
    (
        {"anyOf": [{"enum": [*range(3000)]}, {"enum": [*range(2001)]}]},
        "#/anyOf/1/enum there are 5,001",
    ),
    ({"anyOf": [{"pattern": str(i)} for i in range(501)]}, "the pattern at #/anyOf/500/pattern is one more"),
    (reduce(lambda inner, _: {"items": inner}, range(200), {}), "nested more than 100 levels deep"),
    ({"properties": {"a/b": {"pattern": "(x", "type": "string"}}}, "pattern at #/properties/a~1b/pattern"),
    ({"type": "string", "pattern": "(?=a)b"}, "look-ahead"),
    ({"type": "string", "pattern": "(" * 999 + ")" * 999}, "pattern at #/pattern .*nested parentheses"),
    ({"patternProperties": {"[": {}}, "type": "object"}, "pattern at #/patternProperties"),
    ({"properties": {"a": 3}}, "#/properties/a: a schema is an object or a boolean, not 3"),
    ({"properties": []}, "#/properties must be an object"),
    ({"anyOf": {}}, "#/anyOf must be an array"),
    ({"items": {"type": "strin"}}, "#/items/type must be one or more of string, .*, not 'strin'"),
    ({"type": "string", "minLength": 5, "maxLength": 3}, "#/minLength is larger than maxLength"),
    (False, "no value satisfies the schema, which is false"),
]


@pytest.mark.parametrize(("schema", "message"), WRONG, ids=[str(schema)[:60] for schema, _ in WRONG])
def test_schema_errors_name_the_place(grammars: Grammars, schema: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        grammars.matcher(Format.json_schema(schema))


@pytest.mark.parametrize(
    "schema",
    [
        LIST,
        {"anyOf": [{"type": "null"}, LIST | {"required": ["next"]}]},
        {"properties": {"a": {"$ref": "#tail"}}, "$defs": {"x": {"$anchor": "tail", "type": "null"}}},
        {"$ref": "#/$defs/a~1b/0", "$defs": {"a/b": [{"type": "null"}]}},
        {"$ref": "#/$defs/a~0b%25/ü c", "$defs": {"a~b%": {"ü c": {"type": "null"}}}},
        {"$id": "https://a.b/s", "items": {"$ref": "https://a.b/q"}, "$defs": {"x": {"$id": "q"}}},
        {"$ref": "u:z#r", "$defs": {"x": {"$id": "u:z", "$defs": {"y": {"$anchor": "r", "type": "null"}}}}},
        {
            "items": {"$ref": "#/$defs/x"},
            "$defs": {"x": {"$id": "http://z/", "$ref": "#/$defs/y", "$defs": {"y": {"type": "null"}}}},
        },
        {"enum": [{"$id": "#"}], "$defs": {"unused": {"not": {}}, "broken": 3}},
        {"type": "string", "maxLength": 10**30, "minLength": 2.0, "x-guidance": 3, "$schema": "u:none"},
        {"type": "object", "properties": {"a": {}}, "required": ["b"]},
        {"type": "array", "items": {"$ref": "#"}},
        {"type": ["object", "null"], "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
    ],
    ids=str,
)
def test_finite_references_are_followed(grammars: Grammars, schema: Any) -> None:
    grammars.matcher(Format.json_schema(schema))


@pytest.mark.parametrize(
    ("format", "message"),
    [
        (Format.regex("a["), "the regular expression cannot be used"),
        (Format.regex("(" * 5000 + ")" * 5000), "nested parentheses"),
        (Format.grammar('foo: "a"'), "no start rule"),
        (Format.grammar("start: start"), "the grammar cannot be used"),
        (Format.grammar("root ::= ("), "the grammar cannot be read"),
        (Format.grammar("root ::= nothing"), "Rule 'nothing' not found"),
        (Format.grammar("start: " + "(" * 5000 + '"a"'), "nested 5000 levels"),
    ],
)
def test_grammar_errors_are_explained(grammars: Grammars, format: Format, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        grammars.matcher(format)

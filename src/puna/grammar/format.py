"""The format that a request wants its answer in; it is compiled in the model's process."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal

import msgspec

from puna.errors import RequestError, shown
from puna.gojson import JsonGauge

#: Bytes of a format by kind, chosen to compile within about a second.
LONGEST: Final = {
    "json_schema": 1 << 18,
    "regex": 1 << 14,
    "choice": 1 << 18,
    "lark": 1 << 16,
    "gbnf": 1 << 16,
    "calls": 1 << 20,  # generated from the tools of a request
}

#: Strings to choose from.
MAX_CHOICES: Final = 10_000

Kind = Literal["json_schema", "regex", "choice", "lark", "gbnf", "calls"]


class Format(msgspec.Struct, frozen=True):
    """The required form of an answer: JSON of a schema, a match of a regex, or a text of a grammar.

    `text` is a JSON schema or a list of strings as JSON, a regular expression (Rust's syntax) that the whole
    answer matches, or a grammar, as the client wrote it.
    """

    kind: Kind
    text: str

    @classmethod
    def json_object(cls) -> Format:
        """Return the format of any JSON object."""
        return cls("json_schema", '{"type":"object"}')

    @classmethod
    def json_schema(cls, schema: Any) -> Format:
        """Return the format of JSON that a schema accepts, given as mapping, boolean or text.

        Raises `RequestError`.
        """
        if isinstance(schema, str):
            schema = _parsed(schema)
        if not isinstance(schema, Mapping | bool):
            raise RequestError(f"a JSON schema is an object or a boolean, not {shown(schema)}")
        try:
            text = json.dumps(schema, ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise RequestError(f"the JSON schema cannot be written as JSON: {error}") from None
        return checked(cls("json_schema", text))

    @classmethod
    def regex(cls, pattern: Any) -> Format:
        """Return the format of texts that `pattern` matches as a whole. Raises `RequestError`."""
        return checked(cls("regex", _text("a regular expression", pattern)))

    @classmethod
    def choice(cls, choices: Any) -> Format:
        """Return the format of a text that is one of `choices`. Raises `RequestError`."""
        if isinstance(choices, str) or not isinstance(choices, Iterable):
            raise RequestError(f"choices are a list of strings, not {shown(choices)}")
        listed = list(choices)
        if not listed or not all(isinstance(one, str) for one in listed):
            raise RequestError(f"choices are a list of at least one string, not {shown(listed)}")
        if len(listed) > MAX_CHOICES:
            raise RequestError(f"at most {MAX_CHOICES:,} choices can be given, not {len(listed):,}")
        return checked(cls("choice", json.dumps(listed, ensure_ascii=False)))

    @classmethod
    def grammar(cls, grammar: Any) -> Format:
        """Return the format of a grammar: llama.cpp's GBNF if it has a `::=`, else Lark.

        Raises `RequestError`.
        """
        text = _text("a grammar", grammar)
        return checked(cls("gbnf" if "::=" in text else "lark", text))


def format_of(value: Any) -> Format | None:
    """Convert the `format` of a request to Ollama's API; None if there is none. Raises `RequestError`.

    `value` is "json", a JSON schema, or a `Format`.
    """
    if value is None or value == "" or isinstance(value, Format):
        return value or None
    if value == "json":
        return Format.json_object()
    if isinstance(value, Mapping | bool):
        return Format.json_schema(value)
    raise RequestError(f'invalid format: {shown(value)}; expected "json" or a valid JSON Schema object')


def _text(what: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise RequestError(f"{what} is a text, not {shown(value)}")
    return value


def _parsed(text: str) -> Any:
    try:
        gauge = JsonGauge()
        gauge.feed(text.encode(errors="replace"))
        return json.loads(text)
    except ValueError as error:
        raise RequestError(f"the JSON schema is not valid JSON: {error}") from None


def checked(format: Format) -> Format:
    """Return `format`. Raises `RequestError` if it is too large."""
    try:
        size = len(format.text.encode())
    except UnicodeEncodeError:
        raise RequestError("the format has lone surrogates, which are not characters") from None
    if size > (most := LONGEST[format.kind]):
        what = "the grammar of the tools' calls" if format.kind == "calls" else "the format"
        raise RequestError(f"{what} has {size:,} bytes, and at most {most:,} of its kind are read")
    return format

"""Keywords of JSON schemas: which are supported, their valid values, and limits of size."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from puna.errors import RequestError, shown

#: Keywords that constrain values and have no counterpart in a grammar.
UNSUPPORTED: Final = frozenset(
    (
        *("not", "if", "then", "else", "uniqueItems", "contains", "minContains", "maxContains"),
        *("dependentRequired", "dependentSchemas", "dependencies", "propertyNames"),
        *("unevaluatedItems", "unevaluatedProperties"),
        *("$dynamicRef", "$dynamicAnchor", "$recursiveRef", "$recursiveAnchor"),
    )
)

#: All keywords that constrain values. Others are annotations.
CONSTRAINING: Final = UNSUPPORTED | frozenset(
    (
        *("type", "enum", "const", "$ref", "anyOf", "oneOf", "allOf"),
        *("properties", "patternProperties", "additionalProperties", "required"),
        *("minProperties", "maxProperties", "items", "prefixItems", "additionalItems"),
        *("minItems", "maxItems", "pattern", "format", "minLength", "maxLength"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    )
)

#: Enforced formats of strings. JSON Schema lets any other be ignored.
FORMATS: Final = frozenset(
    ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")
)

#: Limits of one schema as a whole, with which the work of compiling grows.
MAX_PROPERTIES: Final = 1000
MAX_VALUES: Final = 5000
MAX_PATTERNS: Final = 500
#: Nesting of objects and lists, for which parsers recurse.
DEEPEST: Final = 100

_TYPES: Final = ("string", "number", "integer", "boolean", "object", "array", "null")
#: Largest supported minimums; no model would finish more.
_LEAST: Final = {"minLength": 10_000, "minItems": 1_000, "minProperties": 1_000}
_MOST: Final = ("maxLength", "maxItems", "maxProperties")
#: Maximums from here on exceed any answer and count as no limit.
_UNLIMITED: Final = 2**31
_NUMBERS: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_TEXTS: Final = ("pattern", "format")
#: JSON parsers do not read larger numbers.
_LARGEST: Final = 2**1023


def check_keywords(schema: Mapping[str, Any], place: str) -> None:
    """Raise a `RequestError` naming the first unsupported keyword of `schema`, at `place`, if any."""
    for keyword in schema:
        if keyword in UNSUPPORTED:
            raise RequestError(f'format: the keyword "{keyword}" at {place} is not supported')
        if problem := _problem(keyword, schema[keyword]):
            raise RequestError(f"format: {place}/{keyword} {problem}")
    for least, most in (
        ("minLength", "maxLength"),
        ("minItems", "maxItems"),
        ("minProperties", "maxProperties"),
    ):
        if least in schema and most in schema and schema[least] > schema[most]:
            raise RequestError(f"format: {place}/{least} is larger than {most}: no value satisfies both")


def kept(keyword: str, value: Any) -> bool:
    """Return whether a keyword with this value constrains answers, and must be compiled."""
    if keyword == "format" and isinstance(value, str):
        return value in FORMATS
    if keyword == "$schema" and isinstance(value, str):
        return "json-schema.org/" in value
    if keyword in _MOST and isinstance(value, int | float):
        return value < _UNLIMITED
    return keyword != "x-guidance"  # it would configure the library


def check_depth(root: Any) -> None:
    """Raise `RequestError` for excessive nesting, and for numbers that are too large."""
    level: list[tuple[Any, str]] = [(root, "#")]
    for _ in range(DEEPEST + 1):
        below: list[tuple[Any, str]] = []
        for value, place in level:
            if isinstance(value, Mapping):
                below += [(part, f"{place}/{escaped(str(name))}") for name, part in value.items()]
            elif isinstance(value, list):
                below += [(part, f"{place}/{number}") for number, part in enumerate(value)]
            elif isinstance(value, int) and abs(value) >= _LARGEST:
                raise RequestError(f"format: {place} is too large a number")
        if not below:
            return
        level = below
    raise RequestError(
        f"format: the schema is nested more than {DEEPEST} levels deep at {shown(level[0][1])}"
    )


def escaped(name: str) -> str:
    """Escape a name for a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1")


def _problem(keyword: str, value: Any) -> str:
    """Return the fault of a keyword's value; empty if there is none."""
    match keyword:
        case "type":
            listed = value if isinstance(value, list) else [value]
            if not listed or not all(isinstance(kind, str) and kind in _TYPES for kind in listed):
                return f"must be one or more of {', '.join(_TYPES)}, not {shown(value)}"
        case "enum":
            if not isinstance(value, list) or not value:
                return f"must be a list of at least one value, not {shown(value)}"
        case "required":
            if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
                return f"must be a list of strings, not {shown(value)}"
        case _ if keyword in _TEXTS:
            if not isinstance(value, str):
                return f"must be a string, not {shown(value)}"
        case _ if keyword in _NUMBERS:
            if isinstance(value, bool) or not isinstance(value, int | float):
                return f"must be a number, not {shown(value)}"
            if keyword == "multipleOf" and value <= 0:
                return f"must be above 0, not {shown(value)}"
        case _ if keyword in _LEAST or keyword in _MOST:
            whole = isinstance(value, int | float) and not isinstance(value, bool) and value == int(value)
            if not whole or value < 0:
                return f"must be a whole number of at least 0, not {shown(value)}"
            if value > _LEAST.get(keyword, value):
                return f"is {int(value):,}, and at most {_LEAST[keyword]:,} is supported"
    return ""

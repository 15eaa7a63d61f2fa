"""Values of templates, with Go's rules for printing them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

from puna import gojson


class Missing:
    """The value of a missing key: false, printed as `<no value>`, with fields that are missing, too."""

    def __repr__(self) -> str:
        return "<no value>"


MISSING: Final = Missing()


class Record:
    """A Go struct, where a missing field is an error. Prints as JSON."""

    def __init__(self, kind: str, fields: Mapping[str, Any], json: Any) -> None:
        self.kind = kind
        self.fields = fields
        self.json = json


class JsonList(list[Any]):
    """A list that prints as JSON."""


class JsonMap(dict[str, Any]):
    """A map that prints as JSON."""


def is_true(value: Any) -> bool:
    """Return False for false, 0, nil, a missing key, and empty strings, lists and maps."""
    if value is None or value is MISSING:
        return False
    return bool(value) if isinstance(value, bool | int | float | str | list | dict) else True


def type_name(value: Any) -> str:
    """Return the Go type to name in an error message."""
    if isinstance(value, Record):
        return value.kind
    kinds = {bool: "bool", int: "int", float: "float64", str: "string", list: "[]interface {}"}
    for kind, name in kinds.items():
        if isinstance(value, kind):
            return name
    return "map[string]interface {}" if isinstance(value, dict) else "nil"


def to_json(value: Any) -> str:
    """Encode as the function `json` does: map keys sorted, records in their own order."""
    return gojson.dumps(plain(value))


def plain(value: Any) -> Any:
    """Return plain data for JSON: maps sorted, records in their JSON form."""
    if isinstance(value, Record):
        return value.json
    if value is MISSING:
        return None
    if isinstance(value, Mapping):
        return {key: plain(value[key]) for key in sorted(value)}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain(item) for item in value]
    return value


def to_text(value: Any) -> str:
    """Format the value as an action prints it (Go's `%v`; nil and missing print `<no value>`)."""
    return "<no value>" if value is None or value is MISSING else format_value(value)


def format_value(value: Any) -> str:
    """Format as Go's `%v`."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return format_float(value)
    if isinstance(value, Record | JsonList | JsonMap):
        return to_json(value)
    if isinstance(value, Mapping):
        return "map[" + " ".join(f"{key}:{format_value(value[key])}" for key in sorted(value)) + "]"
    if isinstance(value, Sequence):
        return "[" + " ".join(format_value(item) for item in value) + "]"
    return "<no value>" if value is MISSING else "<nil>"


def format_float(value: float) -> str:
    """Format a float as Go's `%v`: shortest digits, an exponent below 1e-4 and from 1e6 on."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    sign, digits, exponent = Decimal(repr(value)).as_tuple()
    point = len(digits) + int(exponent) - 1  # the exponent of the first digit
    text = "".join(map(str, digits)).rstrip("0") or "0"
    minus = "-" if sign else ""
    if value == 0:
        return minus + "0"
    if point < -4 or point >= 6:
        fraction = "." + text[1:] if len(text) > 1 else ""
        return f"{minus}{text[0]}{fraction}e{point:+03d}"
    if point < 0:
        return f"{minus}0.{'0' * (-point - 1)}{text}"
    whole, rest = text[: point + 1].ljust(point + 1, "0"), text[point + 1 :]
    return minus + whole + ("." + rest if rest else "")

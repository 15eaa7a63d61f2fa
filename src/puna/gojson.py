"""JSON exactly as Go's encoder writes it.

Digests of stored layers and prompts rendered by Go templates depend on the exact bytes: no spaces, `<`, `>`
and `&` escaped, numbers in their shortest plain form.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

_ESCAPES = {
    ord("<"): "\\u003c",
    ord(">"): "\\u003e",
    ord("&"): "\\u0026",
    0x2028: "\\u2028",
    0x2029: "\\u2029",
}


def dumps(value: Any, *, sort_keys: bool = False) -> str:
    """Encode plain data (mappings, sequences, strings, numbers, booleans, None) as JSON.

    Raises TypeError for anything else, and ValueError for NaN and infinities.
    """
    if value is None:
        return "null"
    if value is True:
        return "true"
    if value is False:
        return "false"
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, Mapping):
        names = sorted(value) if sort_keys else list(value)
        members = (_text(str(name)) + ":" + dumps(value[name], sort_keys=sort_keys) for name in names)
        return "{" + ",".join(members) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(dumps(item, sort_keys=sort_keys) for item in value) + "]"
    raise TypeError(f"a value of type {type(value).__name__} has no JSON form")


def _text(value: str) -> str:
    # A lone surrogate cannot be encoded as UTF-8; Go replaces invalid characters.
    clean = value.encode("utf-8", "replace").decode("utf-8") if not value.isascii() else value
    return json.dumps(clean, ensure_ascii=False).translate(_ESCAPES)


def _number(value: float) -> str:
    if not math.isfinite(value):
        raise ValueError(f"{value} has no JSON form")
    if value == 0:
        return "-0" if math.copysign(1, value) < 0 else "0"
    shortest = Decimal(repr(value))
    if 1e-6 <= abs(value) < 1e21:
        text = format(shortest, "f")
        return text.rstrip("0").rstrip(".") if "." in text else text
    mantissa, _, exponent = f"{shortest.normalize():e}".partition("e")
    return f"{mantissa}e{int(exponent):+d}" if int(exponent) > 0 else f"{mantissa}e{int(exponent)}"

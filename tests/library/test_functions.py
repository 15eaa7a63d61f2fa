"""Python functions as tools."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import pytest

from puna.errors import RequestError
from puna.library.functions import checked_tools, tool_of


def weather(city: str, days: int = 1, unit: Literal["C", "F"] = "C", *, at: list[float] | None = None) -> str:
    """Look up the weather.

    It may be wrong.

    Args:
        city: The name of a city,
            without its country.
        days (int): How many days ahead.

    Returns:
        unit: nothing of this
    """
    raise NotImplementedError((city, days, unit, at))


def test_a_function_is_described_by_its_signature_and_docstring() -> None:
    tool = tool_of(weather)
    assert tool["type"] == "function"
    assert tool["function"]["name"] == "weather"
    assert tool["function"]["description"] == "Look up the weather.\n\nIt may be wrong."
    parameters = tool["function"]["parameters"]
    assert parameters["required"] == ["city"]
    assert parameters["properties"] == {
        "city": {"type": "string", "description": "The name of a city, without its country."},
        "days": {"type": "integer", "description": "How many days ahead."},
        "unit": {"type": "string", "enum": ["C", "F"]},
        "at": {"anyOf": [{"type": "array", "items": {"type": "number"}}, {"type": "null"}]},
    }


def test_parameters_without_type_hints_are_strings_and_mappings_are_kept() -> None:
    def say(word):  # type: ignore[no-untyped-def]
        raise NotImplementedError

    made = checked_tools([say, {"type": "function", "function": {"name": "x"}}])
    assert made[0]["function"] == {
        "name": "say",
        "description": "",
        "parameters": {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]},
    }
    assert made[1] == {"type": "function", "function": {"name": "x"}}
    assert checked_tools(None) == []


def open_ended(*words: str) -> None: ...
def unspeakable(event: Callable[[], Any]) -> None: ...


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (open_ended, r"tool open_ended has the parameter \*words"),
        (math.hypot, "tool hypot has"),
        (unspeakable, "tool unspeakable: parameter event has a type without a JSON schema"),
    ],
)
def test_a_function_that_cannot_be_called_with_json_is_refused(
    function: Callable[..., Any], words: str
) -> None:
    with pytest.raises(RequestError, match=words):
        tool_of(function)

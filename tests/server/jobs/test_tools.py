"""The tools of a request, whichever API it uses."""

from __future__ import annotations

from typing import Any

import pytest

from puna.errors import RequestError
from puna.server.jobs.tools import MAX_TOOLS, ToolUse, called, chat_choice, chat_tools

TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": name, "description": "d", "parameters": {"type": "object"}}}
    for name in ("f", "g")
]


@pytest.mark.parametrize(
    ("given", "choice", "names"),
    [
        (None, "auto", "fg"),
        ("none", "none", "fg"),
        ("required", "required", "fg"),
        ({"type": "function", "function": {"name": "g"}}, "function:g", "fg"),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [TOOLS[1]]}},
            "auto",
            "g",
        ),
    ],
)
def test_tool_choice_of_a_chat_is_read(given: Any, choice: str, names: str) -> None:
    use = chat_choice(ToolUse(chat_tools(TOOLS)), given)
    assert (use.choice, "".join(tool["function"]["name"] for tool in use.tools)) == (choice, names)


@pytest.mark.parametrize(
    ("tools", "given", "words"),
    [
        ([], "required", "the request has no tools"),
        (TOOLS, {"type": "function", "function": {"name": "h"}}, "'h', which is not one of"),
        (TOOLS, {"type": "allowed_tools", "allowed_tools": {"mode": "never"}}, "mode must be"),
        (TOOLS, {"type": "allowed_tools", "mode": "auto", "tools": [5]}, "must be a list of functions"),
        (TOOLS, "sometimes", "tool_choice must be"),
        (TOOLS, 5, "tool_choice must be"),
    ],
)
def test_impossible_tool_choice_is_refused(tools: list[Any], given: Any, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        chat_choice(ToolUse(chat_tools(tools)), given)


@pytest.mark.parametrize(
    ("tool", "words"),
    [
        ({}, r"tools\[0\].function is missing"),
        ({"function": {}}, "needs a name"),
        ({"function": {"name": 5}}, "needs a name"),
        ({"function": {"name": "x" * 300}}, "at most 256 characters"),
        ({"function": {"name": "f", "description": 5}}, "description must be a string"),
        ({"function": {"name": "f", "parameters": []}}, "parameters must be a JSON schema"),
        ({"type": "web_search"}, "only tools of the type function"),
    ],
)
def test_invalid_tool_is_refused_with_its_index(tool: dict[str, Any], words: str) -> None:
    with pytest.raises(RequestError, match=words):
        chat_tools([tool])


def test_number_of_tools_is_limited() -> None:
    with pytest.raises(RequestError, match="at most 1,024 tools"):
        ToolUse(chat_tools(TOOLS[:1] * (MAX_TOOLS + 1)))


def test_tools_that_must_not_be_called_need_no_tool_support() -> None:
    assert ToolUse(chat_tools(TOOLS)).needs == ["tools"]
    assert ToolUse(chat_tools(TOOLS), "none").needs == []
    assert ToolUse().needs == []


def test_arguments_keep_their_order_and_kinds_of_numbers() -> None:
    call = called("c", "f", '{"b": 1.0, "a": 1}')
    assert repr(call["function"]["arguments"]) == "{'b': 1.0, 'a': 1}"
    assert called("c", "f", "")["function"]["arguments"] == {}
    for arguments in ("{", "[]", 5, "1"):
        with pytest.raises(RequestError, match="invalid tool call arguments"):
            called("c", "f", arguments)

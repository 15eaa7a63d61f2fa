"""Messages as chat templates of transformers read them, and where templates differ in that."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from puna.prompt.messages import Message, call_function

#: What a template asks that tells calls from answers by there being no content; "" would be an empty answer.
_NO_CONTENT: Final = re.compile(r"""\bcontent(["']\])? is (not )?none\s*-?%}""")

#: What a template reads that knows of one call in a message.
_FIRST_CALL: Final = re.compile(r"""tool_calls(["']\])?\[0\]""")


@dataclass(frozen=True)
class Wording:
    """How a template wants calls and their results, as far as its text tells.

    `nothing` is the content of a message that only calls. `one_call`: a message has one call at most, and
    the result comes after it. `results_within`: results belong to the message that calls.
    """

    nothing: str | None = ""
    one_call: bool = False
    results_within: bool = False

    @classmethod
    def of(cls, template: str) -> Wording:
        return cls(
            None if _NO_CONTENT.search(template) else "",
            _FIRST_CALL.search(template) is not None,
            "tool_responses" in template,
        )

    def chat(self, messages: Iterable[Message]) -> list[dict[str, Any]]:
        """A chat, message by message."""
        chat = [_message(message, self.nothing) for message in messages]
        if self.results_within:
            chat = _results_within(chat)
        return _one_call_each(chat, self.nothing) if self.one_call else chat


def _message(message: Message, nothing: str | None) -> dict[str, Any]:
    """One message; thinking is under each of the names in use."""
    content = message.content or (nothing if message.tool_calls else "")
    value: dict[str, Any] = {"role": message.role, "content": content}
    if message.thinking:
        value |= {"reasoning_content": message.thinking, "thinking": message.thinking}
    if message.tool_calls:
        value["tool_calls"] = [_call(call) for call in message.tool_calls]
    if message.tool_name:
        value["name"] = message.tool_name
    if message.tool_call_id:
        value["tool_call_id"] = message.tool_call_id
    return value


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    name, arguments = call_function(call)
    value: dict[str, Any] = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return {"id": call["id"], **value} if call.get("id") else value


def _turns(chat: list[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Each message, with the results of tools right after one that calls."""
    place = 0
    while place < len(chat):
        message, begin = chat[place], place + 1
        place += 1
        while "tool_calls" in message and place < len(chat) and chat[place]["role"] == "tool":
            place += 1
        yield message, chat[begin:place]


class _Results:
    """Results that belong to calls by their ids, and others that belong to the next call in their order."""

    def __init__(self, results: list[dict[str, Any]], calls: list[dict[str, Any]]) -> None:
        ids = {call.get("id") for call in calls} - {None}
        self._named: dict[str, dict[str, Any]] = {}
        self.others: deque[dict[str, Any]] = deque()
        for result in results:
            id: Any = result.get("tool_call_id")
            if id in ids and id not in self._named:
                self._named[id] = result
            else:
                self.others.append(result)

    def of(self, call: dict[str, Any]) -> dict[str, Any] | None:
        """The result of a call, given once."""
        if (found := self._named.pop(str(call.get("id")), None)) is not None:
            return found
        return self.others.popleft() if self.others else None


def _results_within(chat: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """`chat` with results in the message that calls, by the names of their tools."""
    form: list[dict[str, Any]] = []
    for message, given in _turns(chat):
        if given:
            results = _Results(given, message["tool_calls"])
            pairs = [(call["function"]["name"], results.of(call)) for call in message["tool_calls"]]
            pairs += [(result.get("name", "unknown"), result) for result in results.others]
            responses = [{"name": name, "response": one["content"]} for name, one in pairs if one is not None]
            message = {**message, "tool_responses": responses}
        form.append(message)
    return form


def _one_call_each(chat: list[dict[str, Any]], nothing: str | None) -> list[dict[str, Any]]:
    """`chat` with a message for each call, and its result, if there is one, after it."""
    form: list[dict[str, Any]] = []
    for message, given in _turns(chat):
        calls = message.get("tool_calls", [])
        if len(calls) < 2:
            form += [message, *given]
            continue
        results = _Results(given, calls)
        for number, call in enumerate(calls):
            said = message if number == 0 else {"role": message["role"], "content": nothing}
            form.append({**said, "tool_calls": [call]})
            if (result := results.of(call)) is not None:
                form.append(result)
        form += results.others
    return form

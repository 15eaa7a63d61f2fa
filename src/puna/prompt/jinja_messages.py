"""Messages as chat templates of transformers read them, and where templates differ in that."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
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
        chat: list[dict[str, Any]] = []
        for message in messages:
            made = _message(message, self.nothing)
            if self.results_within and message.role == "tool" and chat and "tool_calls" in chat[-1]:
                chat[-1].setdefault("tool_responses", []).append(_response(made, chat[-1]))
            else:
                chat.append(made)
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


def _response(result: Mapping[str, Any], caller: Mapping[str, Any]) -> dict[str, Any]:
    """A result within the message that calls: of the call it names, else of the next in their order."""
    calls, place = caller["tool_calls"], len(caller.get("tool_responses", ()))
    found = _called(result, calls) or (calls[place] if place < len(calls) else None)
    name = result.get("name") or (found["function"]["name"] if found else "unknown")
    return {"name": name, "response": result["content"]}


def _called(result: Mapping[str, Any], calls: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    id = result.get("tool_call_id")
    return next((call for call in calls if id and call.get("id") == id), None)


def _one_call_each(chat: list[dict[str, Any]], nothing: str | None) -> list[dict[str, Any]]:
    """`chat` with a message for each call, and its result, if there is one, after it."""
    form: list[dict[str, Any]] = []
    place = 0
    while place < len(chat):
        message = chat[place]
        place += 1
        calls = message.get("tool_calls", ())
        if len(calls) < 2:
            form.append(message)
            continue
        results = []
        while place < len(chat) and chat[place]["role"] == "tool":
            results.append(chat[place])
            place += 1
        for number, call in enumerate(calls):
            said = message if number == 0 else {"role": message["role"], "content": nothing}
            form.append({**said, "tool_calls": [call]})
            answer = next((result for result in results if _called(result, [call])), None)
            if answer is None:
                answer = next((result for result in results if not _called(result, calls)), None)
            if answer is not None:
                results.remove(answer)
                form.append(answer)
        form += results
    return form

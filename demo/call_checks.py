"""Held-out conversations with tools and small objects, as clients send them, and checks of the answers."""

import json
import random
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import puna
from demo.corpus import calls, records

_CALL = re.compile(r"<tool_call>\n(.*?)\n</tool_call>")
Calls = list[tuple[str, dict[str, Any]]]  # names and arguments


def spoken(talk: Sequence[calls.Message]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the messages and tools of a conversation, from which the template makes its text."""
    messages: list[dict[str, Any]] = []
    tools: list[dict[str, Any]] = []
    for message in talk:
        said = {"role": message["role"], "content": message["content"]}
        if message["role"] == "system":
            said["content"], _, listed = message["content"].partition("Tools:\n")
            said["content"] = said["content"].removesuffix("\n")
            lines = [line.removesuffix(")").partition("(") for line in listed.splitlines()]
            tools = [calls.definition((name, parameters)) for name, _, parameters in lines]
        elif called := calls_of(message["content"]):
            said["content"] = ""
            said["tool_calls"] = [
                {"type": "function", "function": {"name": name, "arguments": given}} for name, given in called
            ]
        if said["content"] or "tool_calls" in said:
            messages.append(said)
    return messages, tools


def calls_of(text: str) -> Calls:
    """Return the calls in the assistant's text."""
    found = [json.loads(body) for body in _CALL.findall(text)]
    return [(call["name"], call["arguments"]) for call in found]


def right_calls(model: puna.Model, count: int, seed: int) -> dict[str, Any]:
    """Return the shares of right answers to held-out questions, in `count` conversations of each kind.

    A call is right if its tool and all arguments are, an answer if it repeats the results word for word, and
    an object if it has the values of the sentence.
    """
    rng = random.Random(seed)
    asked: list[tuple[str, list[dict[str, Any]], list[dict[str, Any]], dict[str, Any], Any]] = []
    for _ in range(count):
        talk = calls.tool_chat(rng, held=True)
        messages, tools = spoken(talk)
        for number, message in enumerate(messages):
            if message["role"] == "assistant":
                called = calls_of(talk[number + len(talk) - len(messages)]["content"])
                after = messages[number - 1]["role"] == "tool"
                kind = "calls" if called else "answers with results" if after else "answers without a call"
                asked.append((kind, messages[:number], tools, {}, called or message["content"]))
    for _ in range(count):
        *talk, answer = records.record_chat(rng, held=True)
        messages, tools = spoken(talk)
        wanted = calls_of(answer["content"]) or json.loads(answer["content"])
        form = {} if tools else {"format": records.schema(wanted)}
        asked.append(("objects by a tool" if tools else "objects by a schema", messages, tools, form, wanted))

    def answered(question: tuple[str, list[Any], list[Any], dict[str, Any], Any]) -> tuple[Any, str]:
        kind, messages, tools, form, _ = question
        said = model.chat(messages, tools=tools, temperature=0, num_predict=120, **form)
        if kind == "objects by a schema":
            return json.loads(said.text), said.text
        return [(call.name, call.arguments) for call in said.calls] or said.text.strip(), said.text

    with ThreadPoolExecutor(16) as pool:
        given = list(pool.map(answered, asked))
    kinds: dict[str, list[bool]] = {}
    wrong = []
    for (kind, messages, _, _, wanted), (got, text) in zip(asked, given, strict=True):
        kinds.setdefault(kind, []).append(got == wanted)
        if got != wanted:
            wrong.append(
                {"kind": kind, "asked": messages[-1]["content"], "wanted": wanted, "got": got or text}
            )
    return {
        **{kind: sum(right) / len(right) for kind, right in kinds.items()},
        "counts": {kind: len(right) for kind, right in kinds.items()},
        "failures": wrong[:60],
    }

"""Parsers of untrusted text take time proportional to its length, whatever it contains."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from puna import gojson
from puna.audio.mel import HOP, Features
from puna.audio.recording import Recording
from puna.chat.answers.family import AnswerParser, Reading
from puna.chat.answers.parts import Tags
from puna.chat.answers.registry import FAMILIES, PLAIN
from puna.chat.answers.tools import Tool
from puna.chat.templates.go import GoTemplate
from puna.chat.templates.go_chat import collated
from puna.chat.templates.jinja_chat import _neighbours_merged, _short_ids, _text_with_result, simple_tool
from puna.chat.templates.messages import Message
from puna.convert.whisper_cpp import _merges
from puna.engine.text import TextStream, TokenText
from puna.errors import PunaError
from puna.gojson import JsonGauge
from puna.options import LONGEST_STOPS, MAX_STOPS, Options
from puna.server.anthropic.wire import MessagesRequest
from puna.server.history.exchange.markdown import fenced
from puna.server.history.exchange.reading import read_chats
from puna.server.http.bodies import parse
from puna.server.http.origins import host_name, is_local_address, is_local_name, parse_origins
from puna.server.llamaserver.limits import LineLimits
from puna.server.llamaserver.wire import CompletionBody, prompts_of
from puna.server.ollama.wire import ChatRequest, GenerateRequest
from puna.server.openai.responses.wire import input_items, prompt_messages
from puna.server.openai.wire import ChatCompletionRequest
from puna.server.settings import keep_alive_s
from puna.store import ModelName
from puna.store.modelfile import parse as parse_modelfile
from puna.store.modelfile import quoted
from puna.tokenizer.patterns import BY_NAME, DEFAULT, LINES, Digits, splitter
from tests.chat.answers.vectors import hy
from tests.server.history.exchange.foreign import conversation, file_of, node, webui_chat
from tests.work import calls, proportional

#: One character of each kind that the patterns distinguish, and pairs that they treat specially.
UNITS = [
    "a", "A", "Aa", "1", " ", "\n", "\r\n", "\t", " \n", "\n ", "a ", " a", "'s", "'S", "'", "!", " !", "!\n",
    "<|", ",", "/", "_", "\u00a0", "\u2028", "\x1c", "\u6f22", "\u3042", "\uac00", "\u0627", "\u01c5",
    "\u02b0", "\u0301", "a\u0301", "\u6f22\u0301", " \u0301", "\u00bd", "\u0663", "\U0001f600", "IMGIMG",
    "<sentinel:1",
]  # fmt: skip
ENDS = ["", "a", "!", "\n"]

STEPS = {str(step): step for pre in (*BY_NAME.values(), DEFAULT, LINES) for step in pre.steps}


@pytest.mark.slow
@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("step", STEPS.values(), ids=range(len(STEPS)))
def test_every_step_of_every_pre_tokenizer_takes_linear_time(step: str | Digits, every: bool) -> None:
    """Try every unit with every ending, or in the sample with one ending each."""
    split = splitter(step)
    for number, unit in enumerate(UNITS):
        for end in ENDS if every else [ENDS[number % len(ENDS)]]:
            assert proportional(_splitting(split, unit, end), 1 << 11, 1 << 11), (
                f"{step}: {unit!r} repeated, then {end!r}"
            )


def _splitting(split: Callable[[str], list[str]], unit: str, end: str) -> Callable[[int], Callable[[], Any]]:
    return lambda size: partial(split, unit * size + end)


#: Long, because repeated copying of what was read so far shows only when there is much to copy.
LINE = "x" * 1000


def _ignoring_errors(work: Callable[[], Any]) -> Callable[[], None]:
    def run() -> None:
        with contextlib.suppress(PunaError, ValueError):
            work()

    return run


def messages(count: int, role: str = "user") -> list[Message]:
    return [Message(role=role, content=LINE) for _ in range(count)]


def thinking(pieces: list[str]) -> None:
    parser = AnswerParser(Reading(PLAIN, Tags("<think>", "</think>")))
    for piece in pieces:
        parser.feed(piece)
    parser.flush()


def answering(family: str, unit: str, count: int, *, begin: str = "") -> Callable[[], None]:
    tool = Tool("f", {"properties": {"object": {"type": "object"}}})

    def run() -> None:
        parser = AnswerParser(Reading(FAMILIES[family], tools={"f": tool}))
        parser.feed(begin)
        for _ in range(count):
            parser.feed(unit)
        parser.flush()

    return run


def tool_turns(count: int) -> bytes:
    turns = [
        {"role": "tool", "tool_call_id": f"{i}", "content": ""}
        if i % 2
        else {
            "role": "assistant",
            "tool_calls": [{"id": f"{i + 1}", "function": {"name": "f", "arguments": "{}"}}],
        }
        for i in range(count)
    ]
    return json.dumps({"messages": turns}).encode()


def called_and_answered(count: int) -> list[dict[str, Any]]:
    """Return a message with many tool calls, followed by their results."""
    calls: list[dict[str, Any]] = [{"id": f"call {i}", "function": {"name": "f"}} for i in range(count)]
    results = [{"role": "tool", "content": "", "tool_call_id": call["id"]} for call in calls]
    return [{"role": "assistant", "content": "", "tool_calls": calls}, *results]


def blocks(block: dict[str, Any], count: int) -> bytes:
    messages = [{"role": "assistant", "content": [block] * count}]
    return json.dumps({"model": "m", "max_tokens": 1, "messages": messages}).encode()


def _answer(text: str) -> dict[str, Any]:
    return {"id": "a", "parentId": None, "role": "assistant", "content": text}


def webui_messages(count: int, circle: bool = False) -> list[dict[str, Any]]:
    """Return messages of Open WebUI, each before the one that it answers."""
    last = "0" if circle else None
    return [
        {"id": f"{n}", "parentId": f"{n + 1}" if n + 1 < count else last, "role": "user", "content": "x"}
        for n in range(count)
    ]


def imported(messages: list[dict[str, Any]]) -> None:
    list(read_chats(file_of(webui_chat(messages))))


def _citing(text: str) -> bytes:
    return file_of(conversation(node("a", None, "user", text)))


READERS: dict[str, Callable[[int], Callable[[], Any]]] = {
    "keep_alive: digits": lambda n: lambda: keep_alive_s("1" * n),
    "keep_alive: digits and a word": lambda n: lambda: keep_alive_s("1" * n + "x"),
    "keep_alive: parts": lambda n: lambda: keep_alive_s("1s" * n),
    "messages of one role": lambda n: lambda: collated(messages(n)),
    "messages of one role, for Jinja": lambda n: (
        lambda: _neighbours_merged([{"role": "user", "content": LINE[:99]}] * n)
    ),
    "texts after a result, for Jinja": lambda n: (
        lambda: _text_with_result(
            [{"role": "tool", "content": ""}, *[{"role": "user", "content": LINE[:99]}] * n]
        )
    ),
    "a Modelfile value of many lines": lambda n: lambda: quoted(f"{LINE}\n" * n),
    "a Modelfile value of many blanks": lambda n: lambda: quoted(f"{' ' * 1000}\n" * n + '"'),
    "a Modelfile value of quotes": lambda n: lambda: quoted(f'{LINE}"\n' * n),
    "a Modelfile of many commands": lambda n: lambda: parse_modelfile("FROM x\n" * (n // 8)),
    "an open quote in a Modelfile": lambda n: lambda: parse_modelfile('FROM x\nSYSTEM """' + f"{LINE}\n" * n),
    "a thought": lambda n: lambda: thinking(["<think>", *["<"] * n]),
    "blanks before an answer": lambda n: lambda: thinking([" " * 1000] * n),
    "the beginning of a tag": lambda n: lambda: thinking(["<think>", *["</think"] * n]),
    **{
        f"{family}: {what}": partial(answering, family, unit)
        for family, what, unit in (
            ("hermes", "openings", "<tool_call>"),
            ("hermes", "broken calls", '<tool_call>{"name": "f", "arguments": {"a": <'),
            ("qwen3-coder", "open values", "<function=f><parameter=a>\n"),
            ("lfm2", "lists", "<|tool_call_start|>[f(a=["),
            ("minimax-m3", "open elements", ']<]minimax[>[<invoke name="f">]<]minimax[>[<a>'),
            ("harmony", "headers", "<|channel|>commentary to=functions.f<|message|>["),
        )
    },
    # The quote in each name keeps the string open that the value before it began.
    "qwen3-coder: strings that stay open": partial(
        answering, "qwen3-coder", '<parameter=object">{"</parameter>', begin="<function=f>"
    ),
    "hy4: strings that stay open": partial(
        answering,
        "hy4",
        hy('<arg_key>object"</arg_key><arg_value>{"</arg_value>'),
        begin=hy("<tool_calls><tool_call>f"),
    ),
    "ling3: strings that stay open": partial(
        answering,
        "ling3",
        '<arg_key>object"</arg_key><arg_value>{"</arg_value>',
        begin="<tool_call>f\n",
    ),
    "a Go template of text": lambda n: lambda: GoTemplate("{" * n),
    "a Go template of actions": lambda n: lambda: GoTemplate("{{.A}}" * (n // 8)),
    "a Go template of blanks": lambda n: lambda: GoTemplate("{{" + " " * n + "-}}"),
    "a Go template of digits": lambda n: lambda: GoTemplate("{{" + "1" * n + "x}}"),
    "a Go template with an open string": lambda n: lambda: GoTemplate('{{"' + "\\a" * n),
    "a Go template of trims": lambda n: lambda: GoTemplate("{{- .A -}}  " * (n // 16)),
    "JSON: brackets": lambda n: lambda: gojson.loads("[" * n),
    "JSON: escapes": lambda n: lambda: gojson.loads('"' + "\\ud800" * n + '"'),
    "JSON: an integer": lambda n: lambda: gojson.loads("1" * n),
    "JSON: a fraction": lambda n: lambda: gojson.loads("0." + "1" * n),
    "JSON: lists": lambda n: lambda: gojson.loads("[" + "[]," * n + "[]]"),
    "JSON to Go": lambda n: lambda: gojson.dumps({"<" * n: ["\u2028" * n] * 2}),
    "the gauge: quotes": lambda n: lambda: JsonGauge().feed(b'"' * n),
    "the gauge: backslashes": lambda n: lambda: JsonGauge().feed(b'"' + b"\\" * n),
    "the gauge, byte by byte": lambda n: lambda: [JsonGauge().feed(b'"a')] * n,
    "a body of wrong messages": lambda n: lambda: parse(b'{"messages":[' + b"1," * n + b"1]}", ChatRequest),
    "a body of wrong keys": lambda n: (
        lambda: parse(json.dumps({"options": {str(i): i for i in range(n)}}).encode(), ChatRequest)
    ),
    "a wrong context": lambda n: lambda: parse(b'{"context":[' + b"-1," * n + b"1]}", GenerateRequest),
    "calls and results of tools": lambda n: lambda: parse(tool_turns(n // 16), ChatCompletionRequest).spec(),
    "blocks of thinking": lambda n: (
        lambda: parse(blocks({"type": "thinking", "thinking": LINE}, n), MessagesRequest).spec()
    ),
    "blocks of tools": lambda n: (
        lambda: parse(blocks({"type": "tool_use", "id": "a", "name": "f"}, n), MessagesRequest).spec()
    ),
    "items of thinking": lambda n: (
        lambda: prompt_messages(input_items([{"type": "reasoning", "encrypted_content": LINE}] * n))
    ),
    "items of calls": lambda n: (
        lambda: prompt_messages(input_items([{"type": "function_call", "name": "f", "call_id": "a"}] * n))
    ),
    "short ids of calls": lambda n: lambda: _short_ids(called_and_answered(n)),
    "a prompt of texts and tokens": lambda n: lambda: prompts_of([1, "a"] * n),
    "pairs of logit_bias": lambda n: (
        lambda: CompletionBody(prompt="a", logit_bias=[[i, False] for i in range(n)]).options()
    ),
    "an answer of short lines": lambda n: lambda: LineLimits(1, 0).feed("a\n " * n),
    "a tool of many types": lambda n: (
        lambda: simple_tool({"function": {"parameters": {"properties": {str(i): {} for i in range(n)}}}})
    ),
    "unknown options": lambda n: lambda: Options.ignored({str(i): 1 for i in range(n)}),
    "an unknown option": lambda n: lambda: Options.ignored({"x" * n: 1}),
    "logit_bias": lambda n: lambda: Options.merge({"logit_bias": {str(i): 1 for i in range(n)}}),
    "stop strings": lambda n: lambda: Options.merge({"stop": ["x"] * n}),
    "a model's name": lambda n: lambda: ModelName.parse("a/" * n),
    "a model's name of colons": lambda n: lambda: ModelName.parse(":" * n),
    "an import of a chain of messages": lambda n: lambda: imported(webui_messages(n // 8)),
    "an import of a circle of messages": lambda n: lambda: imported(webui_messages(n // 8, circle=True)),
    "an import of blocks": lambda n: (
        lambda: imported([_answer('<details type="reasoning"><summary></summary>x</details>' * n)])
    ),
    "an import of open blocks": lambda n: lambda: imported([_answer('<details type="reasoning">' * n)]),
    "an import of attributes": lambda n: lambda: imported([_answer('<details type="' + 'a="' * n + ">")]),
    "an import of citations": lambda n: lambda: list(read_chats(_citing("\ue200" * n))),
    "a fence": lambda n: lambda: fenced("`` " * n),
    "a Host header of digits": lambda n: lambda: host_name("1" * n),
    "a Host header of colons": lambda n: lambda: host_name("[" + ":" * n + "]"),
    "an address": lambda n: lambda: is_local_address("1." * n),
    "a host's name": lambda n: lambda: is_local_name("a." * n + "local"),
    "a recording": lambda n: lambda: Features(Recording(np.zeros(HOP * n, np.int16)), 80, 3000),
    "a vocabulary of whisper.cpp": lambda n: lambda: list(_merges([b"%016d" % place for place in range(n)])),
    "an origin": lambda n: lambda: parse_origins("").allow("http://localhost:" + "1" * n),
}


@pytest.mark.slow
@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_every_parser_takes_linear_time(read: Callable[[int], Callable[[], Any]]) -> None:
    assert proportional(lambda size: _ignoring_errors(read(size)))


@pytest.mark.parametrize("stop", [["a" * (LONGEST_STOPS - 1) + "b"], [f"a{i:062}" for i in range(MAX_STOPS)]])
def test_work_per_token_does_not_depend_on_the_stop_strings(stop: list[str]) -> None:
    def answer(stop: list[str]) -> int:
        stream = TextStream(stop)
        stream.feed(TokenText(0, b"a"))  # do not count one-time setup
        return calls(lambda: [stream.feed(TokenText(i, b"a")) for i in range(5000)]).total()

    assert answer(Options.merge({"stop": stop}).stop or []) < 1.5 * answer(["b"])  # type: ignore[arg-type]

"""Answers of every family, generated token by token, are parsed correctly on their way out."""

from __future__ import annotations

import json
import queue
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import puna
from puna.chat.answers.registry import _MARKS
from puna.chat.templates.messages import Chat, Message
from puna.options import Options
from puna.protocol import Chunk, Done, Event, Failed, Generate
from tests.chat.answers.reading import TOOLS, Read
from tests.chat.answers.vectors import VECTORS, Vector
from tests.scripted import pieces_of, random_sizes, trigger, write_scripted
from tests.waiting import PATIENCE_S

#: Vectors used here: those whose prompts end inside a turn's header would need their own templates, as would
#: those without marks; at most five of a family.
SPOKEN = [
    vector
    for number, vector in enumerate(VECTORS)
    if "prompt" not in vector.options
    and vector.family != "template"
    and sum(other.family == vector.family for other in VECTORS[:number]) < 5
]

#: Markup that is control tokens in its family's vocabulary.
CONTROLS = (
    *("<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|call|>", "<|constrain|>", "<|python_tag|>"),
    *("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "<|tool_call|>", "<|tool_call_start|>"),
    *(
        "<|tool_call_end|>",
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁call▁begin｜>",
        "<｜tool▁sep｜>",
        '<|"|>',
        "<think>",
    ),
)


def template_of(vector: Vector) -> str:
    """Return a template that contains the family's marks without ever writing them."""
    mark = next(mark for mark in _MARKS if mark.family == vector.family)
    marks = " ".join(mark.texts)
    tags = vector.options.get("thinking")
    thinking = ""
    if tags is not None:
        thinking = f"{{{{ if .Thinking }}}}{tags.opening}{{{{ .Thinking }}}}{tags.closing}{{{{ end }}}}"
    return (
        f"{{{{ if .Tools }}}}{{{{ if false }}}}{marks}{{{{ end }}}}{{{{ end }}}}"
        f"{{{{ range .Messages }}}}{thinking}{{{{ .Content }}}}\n{{{{ end }}}}"
    )


@pytest.fixture(scope="module", params=[pytest.param("bytes", marks=pytest.mark.thorough), "random"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[puna.Model]:
    size = (lambda: 1) if request.param == "bytes" else random_sizes(3)
    scripts = [pieces_of(vector.answer, CONTROLS, size=size) for vector in SPOKEN]
    path = write_scripted(tmp_path_factory.mktemp("families") / "scripted.gguf", scripts)
    with puna.load(path, num_ctx=2048, parallel=8) as loaded:
        yield loaded


def request_for(number: int, vector: Vector, **more: object) -> Generate:
    chat = Chat(messages=[Message(role="user", content=trigger(SPOKEN.index(vector)))], tools=TOOLS)
    return Generate(
        id=number,
        prompt=chat,
        options=Options(temperature=0, num_predict=1000),
        template=template_of(vector),
        think=True if vector.options.get("thinking") or vector.family in ("glimmer", "harmony") else None,
        **more,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("streams", [False, True], ids=["whole", "streamed"])
def test_answers_of_every_family_are_parsed(model: puna.Model, streams: bool) -> None:
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    for number, vector in enumerate(SPOKEN):  # side by side
        model._chat.submit(request_for(number, vector, stream_calls=streams, logprobs=True), events.put)
    found = [Read() for _ in SPOKEN]
    tokens = [0] * len(SPOKEN)
    missing = len(SPOKEN)
    while missing:
        event = events.get(timeout=120)
        assert not isinstance(event, Failed), event
        if isinstance(event, Chunk):
            one = found[event.id]
            one.thinking += event.thinking
            one.text += event.text
            tokens[event.id] += len(event.logprobs)
            for delta in event.calls:
                if delta.id:
                    one.calls.append((delta.name, ""))
                name, arguments = one.calls[delta.index]
                one.calls[delta.index] = name, arguments + delta.arguments
        elif isinstance(event, Done):
            missing -= 1
            assert (event.reason, event.eval_count) == ("stop", tokens[event.id] + 1)
    for vector, one in zip(SPOKEN, found, strict=True):
        assert (one.calls, one.text, one.thinking) == (vector.calls, vector.text, vector.thinking), str(
            vector
        )


def test_library_returns_tool_calls(tmp_path: Path) -> None:
    call = '{"name": "get_weather", "arguments": {"city": "Ü", "days": 1.0}}'
    answer = f"<think>Hm</think>Look. <tool_call>{call}</tool_call>"
    template = (
        "{% if tools %}<tool_call>{% endif %}<think></think>"
        "{% for message in messages %}{{ message.content }}{{ message.tool_calls }}{% endfor %}"
    )
    path = write_scripted(tmp_path / "calls.gguf", [pieces_of(answer)], template=template)
    with puna.load(path, num_ctx=1024) as model:
        messages = [{"role": "user", "content": "Weather?"}]
        done = model.chat(messages, tools=TOOLS, temperature=0)
        (made,) = done.calls
        assert (made.name, json.dumps(made.arguments)) == ("get_weather", '{"city": "\\u00dc", "days": 1.0}')
        assert (done.text, done.thinking, done.reason) == ("Look. ", "Hm", "stop")
        with model.chat(messages, tools=TOOLS, temperature=0, stream=True) as stream:
            assert [delta.name for chunk in stream for delta in chunk.calls] == ["get_weather"]
            assert stream.calls[0].arguments == made.arguments
        plain = model.chat(messages, temperature=0)
        assert (plain.text, plain.calls) == (f"Look. \nget_weather{call[call.index('{', 1) : -1]}", [])
        unwanted = model.chat(messages, tools=TOOLS, tool_choice="none", temperature=0)
        assert (unwanted.text, unwanted.calls) == (plain.text, [])


def test_a_truncated_call_is_text(model: puna.Model) -> None:
    vector = SPOKEN[0]
    request = request_for(1, vector)
    whole = len(vector.answer.removesuffix("\n</tool_call>"))
    for length in (whole - 1, whole):
        events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        options = Options(temperature=0, num_predict=500, stop=[vector.answer[length : length + 4]])
        model._chat.submit(msgspec.structs.replace(request, options=options), events.put)
        chunks = []
        while not isinstance(event := events.get(timeout=PATIENCE_S), Done):
            assert not isinstance(event, Failed), event
            chunks += [event] if isinstance(event, Chunk) else []
        assert bool([delta for chunk in chunks for delta in chunk.calls]) == (length == whole)
        text = "".join(chunk.text for chunk in chunks)
        assert text == ("" if length == whole else vector.answer[:length])


@pytest.mark.slow
@pytest.mark.parametrize("choice", ["required", "function:get_time"])
@pytest.mark.parametrize(
    "families",
    [
        pytest.param({vector.family for vector in SPOKEN}, marks=pytest.mark.thorough, id="all"),
        pytest.param({"hermes", "glm", "harmony", "lfm2"}, id="some"),
    ],
)
def test_required_tool_is_called_even_if_the_model_prefers_text(
    model: puna.Model, choice: str, families: set[str]
) -> None:
    """The model prefers another answer, and the grammar forces a call."""
    ended = 0
    for vector in {vector.family: vector for vector in SPOKEN if vector.family in families}.values():
        request = request_for(1, vector)
        assert isinstance(request.prompt, Chat)
        chat = msgspec.structs.replace(request.prompt, tool_choice=choice, parallel_tool_calls=False)
        events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        options = Options(temperature=0, num_predict=400)
        model._chat.submit(msgspec.structs.replace(request, prompt=chat, options=options), events.put)
        calls, done = [], None
        while done is None:
            event = events.get(timeout=PATIENCE_S)
            assert not isinstance(event, Failed), event
            calls += event.calls if isinstance(event, Chunk) else []
            done = event if isinstance(event, Done) else None
        if done.reason == "stop":
            ended += 1
            (call,) = calls
            assert call.name in (["get_time"] if ":" in choice else ["get_weather", "get_time", "write"])
            assert isinstance(json.loads(call.arguments), dict)
    assert ended  # the others continue inside a string until num_predict

"""Tool calls that the library executes: functions and MCP servers, until the model answers."""

from __future__ import annotations

import asyncio
import datetime
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import puna
from puna.errors import RequestError
from puna.library.completion import Call
from puna.library.tools import ToolSet
from tests.mcp.servers import hostile, stranger
from tests.scripted import randomly_cut, trigger, write_scripted

#: The newest message selects what the model says; it shows whether the tools were in the prompt.
TEMPLATE = (
    "{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}"
    'Call a tool as <tool_call>{"name": ..., "arguments": ...}</tool_call>.'
    "{% for m in messages %}{% for call in m.tool_calls or [] %}{{ call.function | tojson }}{% endfor %}"
    "{% if loop.last %}{{ m.content }}{% endif %}{% endfor %}"
)


def call(name: str, /, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


ANSWER = "It is a fruit."
SCRIPTS = [
    call("look_up", word="fig"),
    ANSWER,
    call("shorten", text="fig", day="2024-02-29"),
    "Let me see. " + call("look_up", word="a") + "\n" + call("add", a=2, b=3),
    call("look_up", word="again") + trigger(4),
    call("hang"),
    call("good"),
    call("picture"),
    call("missing"),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[puna.Model]:
    path = tmp_path_factory.mktemp("tools") / "scripted.gguf"
    with puna.load(write_scripted(path, randomly_cut(SCRIPTS), template=TEMPLATE)) as loaded:
        yield loaded


def ask(script: int) -> list[dict[str, Any]]:
    return [{"role": "user", "content": trigger(script)}]


def look_up(word: str) -> str:
    """Look a word up."""
    return f"{word} means {trigger(1)}"


def add(a: int, b: int) -> str:
    """Add two numbers."""
    return f"{a + b} {trigger(1)}"


def shorten(text: str, day: datetime.date) -> dict[str, Any]:
    """Shorten a text."""
    assert isinstance(day, datetime.date)
    return {"text": text[:1], "day": day, "then": trigger(1)}


def test_calls_are_executed_until_the_model_answers(model: puna.Model) -> None:
    done = model.chat(ask(0), tools=[look_up], max_tool_rounds=3, temperature=0)
    assert done.text == ANSWER
    assert done.calls == []
    called, result, answer = done.messages
    assert called["tool_calls"][0]["function"] == {"name": "look_up", "arguments": {"word": "fig"}}
    assert result == {
        "role": "tool",
        "tool_name": "look_up",
        "tool_call_id": called["tool_calls"][0]["id"],
        "content": "fig means <<1>>",
    }
    assert answer == {"role": "assistant", "content": ANSWER}
    assert model.chat([*ask(0), called, result], tools=[look_up], temperature=0).text == ANSWER


def test_without_rounds_calls_are_returned_as_before(model: puna.Model) -> None:
    done = model.chat(ask(0), tools=[look_up], temperature=0)
    assert [(each.name, each.arguments) for each in done.calls] == [("look_up", {"word": "fig"})]
    assert done.messages == []


def test_arguments_have_the_types_of_the_parameters_and_values_become_json(model: puna.Model) -> None:
    done = model.chat(ask(2), tools=[shorten], max_tool_rounds=1, temperature=0)
    assert json.loads(done.messages[1]["content"]) == {"text": "f", "day": "2024-02-29", "then": "<<1>>"}
    assert done.text == ANSWER


def test_several_calls_and_the_text_before_them_are_kept(model: puna.Model) -> None:
    with model.chat(ask(3), tools=[look_up, add], max_tool_rounds=2, temperature=0, stream=True) as stream:
        chunks = list(stream)
    assert [each["role"] for each in stream.messages] == ["assistant", "tool", "tool", "assistant"]
    assert stream.messages[0]["content"].strip() == "Let me see."
    assert [name for chunk in chunks for name in (call.name for call in chunk.calls)] == ["look_up", "add"]
    assert stream.text == ANSWER
    assert stream.stats.reason == "stop"


def test_rounds_are_bounded_and_the_last_calls_returned(model: puna.Model) -> None:
    calls = []
    done = model.chat(
        ask(0),
        tools=[lookup_again],
        max_tool_rounds=3,
        temperature=0,
        on_tool_call=lambda each: calls.append(each.name),
    )
    assert calls == ["look_up"] * 3
    assert [each.name for each in done.calls] == ["look_up"]
    assert [each["role"] for each in done.messages] == ["assistant", "tool"] * 3 + ["assistant"]


def lookup_again(word: str) -> str:
    """Look a word up, in vain."""
    return trigger(0)


lookup_again.__name__ = "look_up"


def test_a_call_may_be_refused(model: puna.Model) -> None:
    refused = model.chat(
        ask(0), tools=[look_up], max_tool_rounds=1, temperature=0, on_tool_call=lambda call: False
    )
    assert refused.messages[1]["content"] == "error: this call was not allowed"


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (Call("1", "look_up", {}), "error: RequestError: the call lacks word"),
        (Call("1", "look_up", {"word": "a", "x": 1}), "error: RequestError: there is no parameter x"),
        (Call("1", "add", {"a": "many", "b": 1}), "error: RequestError: a: Input should be a valid integer"),
        (Call("1", "divide", {"by": 0}), "error: ZeroDivisionError: division by zero"),
        (Call("1", "nosuch", {}), "error: there is no tool 'nosuch'"),
    ],
)
def test_wrong_calls_and_failures_are_results(call: Call, said: str) -> None:
    def divide(by: int) -> float:
        """Divide."""
        return 1 / by

    tools = ToolSet([look_up, add, divide])
    result = tools.run(call)
    assert result.failed
    assert result.text.startswith(said)
    assert asyncio.run(tools.arun(call)) == result


def test_pictures_are_for_models_that_see() -> None:
    def draw() -> Image.Image:
        """Draw."""
        return Image.new("RGB", (8, 8))

    result = ToolSet([draw]).run(Call("1", "draw", {}))
    assert result.images[0].startswith(b"\x89PNG")
    assert result.read_by(sees=False).text == "[1 image(s) left out: the model cannot see]"


def test_tools_that_cannot_be_executed_are_refused_before_anything_is_asked(model: puna.Model) -> None:
    described = {"type": "function", "function": {"name": "f", "parameters": {}}}
    with pytest.raises(RequestError, match="'f' is only described"):
        model.chat(ask(0), tools=[described], max_tool_rounds=1)
    with pytest.raises(RequestError, match=r"use \[server\]"):
        model.chat(ask(0), tools=stranger(), max_tool_rounds=1)  # type: ignore[arg-type]
    with pytest.raises(puna.PunaError, match="max_tool_rounds must be an integer"):
        model.chat(ask(0), tools=[look_up], max_tool_rounds=-1)


def test_asyncio_awaits_coroutine_functions_and_callbacks(model: puna.Model) -> None:
    asked = []

    async def slow(word: str) -> str:
        """Look a word up, slowly."""
        await asyncio.sleep(0)
        return trigger(1)

    async def permit(call: Call) -> bool:
        asked.append(call.arguments)
        return True

    slow.__name__ = "look_up"
    done = asyncio.run(
        model.achat(ask(0), tools=[slow], max_tool_rounds=1, temperature=0, on_tool_call=permit)
    )
    assert done.text == ANSWER
    assert asked == [{"word": "fig"}]
    assert len(done.messages) == 3
    failed = model.chat(ask(0), tools=[slow], max_tool_rounds=1, temperature=0)
    assert failed.messages[1]["content"].endswith("look_up is a coroutine function; use achat")


def test_an_async_stream_has_all_rounds(model: puna.Model) -> None:
    async def texts() -> list[str]:
        async with model.achat(
            ask(3), tools=[look_up, add], max_tool_rounds=1, temperature=0, stream=True
        ) as stream:
            return [chunk.text async for chunk in stream]

    assert "".join(asyncio.run(texts())).endswith(ANSWER)


# --- MCP servers -----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.e2e
def test_functions_and_servers_work_together(model: puna.Model) -> None:
    def look_up_elsewhere(word: str) -> str:
        """Look elsewhere."""
        raise AssertionError(word)

    with stranger(allow=["look_up"]) as server:
        seen: list[Call] = []
        done = model.chat(
            ask(0),
            tools=[look_up_elsewhere, server],
            max_tool_rounds=2,
            temperature=0,
            on_tool_call=lambda call: seen.append(call),
        )
        assert done.text == ANSWER
        assert [each.name for each in seen] == ["look_up"]
        assert done.messages[1]["content"] == "fig means <<1>>"
        clash = ToolSet([look_up, server]).described
        names = [each["function"]["name"] for each in clash]
        assert {"look_up", "stranger_look_up", "add"} <= set(names)
        assert (
            done.text
            == asyncio.run(
                model.achat(
                    ask(0), tools=[server], max_tool_rounds=2, temperature=0, on_tool_call=lambda _: True
                )
            ).text
        )


@pytest.mark.slow
@pytest.mark.e2e
def test_calls_that_are_not_allowed_need_leave(model: puna.Model) -> None:
    with stranger() as server:
        with pytest.raises(RequestError, match="calls of stranger/add need leave: pass on_tool_call"):
            model.chat(ask(0), tools=[server], max_tool_rounds=1)
        answers = {False: "error: this", None: "error: this", True: "fig means"}
        for answer, start in answers.items():
            done = model.chat(
                ask(0), tools=[server], max_tool_rounds=1, temperature=0, on_tool_call=lambda _, a=answer: a
            )
            assert done.messages[1]["content"].startswith(start)


@pytest.mark.slow
@pytest.mark.e2e
def test_a_failing_server_loses_nothing_of_the_conversation(model: puna.Model) -> None:
    with stranger(timeout=1, allow=["*"]) as server:
        done = model.chat(ask(5), tools=[server], max_tool_rounds=1, temperature=0)
    assert done.messages[1]["content"] == (
        "error: MCP server 'stranger', tool 'hang': no answer within 1 seconds"
    )
    assert done.messages[2]["role"] == "assistant"


@pytest.mark.slow
@pytest.mark.e2e
@pytest.mark.parametrize("way", ["line", "notifications", "requests"])
def test_a_hostile_server_does_not_change_what_others_get(model: puna.Model, way: str) -> None:
    """A canary is answered while the server floods."""
    with hostile(way) as server:
        server.connect()

        async def both() -> tuple[puna.Completion, list[puna.Completion]]:
            attack = asyncio.ensure_future(
                model.achat(
                    ask(6), tools=[server], max_tool_rounds=1, temperature=0, on_tool_call=lambda _: True
                )
            )
            canary = [await model.achat(ask(1), temperature=0) for _ in range(5)]
            return await attack, canary

        attacked, canary = asyncio.run(both())
    assert [each.text for each in canary] == [ANSWER] * 5
    assert "'bad', tool 'good': it sent more than" in attacked.messages[1]["content"]


def test_no_tools_of_a_file_are_used_without_being_asked_for(
    model: puna.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": {"x": {"command": "/no/such/program"}}}))
    monkeypatch.setenv("PUNA_MCP_CONFIG", str(tmp_path / "mcp.json"))
    assert model.chat(ask(1), temperature=0).text == ANSWER

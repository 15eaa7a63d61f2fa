"""Answers of every family through the real server in every API, generated token by token."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx
import openai
import pytest

from tests.chat.answers.reading import TOOLS
from tests.chat.answers.vectors import Vector
from tests.conversation.test_families import CONTROLS, SPOKEN, template_of
from tests.e2e.servers import Server, add_model, running
from tests.scripted import pieces_of, random_sizes, trigger, write_scripted

pytestmark = pytest.mark.e2e

#: One answer per family, given by a model with the family's template.
ONE_EACH = list({vector.family: vector for vector in reversed(SPOKEN)}.values())[::-1]
SOME = [vector for vector in ONE_EACH if vector.family in ("qwen3-coder", "harmony")]


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("families")
    scripts = [pieces_of(vector.answer, CONTROLS, size=random_sizes(5)) for vector in ONE_EACH]
    with running(folder / "models", PUNA_CONTEXT_LENGTH="2048") as started:
        add_model(started, "scripted", write_scripted(folder / "scripted.gguf", scripts))
        yield started


def create_model(own: Server, vector: Vector) -> str:
    name = f"of-{vector.family}"
    own.client.create(model=name, from_="scripted", template=template_of(vector))
    return name


def check(own: Server, vector: Vector) -> None:
    model = create_model(own, vector)
    http = httpx.Client(base_url=own.url, timeout=120)
    shown = http.post("/api/show", json={"model": model}).json()
    assert shown["answer_family"] == vector.family
    assert "tools" in shown["capabilities"]
    messages = [{"role": "user", "content": trigger(ONE_EACH.index(vector))}]
    thinks = "thinking" in shown["capabilities"]
    wanted = [(name, json.loads(arguments)) for name, arguments in vector.calls]
    body = {"model": model, "messages": messages, "tools": TOOLS, "options": {"temperature": 0}}

    answer = http.post("/api/chat", json=body | {"stream": False}).json()
    message = answer["message"]
    called = [
        (call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls", [])
    ]
    assert (called, message["content"], answer["done_reason"]) == (wanted, vector.text, "stop")
    assert message.get("thinking", "") == (vector.thinking if thinks else "")

    lines = [json.loads(line) for line in http.post("/api/chat", json=body).text.splitlines()]
    calls = [call for line in lines for call in line["message"].get("tool_calls", [])]
    assert [(call["function"]["name"], call["function"]["arguments"]) for call in calls] == wanted
    assert [call["function"]["index"] for call in calls] == list(range(len(wanted)))
    assert "".join(line["message"]["content"] for line in lines) == vector.text

    client = openai.OpenAI(base_url=f"{own.url}/v1", api_key="-", timeout=120)
    done = client.chat.completions.create(
        model=model,
        messages=messages,
        tools=TOOLS,
        temperature=0,  # type: ignore[arg-type]
    ).choices[0]
    spoken = [(c.function.name, c.function.arguments) for c in done.message.tool_calls or []]  # type: ignore[union-attr]
    assert spoken == vector.calls
    assert (done.message.content or "") == vector.text
    assert done.finish_reason == ("tool_calls" if wanted else "stop")

    deltas: dict[int, list[str]] = {}
    stream = client.chat.completions.create(
        model=model,
        messages=messages,
        tools=TOOLS,
        temperature=0,
        stream=True,  # type: ignore[arg-type]
    )
    for chunk in stream:
        for call in chunk.choices[0].delta.tool_calls or []:
            if call.index not in deltas:
                assert call.id
                deltas[call.index] = [str(call.function.name), ""]
            deltas[call.index][1] += call.function.arguments or ""
    assert [tuple(deltas[index]) for index in sorted(deltas)] == vector.calls


@pytest.mark.parametrize("vector", SOME, ids=lambda vector: vector.family)
def test_sampled_families_are_parsed_through_every_api(own: Server, vector: Vector) -> None:
    check(own, vector)


@pytest.mark.thorough
@pytest.mark.parametrize("vector", ONE_EACH, ids=lambda vector: vector.family)
def test_every_family_is_parsed_through_every_api(own: Server, vector: Vector) -> None:
    check(own, vector)


def test_unusable_tool_parameters_are_an_error_of_the_request(own: Server) -> None:
    model = create_model(own, SOME[0])
    for parameters, words in (
        ({"$ref": "#"}, "without end"),
        ({"type": "object", "properties": {"a": {"type": "string", "pattern": "("}}}, "pattern"),
        ({"type": "object", "properties": {"a": {"$ref": "#/$defs/x"}}}, "does not have"),
    ):
        tools = [{"type": "function", "function": {"name": "odd", "parameters": parameters}}]
        body = {
            "model": model,
            "messages": [{"role": "user", "content": trigger(0)}],
            "tools": tools,
            "tool_choice": "required",
        }
        for path in ("/v1/chat/completions", "/api/chat"):
            answer = httpx.post(f"{own.url}{path}", json=body, timeout=120)
            assert answer.status_code == 400, answer.text
            assert words in answer.text
            assert "odd" in answer.text

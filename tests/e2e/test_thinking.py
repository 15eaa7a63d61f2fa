"""Thinking in every API: its markup never reaches the text, and it ends after its budget or when told to."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest

from tests.e2e.servers import Server, add_model
from tests.scripted import pieces_of, trigger, write_scripted
from tests.waiting import wait_until

pytestmark = pytest.mark.e2e

TEMPLATE = """\
{% for m in messages %}<|im_start|>{{ m.role }}
{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}<|im_end|>
{% endfor %}<|im_start|>assistant
<think>
"""
#: A thought of so many tokens that no model ends it, each a letter. After a closed thought it comes again.
LONG = ("so on and on, " * 60)[:800].replace(" ", "_")
SHORT = "Let me see.\n</think>\n\nIt is sunny."
#: A template that tells the model how hard to think.
LEVELS = "{% if reasoning_effort %}Effort: {{ reasoning_effort }}\n{% endif %}" + TEMPLATE


@pytest.fixture(scope="module")
def thinker(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("thinker")
    scripts = [pieces_of(SHORT, ["</think>"]), pieces_of(LONG)]
    add_model(server, "thinker", write_scripted(folder / "thinker.gguf", scripts, template=TEMPLATE))
    server.client.create(model="levels", from_="thinker", template=LEVELS)
    server.client.create(model="rambler", from_="endless", template=TEMPLATE)
    yield "thinker"
    for name in ("thinker", "levels", "rambler"):
        server.client.delete(name)


def user(number: int = 1) -> Any:
    return [{"role": "user", "content": trigger(number)}]


def short() -> Any:
    return user(0)


def claude(server: Server) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=server.url, api_key="-", max_retries=0, timeout=120)


def gpt(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="-", max_retries=0, timeout=120)


def ask(server: Server, path: str, **body: Any) -> Any:
    reply = server.http.post(path, json={"temperature": 0, **body})
    assert reply.status_code == 200, reply.text
    return reply.json()


def native(server: Server, model: str, number: int = 1, **body: Any) -> Any:
    options = {"temperature": 0, "num_ctx": 4096, **body.pop("options", {})}
    return ask(server, "/api/chat", model=model, messages=user(number), stream=False, options=options, **body)


def test_messages_hide_thinking_that_was_not_requested_and_count_it(server: Server, thinker: str) -> None:
    client = claude(server)
    for extra in ({}, {"thinking": {"type": "disabled"}}):
        body: dict[str, Any] = {"model": thinker, "max_tokens": 200, "messages": short(), **extra}
        whole = client.messages.create(**body, extra_body={"temperature": 0})
        assert [block.model_dump() for block in whole.content] == [
            {"type": "text", "text": "It is sunny.", "citations": None}
        ]
        assert whole.usage.output_tokens == len(pieces_of(SHORT, ["</think>"])) + 1
        with client.messages.stream(**body, extra_body={"temperature": 0}) as stream:
            kinds = {event.type for event in stream}
            final = stream.get_final_message()
        assert "thinking" not in kinds
        assert [(block.type, block.text) for block in final.content] == [("text", "It is sunny.")]  # type: ignore[union-attr]
        assert final.usage.output_tokens == whole.usage.output_tokens


@pytest.mark.parametrize("think", [{"think": False}, {"think": 0}, {"think": True}, {}])
def test_no_api_leaves_markup_in_the_text(server: Server, thinker: str, think: dict[str, Any]) -> None:
    answer = native(server, thinker, 0, **think)
    limited = think.get("think") == 0 and think["think"] is not False
    assert "think>" not in answer["message"]["content"]
    if not limited:
        assert answer["message"]["content"] == "It is sunny."
        assert answer["message"]["thinking"] == "Let me see.\n"
        generated = ask(
            server,
            "/api/generate",
            model=thinker,
            prompt=trigger(0),
            stream=False,
            options={"temperature": 0},
            **think,
        )
        assert (generated["response"], generated["thinking"]) == ("It is sunny.", "Let me see.\n")
    effort = {"reasoning_effort": "none"} if think.get("think") is False else {}
    chat = ask(server, "/v1/chat/completions", model=thinker, messages=short(), **effort)
    assert chat["choices"][0]["message"]["content"] == "It is sunny."
    assert chat["choices"][0]["message"]["reasoning"] == "Let me see.\n"
    text = ask(server, "/v1/completions", model=thinker, prompt=trigger(0), max_tokens=100)
    assert text["choices"][0]["text"] == "It is sunny."
    answer = ask(server, "/v1/responses", model=thinker, input=trigger(0))
    assert [item["type"] for item in answer["output"]] == ["reasoning", "message"]
    assert answer["output"][1]["content"][0]["text"] == "It is sunny."


@pytest.mark.parametrize("fields", [{"think": 9}, {"think_budget": 9}, {"think": "high", "think_budget": 9}])
def test_native_thinking_has_its_budget(server: Server, thinker: str, fields: dict[str, Any]) -> None:
    answer = native(server, thinker, **fields)
    assert answer["message"]["thinking"] == LONG[:9]
    assert answer["message"]["content"] == LONG
    streamed = server.http.post(
        "/api/chat", json={"model": thinker, "messages": user(), "options": {"temperature": 0}, **fields}
    )
    lines = [json.loads(line)["message"] for line in streamed.text.splitlines()]
    assert "".join(line.get("thinking", "") for line in lines) == LONG[:9]
    assert "".join(line["content"] for line in lines) == LONG


def test_budget_tokens_of_messages_are_kept(server: Server, thinker: str) -> None:
    body: dict[str, Any] = {
        "model": thinker,
        "max_tokens": 3000,
        "messages": user(),
        "thinking": {"type": "enabled", "budget_tokens": 20},
        "extra_body": {"temperature": 0},
    }
    client = claude(server)
    whole = client.messages.create(**body)
    thinking, text = whole.content
    assert thinking.type == "thinking"
    assert text.type == "text"
    assert (thinking.thinking, text.text) == (LONG[:20], LONG)
    assert whole.usage.output_tokens == 20 + len(LONG) + 2  # with the tag and the end
    with client.messages.stream(**body) as stream:
        assert [block.type for block in stream.get_final_message().content] == ["thinking", "text"]


@pytest.mark.parametrize(
    ("effort", "limit", "expected"),
    [("low", 1600, 200), ("medium", 1600, 400), ("low", 300, 128), ("low", None, 512), ("high", 3000, 800)],
)
def test_a_level_is_a_share_of_the_tokens(
    server: Server, thinker: str, effort: Any, limit: int | None, expected: int
) -> None:
    options = {"num_ctx": 4096, **({"num_predict": limit} if limit else {})}
    assert len(native(server, thinker, think=effort, options=options)["message"]["thinking"]) == expected
    if limit is None:
        return
    answer = gpt(server).responses.create(
        model=thinker, input=trigger(1), max_output_tokens=limit, reasoning={"effort": effort}, temperature=0
    )
    assert answer.usage is not None
    assert answer.usage.output_tokens_details.reasoning_tokens == expected
    chat = gpt(server).chat.completions.create(
        model=thinker, messages=user(), max_tokens=limit, reasoning_effort=effort, temperature=0
    )
    assert chat.usage is not None
    assert chat.usage.completion_tokens_details is not None
    assert chat.usage.completion_tokens_details.reasoning_tokens == expected


def test_a_level_that_the_template_knows_is_no_budget(server: Server, thinker: str) -> None:
    answer = native(server, "levels", think="low", options={"num_predict": 1600})
    assert len(answer["message"]["thinking"]) == len(LONG)
    answer = native(server, "levels", think="low", think_budget=10, options={"num_predict": 1600})
    assert len(answer["message"]["thinking"]) == 10


def test_samples_and_formats_have_the_budget_too(server: Server, thinker: str) -> None:
    chat = ask(server, "/v1/chat/completions", model=thinker, messages=user(), n=3, think_budget=12)
    assert [one["message"]["reasoning"] for one in chat["choices"]] == [LONG[:12]] * 3
    assert [one["message"]["content"] for one in chat["choices"]] == [LONG] * 3
    assert chat["usage"]["completion_tokens_details"]["reasoning_tokens"] == 36
    schema = {"type": "object", "properties": {"a": {"enum": ["so", "on"]}}, "required": ["a"]}
    answer = native(server, thinker, think=12, format=schema)
    assert answer["message"]["thinking"] == LONG[:12]
    assert json.loads(answer["message"]["content"])["a"] in ("so", "on")


def test_finish_thinking_begins_the_answer_now(server: Server, thinker: str) -> None:
    body = {
        "model": "rambler",
        "messages": [{"role": "user", "content": "hello"}],
        "options": {"num_predict": -1, "num_ctx": 8192, "temperature": 0},
    }
    http = httpx.Client(base_url=server.url, timeout=120)
    missing = http.post("/api/puna/finish_thinking", json={"id": "nobody"})
    assert (missing.status_code, "no request 'nobody'" in missing.json()["error"]) == (404, True)
    with server.http.stream("POST", "/api/chat", json=body, headers={"X-Request-Id": "deep"}) as response:
        lines = (json.loads(line)["message"] for line in response.iter_lines())
        for _ in range(5):
            assert next(lines)["thinking"]
        assert http.post("/api/puna/finish_thinking", json={"id": "deep"}).status_code == 200
        found = next(line for line in lines if line["content"])
        assert "thinking" not in found
    wait_until(lambda: server.requests() == (0, 0), "the end of the work")


def test_thinking_of_a_waiting_request_ends_at_its_beginning(server: Server, thinker: str) -> None:
    def answer() -> Any:
        return server.http.post(
            "/v1/chat/completions",
            json={"model": "rambler", "messages": user(), "n": 2, "max_tokens": 1500, "temperature": 0},
            headers={"X-Request-Id": "two"},
        ).json()

    with ThreadPoolExecutor(1) as pool:
        pending = pool.submit(answer)
        wait_until(lambda: bool(server.running_requests()), "the request")
        assert server.http.post("/api/puna/finish_thinking", json={"id": "two"}).status_code == 200
        for choice in pending.result()["choices"]:
            assert len(choice["message"]["content"]) > len(choice["message"].get("reasoning") or "")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/chat", {"messages": user(), "stream": False, "think": True}),
        ("/api/chat", {"messages": user(), "stream": False, "think": 100}),
        ("/api/generate", {"prompt": "hello", "stream": False, "think": "high"}),
        ("/api/generate", {"prompt": "hello", "stream": False, "think_budget": 9}),
        ("/v1/completions", {"prompt": "hello", "max_tokens": 2, "think_budget": 9}),
    ],
)
def test_a_model_that_cannot_think_answers_with_a_warning(server: Server, path: str, body: Any) -> None:
    reply = ask(server, path, model="tiny", options={"num_predict": 2}, **body)
    assert '"tiny" does not support thinking' in reply["warnings"]


def test_published_templates_of_models_that_always_think_leave_no_markup(
    server: Server, tmp_path: Path
) -> None:
    """Templates that end inside a thought whatever is asked, as those of DeepSeek R1 and MiniMax M2."""
    for name, ending in (("r1", "<｜Assistant｜><think>\n"), ("m2", "]~b]ai\n<think>\n")):
        template = "{% for m in messages %}{{ m.content.split('</think>')[-1] }}{% endfor %}" + ending
        add_model(server, name, write_scripted(tmp_path / name, [pieces_of(SHORT)], template=template))
        message = claude(server).messages.create(
            model=name, max_tokens=100, messages=[{"role": "user", "content": "hi"}]
        )
        (block,) = message.content
        assert block.type == "text"
        assert block.text == "It is sunny."
        server.client.delete(name)

"""Replies of OpenAI's and Anthropic's APIs, checked against the server's description and clients' types."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import anthropic.types
import jsonschema
import openai.types
import openai.types.chat
import openai.types.responses
import pytest
from pydantic import BaseModel, TypeAdapter

from tests.e2e.servers import Server, scripted
from tests.e2e.tools.calling import ANSWER, ANTHROPIC, BREAK, FLAT, ONE, SCRIPTS, TEMPLATE, TOOLS, user

pytestmark = pytest.mark.e2e

#: Prompts for thinking and calls, text, a broken call and a single call; and whether tools are offered.
CASES = pytest.mark.parametrize(
    ("content", "has_tools"),
    [("weather?", True), (ANSWER, True), (BREAK, True), (ONE, True), ("weather?", False)],
    ids=["calls", "text", "broken", "a call", "no tools"],
)

#: The client's event classes by event type.
EVENTS: dict[str, type[BaseModel]] = {
    "message_start": anthropic.types.RawMessageStartEvent,
    "content_block_start": anthropic.types.RawContentBlockStartEvent,
    "content_block_delta": anthropic.types.RawContentBlockDeltaEvent,
    "content_block_stop": anthropic.types.RawContentBlockStopEvent,
    "message_delta": anthropic.types.RawMessageDeltaEvent,
    "message_stop": anthropic.types.RawMessageStopEvent,
}


@pytest.fixture(scope="module")
def described(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with scripted(server, "described", tmp_path_factory.mktemp("scripted"), SCRIPTS, TEMPLATE):
        yield server


@pytest.fixture(scope="module")
def check(server: Server) -> Callable[..., None]:
    """Return a function that fails for a reply with undescribed, missing or wrongly typed fields."""
    document = server.http.get("/openapi.json").json()
    components = {name: _closed(schema) for name, schema in document["components"]["schemas"].items()}
    validators: dict[str, Any] = {}

    def checked(path: str, reply: Any, *, method: str = "post", stream: bool = False) -> None:
        where = f"{method} {path} {stream}"
        if where not in validators:
            content = document["paths"][path][method]["responses"]["200"]["content"]
            schema = content["text/event-stream" if stream else "application/json"]["schema"]
            kind = jsonschema.Draft202012Validator
            validators[where] = kind({**schema, "components": {"schemas": components}})
        errors = [jsonschema.exceptions.best_match([one]) for one in validators[where].iter_errors(reply)]
        assert not errors, (where, reply, errors)

    return checked


def _closed(schema: Any) -> Any:
    """Return the schema with undeclared fields forbidden."""
    if isinstance(schema, dict):
        closed = {key: _closed(value) for key, value in schema.items()}
        return {**closed, "additionalProperties": False} if "properties" in schema else closed
    return [_closed(one) for one in schema] if isinstance(schema, list) else schema


def events(server: Server, path: str, body: dict[str, Any]) -> list[Any]:
    reply = server.http.post(path, json={**body, "stream": True})
    assert reply.status_code == 200, reply.text
    lines = [line.removeprefix("data: ") for line in reply.text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


@CASES
def test_chat_replies_match_their_description_and_types(
    described: Server, check: Callable[..., None], content: str, has_tools: bool
) -> None:
    path = "/v1/chat/completions"
    request: dict[str, Any] = {"model": "described", "messages": user(content), "temperature": 0}
    request |= {
        "tools": TOOLS if has_tools else [],
        "logprobs": True,
        "top_logprobs": 1,
        "return_progress": True,
        "top_k": 5.0,
    }
    whole = described.http.post(path, json=request).json()
    check(path, whole)
    openai.types.chat.ChatCompletion.model_validate(whole)
    chunks = events(described, path, request | {"stream_options": {"include_usage": True}})
    assert "usage" in chunks[-1]
    for chunk in chunks:
        check(path, chunk, stream=True)
        openai.types.chat.ChatCompletionChunk.model_validate(chunk)


@CASES
def test_responses_match_their_description_and_types(
    described: Server, check: Callable[..., None], content: str, has_tools: bool
) -> None:
    path = "/v1/responses"
    request: dict[str, Any] = {"model": "described", "input": content, "temperature": 0}
    request["tools"] = FLAT if has_tools else []
    request |= {"reasoning": {"effort": "high", "summary": "auto"}}
    request |= {"include": ["message.output_text.logprobs"], "top_logprobs": 1}
    for body in (request, request | {"max_output_tokens": 3}):
        whole = described.http.post(path, json=body).json()
        check(path, whole)
        openai.types.responses.Response.model_validate(whole)
        adapter: TypeAdapter[Any] = TypeAdapter(openai.types.responses.ResponseStreamEvent)
        streamed = events(described, path, body)
        assert [event["sequence_number"] for event in streamed] == list(range(len(streamed)))
        for event in streamed:
            check(path, event, stream=True)
            adapter.validate_python(event)
    one = f"{path}/{whole['id']}"
    check(f"{path}/{{id}}", described.http.get(one).json(), method="get")
    check(f"{path}/{{id}}/input_items", described.http.get(f"{one}/input_items").json(), method="get")
    check(f"{path}/{{id}}", described.http.delete(one).json(), method="delete")
    check(f"{path}/input_tokens", described.http.post(f"{path}/input_tokens", json=request).json())


@CASES
def test_message_replies_match_their_description_and_types(
    described: Server, check: Callable[..., None], content: str, has_tools: bool
) -> None:
    path = "/v1/messages"
    request: dict[str, Any] = {
        "model": "described",
        "messages": user(content),
        "tools": ANTHROPIC if has_tools else [],
        "temperature": 0,
    }
    request |= {"thinking": {"type": "enabled", "budget_tokens": 1024}}
    for most in (400, 3):
        body = request | {"max_tokens": most}
        whole = described.http.post(path, json=body).json()
        check(path, whole)
        anthropic.types.Message.model_validate(whole)
        for event in events(described, path, body):
            check(path, event, stream=True)
            if event["type"] != "ping":
                EVENTS[event["type"]].model_validate(event)
    counted = described.http.post(f"{path}/count_tokens", json=request).json()
    check(f"{path}/count_tokens", counted)
    anthropic.types.MessageTokensCount.model_validate(counted)
    assert counted["input_tokens"] == sum(
        whole["usage"][name] for name in ("input_tokens", "cache_read_input_tokens")
    )


def test_other_replies_match_their_description_and_types(
    described: Server, check: Callable[..., None]
) -> None:
    request: dict[str, Any] = {"model": "tiny", "prompt": "a", "max_tokens": 3, "logprobs": 2, "echo": True}
    whole = described.http.post("/v1/completions", json=request).json()
    check("/v1/completions", whole)
    openai.types.Completion.model_validate(whole)
    chunks = events(described, "/v1/completions", request)
    for chunk in chunks:
        check("/v1/completions", chunk, stream=True)
    openai.types.Completion.model_validate(chunks[-1])  # the type requires a finish reason
    for encoding in ("float", "base64"):
        body = {"model": "tiny", "input": ["a", "b"], "encoding_format": encoding}
        check("/v1/embeddings", described.http.post("/v1/embeddings", json=body).json())
    models = described.http.get("/v1/models").json()
    check("/v1/models", models, method="get")
    check("/v1/models/{model}", described.http.get("/v1/models/tiny").json(), method="get")
    assert all(openai.types.Model.model_validate(model) for model in models["data"])

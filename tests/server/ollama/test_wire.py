"""Requests of the native API, as specifications of a generation."""

from __future__ import annotations

import json
from typing import Any

import pytest

from puna.chat.templates.messages import Chat, Insert, Message
from puna.server.http.bodies import parse
from puna.server.jobs.jobs import GenerationSpec
from puna.server.ollama.wire import ChatRequest, GenerateRequest

IMAGE = "QUJD"


def spec_of(
    kind: type[GenerateRequest] | type[ChatRequest] = GenerateRequest, **fields: Any
) -> GenerationSpec:
    return parse(json.dumps({"model": "m", **fields}).encode(), kind).spec()


def test_prompt_becomes_one_message_of_a_chat() -> None:
    (prompt,) = spec_of(prompt="hi", images=[IMAGE]).prompts
    assert prompt == Chat(messages=[Message(role="user", content="hi", images=[b"ABC"])])


def test_template_of_a_request_receives_all_messages() -> None:
    for template, shortens in (("", True), ("{{ .Prompt }}", False)):
        (prompt,) = spec_of(prompt="hi", template=template).prompts
        assert isinstance(prompt, Chat)
        assert prompt.shorten is shortens


def test_raw_prompts_and_insertions_are_not_chats() -> None:
    raw = spec_of(prompt="[img-0]hi", raw=True, images=[IMAGE])
    assert (raw.prompts, raw.raw, raw.request.images) == (["[img-0]hi"], True, [b"ABC"])
    insert = spec_of(prompt="a", suffix="b")
    assert (insert.prompts, insert.needs) == ([Insert(before="a", after="b")], ["insert"])


@pytest.mark.parametrize("nothing", [{}, {"prompt": ""}, {"prompt": None}, {"prompt": "", "raw": True}])
def test_request_without_a_prompt_generates_nothing(nothing: dict[str, Any]) -> None:
    assert spec_of(**nothing).prompts == []
    assert spec_of(ChatRequest, messages=[]).prompts == []


@pytest.mark.parametrize("nothing", ["", None])
def test_empty_fields_count_as_absent(nothing: object) -> None:
    spec = spec_of(ChatRequest, messages=[{"role": "user"}], format=nothing, tools=[], options={"stop": None})
    assert (spec.format(), spec.needs) == (None, [])


def test_message_with_calls_may_have_no_content() -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": {"b": 1, "a": 2}}}
    for content in ({}, {"content": None}, {"content": ""}):
        (prompt,) = spec_of(
            ChatRequest, messages=[{"role": "ASSISTANT", "tool_calls": [call], **content}]
        ).prompts
        assert isinstance(prompt, Chat)
        (message,) = prompt.messages
        assert (message.role, message.content) == ("assistant", "")
        assert list(message.tool_calls[0]["function"]["arguments"]) == ["b", "a"]

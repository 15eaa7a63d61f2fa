"""Requests of the native API as what they ask for."""

from __future__ import annotations

import json
from typing import Any

import pytest

from puna.chat.templates.messages import Chat, Insert, Message
from puna.server.http.bodies import parse
from puna.server.jobs.jobs import GenerationSpec
from puna.server.ollama.wire import ChatRequest, GenerateRequest

IMAGE = "QUJD"


def asked(kind: type[GenerateRequest] | type[ChatRequest] = GenerateRequest, **fields: Any) -> GenerationSpec:
    return parse(json.dumps({"model": "m", **fields}).encode(), kind).spec()


def test_a_prompt_is_one_message_of_a_chat() -> None:
    (prompt,) = asked(prompt="hi", images=[IMAGE]).prompts
    assert prompt == Chat(messages=[Message(role="user", content="hi", images=[b"ABC"])])


def test_a_template_of_the_request_gets_all_messages() -> None:
    for template, shortens in (("", True), ("{{ .Prompt }}", False)):
        (prompt,) = asked(prompt="hi", template=template).prompts
        assert isinstance(prompt, Chat)
        assert prompt.shorten is shortens


def test_raw_prompts_and_gaps_are_no_chats() -> None:
    raw = asked(prompt="[img-0]hi", raw=True, images=[IMAGE])
    assert (raw.prompts, raw.raw, raw.request.images) == (["[img-0]hi"], True, [b"ABC"])
    insert = asked(prompt="a", suffix="b")
    assert (insert.prompts, insert.needs) == ([Insert(before="a", after="b")], ["insert"])


@pytest.mark.parametrize("nothing", [{}, {"prompt": ""}, {"prompt": None}, {"prompt": "", "raw": True}])
def test_without_a_prompt_nothing_is_generated(nothing: dict[str, Any]) -> None:
    assert asked(**nothing).prompts == []
    assert asked(ChatRequest, messages=[]).prompts == []


@pytest.mark.parametrize("nothing", ["", None])
def test_empty_fields_mean_absent(nothing: object) -> None:
    of = asked(ChatRequest, messages=[{"role": "user"}], format=nothing, tools=[], options={"stop": None})
    assert (of.format(), of.needs) == (None, [])


def test_a_message_may_have_no_content_beside_its_calls() -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": {"b": 1, "a": 2}}}
    for content in ({}, {"content": None}, {"content": ""}):
        (prompt,) = asked(
            ChatRequest, messages=[{"role": "ASSISTANT", "tool_calls": [call], **content}]
        ).prompts
        assert isinstance(prompt, Chat)
        (message,) = prompt.messages
        assert (message.role, message.content) == ("assistant", "")
        assert list(message.tool_calls[0]["function"]["arguments"]) == ["b", "a"]

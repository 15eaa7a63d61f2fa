from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from puna.chat.templates.messages import Chat, Message
from puna.errors import PunaError
from puna.grammar.format import Format
from puna.options import Options
from puna.server.http.bodies import parse
from puna.server.jobs.jobs import GenerationSpec
from puna.server.openai.wire import ChatCompletionRequest, CompletionRequest, SamplingFields


def chat(*messages: dict[str, Any], **fields: Any) -> GenerationSpec:
    body = {"model": "m", "messages": list(messages) or [{"role": "user", "content": "hi"}], **fields}
    return parse(json.dumps(body).encode(), ChatCompletionRequest).spec()


def messages(spec: GenerationSpec) -> list[Message]:
    (prompt,) = spec.prompts
    assert isinstance(prompt, Chat)
    return prompt.messages


def test_temperature_and_top_p_default_to_1() -> None:
    assert chat().options == {"temperature": 1.0, "top_p": 1.0}
    given = chat(temperature=0, top_p=0.5, seed=3, frequency_penalty=0.1, presence_penalty=0.2, stop="x")
    assert given.options == {
        "temperature": 0,
        "top_p": 0.5,
        "seed": 3,
        "frequency_penalty": 0.1,
        "presence_penalty": 0.2,
        "stop": ["x"],
    }


def test_native_options_keep_their_names() -> None:
    given = chat(top_k=5, dry_multiplier=0.8, mirostat=2, banned_tokens=[1]).options
    assert given.items() >= {"top_k": 5, "dry_multiplier": 0.8, "mirostat": 2, "banned_tokens": [1]}.items()
    assert set(SamplingFields.model_fields) <= set(Options.__struct_fields__)


def test_max_completion_tokens_overrides_max_tokens() -> None:
    assert chat(max_tokens=5).options["num_predict"] == 5
    assert chat(max_tokens=5, max_completion_tokens=7).options["num_predict"] == 7
    assert "num_predict" not in chat(max_tokens=None).options


@pytest.mark.parametrize(
    ("fields", "think"),
    [
        ({}, None),
        ({"reasoning_effort": "low"}, "low"),
        ({"reasoning_effort": "none"}, False),
        ({"reasoning": {"effort": "high"}, "reasoning_effort": "low"}, "high"),
    ],
)
def test_reasoning_effort_sets_think(fields: dict[str, Any], think: object) -> None:
    assert chat(**fields).think == think


def test_images_keep_their_position_between_texts() -> None:
    request = chat(
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "a"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJD"}},
                {"type": "text", "text": "b"},
                {"type": "image_url", "image_url": "data:;base64,REVG"},
            ],
        }
    )
    found = [(m.role, m.content, m.images) for m in messages(request)]
    assert found == [("user", "a[img]b[img]", [b"ABC", b"DEF"])]


@pytest.mark.parametrize("prefix", ["", "data:audio/wav;base64,", "data:;base64,"])
def test_recordings_keep_their_position_between_texts(prefix: str) -> None:
    data = prefix + base64.b64encode(b"fLaC...").decode()
    parts = [{"type": "text", "text": "a"}, {"type": "input_audio", "input_audio": {"data": data}}]
    request = chat({"role": "user", "content": parts})
    assert [(m.content, m.images) for m in messages(request)] == [("a[img]", [b"fLaC..."])]


def test_each_text_of_a_content_list_is_a_message() -> None:
    request = chat({"role": "user", "content": [{"type": "text", "text": text} for text in "ab"]})
    assert [(m.role, m.content) for m in messages(request)] == [("user", "a"), ("user", "b")]


def test_tool_result_is_matched_with_its_call() -> None:
    call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "weather", "arguments": '{"city": "Lima"}'},
    }
    request = chat(
        {"role": "user", "content": "weather?"},
        {"role": "assistant", "content": None, "tool_calls": [call], "reasoning": "hmm"},
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
    )
    _, assistant, tool = messages(request)
    assert assistant.tool_calls == [
        {"id": "call_1", "function": {"name": "weather", "arguments": {"city": "Lima"}}}
    ]
    assert (assistant.content, assistant.thinking) == ("", "hmm")
    assert (tool.tool_name, tool.tool_call_id, tool.content) == ("weather", "call_1", "sunny")


def test_developer_role_becomes_system() -> None:
    assert messages(chat({"role": "developer", "content": "x"}))[0].role == "system"


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("fields", "format"),
    [
        ({}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"guided_regex": "", "structured_outputs": {}}, None),
        ({"response_format": {"type": "json_object"}}, Format.json_object()),
        ({"response_format": {"type": "json_object", "schema": SCHEMA}}, Format.json_schema(SCHEMA)),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}},
            Format.json_schema(SCHEMA),
        ),
        ({"grammar": 'root ::= "a"'}, Format("gbnf", 'root ::= "a"')),
        ({"guided_json": SCHEMA}, Format.json_schema(SCHEMA)),
        ({"guided_json": json.dumps(SCHEMA)}, Format.json_schema(SCHEMA)),
        ({"guided_regex": "a+"}, Format("regex", "a+")),
        ({"guided_choice": ["a", "b"]}, Format("choice", '["a", "b"]')),
        ({"guided_grammar": 'start: "a"'}, Format("lark", 'start: "a"')),
        ({"structured_outputs": {"json": SCHEMA}}, Format.json_schema(SCHEMA)),
        ({"structured_outputs": {"regex": "a+"}}, Format("regex", "a+")),
        ({"structured_outputs": {"choice": ["a"]}}, Format("choice", '["a"]')),
        ({"structured_outputs": {"grammar": "root ::= [a]"}}, Format("gbnf", "root ::= [a]")),
        ({"structured_outputs": {"json_object": True}}, Format.json_object()),
    ],
)
def test_every_way_to_specify_a_format_is_read(fields: dict[str, Any], format: Format | None) -> None:
    assert chat(**fields).format() == format
    body = json.dumps({"model": "m", "prompt": "x", **fields}).encode()
    assert parse(body, CompletionRequest).spec().format() == format


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"response_format": {"type": "xml"}}, "must be text, json_object or json_schema, not 'xml'"),
        ({"response_format": {"type": "json_schema"}}, "json_schema.schema is missing"),
        ({"guided_choice": []}, "guided_choice: choices are a list of at least one string"),
        ({"structured_outputs": {"regex": 5}}, "structured_outputs.regex: a regular expression is a text"),
        ({"guided_regex": "a", "grammar": 'root ::= "a"'}, "use only one of grammar, guided_regex"),
    ],
)
def test_invalid_format_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(PunaError, match=message):
        chat(**fields).format()


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user"},
        {"role": "user", "content": 5},
        {"role": "user", "content": [{"type": "video"}]},
        {"role": "user", "content": ["text"]},
        {"role": "user", "content": [{"type": "image_url"}]},
        {"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]},
        {"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "no base64"}}]},
        {"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "QUJD"}}]},
        {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]},
        {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[]"}}]},
        {"role": "assistant", "tool_calls": [{}]},
    ],
)
def test_invalid_message_is_refused(message: dict[str, Any]) -> None:
    with pytest.raises(PunaError) as caught:
        chat(message)
    assert caught.value.status == 400


@pytest.mark.parametrize("stop", [[1], {"a": 1}, 3])
def test_stop_that_is_not_text_is_refused(stop: object) -> None:
    with pytest.raises(PunaError, match="stop"):
        chat(stop=stop)


def test_logprobs_of_a_completion_sets_both_the_number_and_the_switch() -> None:
    def completion(**fields: Any) -> tuple[bool, int]:
        body = json.dumps({"model": "m", "prompt": "x", **fields}).encode()
        request = parse(body, CompletionRequest).spec().request
        return request.logprobs, request.top_logprobs

    assert completion() == (False, 0)
    assert completion(logprobs=0) == (True, 0)
    assert completion(logprobs=3) == (True, 3)


def test_variables_of_the_template_reach_the_prompt() -> None:
    (prompt,) = chat(chat_template_kwargs={"enable_thinking": False, "shape": ["round"]}).prompts
    assert isinstance(prompt, Chat)
    assert prompt.values == {"enable_thinking": False, "shape": ["round"]}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"messages": []}, "chat_template_kwargs must not set messages: other fields of the request do"),
        ({"a b": 1}, "chat_template_kwargs: 'a b' is not a name of a variable"),
        ({"a" * 101: 1}, "is not a name of a variable"),
        ({f"a{number}": 1 for number in range(65)}, "chat_template_kwargs may have 64 names, not 65"),
        ({"enable_thinking": "no"}, "chat_template_kwargs.enable_thinking must be a boolean, not 'no'"),
        (["a"], 'field "chat_template_kwargs": must be an object, not a list'),
    ],
)
def test_other_variables_are_refused(values: Any, message: str) -> None:
    with pytest.raises(PunaError) as error:
        chat(chat_template_kwargs=values)
    assert message in str(error.value)


def test_chat_with_tools_is_refused_rather_than_cut() -> None:
    tool = {"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}}
    assert chat().request.truncate
    assert not chat(tools=[tool]).request.truncate
    assert chat(tools=[tool], tool_choice="none").request.truncate is False

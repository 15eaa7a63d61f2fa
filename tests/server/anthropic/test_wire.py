"""Anthropic's requests: blocks become messages of a prompt, and choices those of every API."""

from __future__ import annotations

import json
from typing import Any

import pytest

from puna.chat.templates.messages import Chat, Message
from puna.errors import PunaError
from puna.grammar.format import Format
from puna.server.anthropic.wire import MessagesRequest
from puna.server.http.bodies import parse
from puna.server.jobs.jobs import GenerationSpec

TOOL = {"name": "weather", "description": "d", "input_schema": {"type": "object", "properties": {}}}


def spec_of(*messages: dict[str, Any], **fields: Any) -> GenerationSpec:
    given = list(messages) or [{"role": "user", "content": "hi"}]
    body = {"model": "m", "max_tokens": 5, "messages": given, **fields}
    return parse(json.dumps(body).encode(), MessagesRequest).spec()


def chat(spec: GenerationSpec) -> Chat:
    (prompt,) = spec.prompts
    assert isinstance(prompt, Chat)
    return prompt


def test_text_blocks_are_joined_and_system_blocks_become_paragraphs() -> None:
    text = [
        {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": "b"},
    ]
    found = chat(spec_of({"role": "user", "content": text}, system=text)).messages
    assert [(m.role, m.content) for m in found] == [("system", "a\n\nb"), ("user", "ab")]


BILLING = "x-anthropic-billing-header: cc_version=2.1.100.7b4; cc_entrypoint=cli; cch=eb6c6;"


@pytest.mark.parametrize(
    "system",
    [
        [{"type": "text", "text": BILLING}, {"type": "text", "text": "Be brief."}],
        [{"type": "text", "text": f"{BILLING}\nBe brief."}],
        f"{BILLING}\nBe brief.",
    ],
    ids=["block", "line of a block", "line of a string"],
)
def test_a_billing_line_at_the_beginning_of_system_is_ignored_with_a_warning(system: Any) -> None:
    spec = spec_of(system=system)
    assert [m.content for m in chat(spec).messages] == ["Be brief.", "hi"]
    assert spec.ignored == ["system: the billing line at its beginning is ignored"]


@pytest.mark.parametrize(
    "text",
    [
        f"Be brief.\n{BILLING}",
        f" {BILLING}",
        f"{BILLING} Be brief.",
        "x-anthropic-billing-header: see the manual",
        "x-anthropic-billing-header:",
        "x-anthropic-billing-header: cch=two words;",
        BILLING.removesuffix(";"),
    ],
)
def test_other_texts_about_billing_stay(text: str) -> None:
    spec = spec_of(system=text)
    assert chat(spec).messages[0].content == text
    assert spec.ignored == []


def test_only_a_billing_line_is_no_system_message() -> None:
    assert [m.role for m in chat(spec_of(system=BILLING)).messages] == ["user"]


def test_system_messages_among_the_others_are_to_stay_there() -> None:
    found = chat(spec_of({"role": "user", "content": "a"}, {"role": "system", "content": "b"}))
    assert [m.role for m in found.messages] == ["user", "system"]
    assert found.system_in_place


def test_results_precede_the_text_and_name_their_tools() -> None:
    call = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Lima", "days": 1.0}}
    thought = {"type": "thinking", "thinking": "hmm", "signature": "x"}
    result = {
        "type": "tool_result",
        "tool_use_id": "toolu_1",
        "content": [{"type": "text", "text": "sunny"}],
    }
    _, assistant, tool, user = chat(
        spec_of(
            {"role": "user", "content": "weather?"},
            {"role": "assistant", "content": [thought, {"type": "text", "text": "I look."}, call]},
            {"role": "user", "content": [{"type": "text", "text": "well?"}, result]},
        )
    ).messages
    assert (assistant.content, assistant.thinking) == ("I look.", "hmm")
    assert assistant.tool_calls == [
        {"id": "toolu_1", "function": {"name": "weather", "arguments": {"city": "Lima", "days": 1.0}}}
    ]
    assert (tool.role, tool.content, tool.tool_name, tool.tool_call_id) == (
        "tool", "sunny", "weather", "toolu_1",
    )  # fmt: skip
    assert (user.role, user.content) == ("user", "well?")


def test_images_keep_their_position_also_in_results() -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "QUJD"}}
    content = [{"type": "text", "text": "a"}, image, {"type": "text", "text": "b"}]
    (message,) = chat(spec_of({"role": "user", "content": content})).messages
    assert (message.content, message.images) == ("a[img]b", [b"ABC"])
    result = {"type": "tool_result", "tool_use_id": "t", "content": [image]}
    spec = spec_of({"role": "user", "content": [result]})
    tool = Message(role="tool", content="[img]", images=[b"ABC"], tool_calls=[], tool_call_id="t")
    assert chat(spec).messages == [tool]
    assert spec.images == [b"ABC"]


@pytest.mark.parametrize(
    ("fields", "choice", "parallel"),
    [
        ({}, "auto", True),
        ({"tool_choice": {"type": "auto"}}, "auto", True),
        ({"tool_choice": {"type": "any"}}, "required", True),
        ({"tool_choice": {"type": "none"}}, "none", True),
        ({"tool_choice": {"type": "tool", "name": "weather"}}, "function:weather", True),
        ({"tool_choice": {"type": "any", "disable_parallel_tool_use": True}}, "required", False),
    ],
)
def test_anthropic_tool_choice_is_read(fields: dict[str, Any], choice: str, parallel: bool) -> None:
    spec = spec_of(tools=[TOOL], **fields)
    found = chat(spec)
    assert (found.tool_choice, found.parallel_tool_calls) == (choice, parallel)
    function = {"name": "weather", "description": "d", "parameters": TOOL["input_schema"]}
    assert found.tools == [{"type": "function", "function": function}]
    assert spec.needs == ([] if choice == "none" else ["tools"])


@pytest.mark.parametrize(
    ("fields", "think"),
    [
        ({}, False),
        ({"thinking": {"type": "enabled", "budget_tokens": 2000}}, True),
        ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}}, "low"),
        ({"thinking": {"type": "disabled"}, "output_config": {"effort": "low"}}, False),
        ({"output_config": {"effort": "xhigh"}}, "high"),
    ],
)
def test_thinking_is_enabled_only_on_request(fields: dict[str, Any], think: object) -> None:
    assert spec_of(**fields).think == think


@pytest.mark.parametrize(
    ("fields", "budget"),
    [
        ({}, None),
        ({"thinking": {"type": "enabled"}}, None),
        ({"thinking": {"type": "enabled", "budget_tokens": 2000}}, 2000),
        ({"thinking": {"type": "disabled", "budget_tokens": 2000}}, None),
        ({"thinking": {"type": "adaptive"}, "think_budget": 30}, 30),
    ],
)
def test_thinking_has_the_requested_budget(fields: dict[str, Any], budget: int | None) -> None:
    assert spec_of(**fields).request.think_budget == budget


def test_absent_options_are_left_to_the_model() -> None:
    assert spec_of().options == {"num_predict": 5}
    given = spec_of(temperature=0, top_p=0.5, top_k=3, stop_sequences=["x"]).options
    assert given == {"num_predict": 5, "temperature": 0, "top_p": 0.5, "top_k": 3, "stop": ["x"]}


def test_ignored_fields_are_reported() -> None:
    spec = spec_of(
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "hologram"}]},
        tools=[TOOL, {"type": "web_search_20250305", "name": "web_search"}],
        thinking={"type": "enabled", "budget_tokens": 2000},
        mcp_servers=[{"url": "x"}],
        metadata={"user_id": "u"},
    )
    ignored = "\n".join(spec.ignored)
    for words in ("mcp_servers", "hologram", "tools[1]"):
        assert words in ignored
    assert len(spec.ignored) == 3
    assert len(chat(spec).tools) == 1


def test_output_schema_becomes_the_format() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    given = {"type": "json_schema", "schema": schema}
    for fields in ({"output_config": {"format": given}}, {"output_format": given}):
        assert spec_of(**fields).format() == Format.json_schema(schema)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"max_tokens": 0}, "max_tokens is required and must be positive"),
        ({"messages": []}, "messages is required"),
        ({"messages": [{"role": "narrator", "content": "x"}]}, r"messages\[0\].role must be"),
        ({"messages": [{"role": "user", "content": 5}]}, "must be a string or a list of blocks"),
        ({"messages": [{"role": "user", "content": ["x"]}]}, r"content\[0\] must be a block"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "is malformed"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "source must be"),
        (
            {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "name": "f"}]}]},
            "tool_use block missing required 'id' field",
        ),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, "'tool_use_id'"),
        ({"system": 5}, "system must be a string"),
        ({"tools": [{"name": "f"}]}, "invalid input_schema for tool 'f'"),
        ({"tools": [{"input_schema": {}}]}, r"tools\[0\] needs a name"),
        ({"tool_choice": {"type": "any"}}, "the request has no tools"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "x"}}, "not one of the request's tools"),
        ({"tools": [TOOL], "tool_choice": {"type": "often"}}, "tool_choice must be"),
        ({"thinking": {"type": "deep"}}, "thinking.type must be"),
        ({"output_config": {"effort": "some"}}, "output_config.effort must be"),
        ({"output_config": {"format": {"type": "xml"}}}, "output_config.format must be"),
    ],
)
def test_invalid_message_request_is_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(PunaError, match=words) as caught:
        spec_of(**fields).format()
    assert caught.value.status == 400

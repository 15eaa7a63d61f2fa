"""The Responses API's requests: items become messages of a prompt."""

from __future__ import annotations

import json
from typing import Any

import pytest

from puna.chat.templates.messages import Chat, Message
from puna.errors import PunaError
from puna.grammar.format import Format
from puna.server.http.bodies import parse
from puna.server.jobs.jobs import GenerationSpec
from puna.server.openai.responses.wire import ResponsesRequest, input_items, resolved

TOOL = {"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": True}


def spec_of(given: Any = "hi", **fields: Any) -> GenerationSpec:
    body = parse(json.dumps({"model": "m", "input": given, **fields}).encode(), ResponsesRequest)
    return body.spec(input_items(body.input))


def chat(spec: GenerationSpec) -> Chat:
    (prompt,) = spec.prompts
    assert isinstance(prompt, Chat)
    return prompt


def messages(given: Any, **fields: Any) -> list[Message]:
    return chat(spec_of(given, **fields)).messages


def test_instructions_come_first_and_the_developer_becomes_system() -> None:
    found = messages(
        [{"role": "developer", "content": "b"}, {"role": "user", "content": "c"}], instructions="a"
    )
    assert [(m.role, m.content) for m in found] == [("system", "a"), ("system", "b"), ("user", "c")]


def test_parts_of_an_item_become_one_message() -> None:
    image = {"type": "input_image", "image_url": "data:image/png;base64,QUJD", "detail": "auto"}
    parts = [{"type": "input_text", "text": "a"}, image, {"type": "input_text", "text": "b"}]
    (message,) = messages([{"type": "message", "role": "user", "content": parts}])
    assert (message.content, message.images) == ("a[img]b", [b"ABC"])
    texts = [{"type": "input_text", "text": text} for text in "ab"]
    assert [m.content for m in messages([{"role": "user", "content": texts}])] == ["ab"]


def test_thinking_and_calls_become_part_of_the_assistants_message() -> None:
    call = {"type": "function_call", "call_id": "c", "name": "weather", "arguments": '{"city": "Lima"}'}
    answer = {"role": "assistant", "content": [{"type": "output_text", "text": "I look."}]}
    output = {"type": "function_call_output", "call_id": "c", "output": "sunny"}
    thought = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hmm"}]}
    calls = [{"id": "c", "function": {"name": "weather", "arguments": {"city": "Lima"}}}]
    result = Message(role="tool", content="sunny", tool_name="weather", tool_call_id="c")
    assert messages([thought, answer, call, output]) == [
        Message(role="assistant", content="I look.", thinking="hmm", images=[], tool_calls=calls), result,
    ]  # fmt: skip
    assert messages([thought | {"encrypted_content": "mhm"}, call, output]) == [
        Message(role="assistant", thinking="mhm", tool_calls=calls), result,
    ]  # fmt: skip


def test_items_of_an_answer_become_one_message_in_any_order() -> None:
    """Frameworks put calls before or after the text that goes with them."""

    def call(name: str) -> dict[str, Any]:
        return {"type": "function_call", "call_id": name, "name": name, "arguments": "{}"}

    def thought(text: str) -> dict[str, Any]:
        return {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": text}]}

    part = {"type": "output_text", "text": "I look.", "annotations": []}
    text = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [part]}
    result = {"type": "function_call_output", "call_id": "a", "output": "sunny"}
    question = {"role": "user", "content": "weather?"}
    one = Message(role="assistant", content="I look.", thinking="ab", tool_calls=_calls("a", "b"), images=[])
    found = messages([question, thought("a"), call("a"), text, thought("b"), call("b"), result, text])
    assert found[1] == one
    assert [(m.role, m.content) for m in found[2:]] == [("tool", "sunny"), ("assistant", "I look.")]
    assert messages([question, thought("a"), text, thought("b"), call("a"), call("b")])[1:] == [one]
    assert [m.content for m in messages([text, text])] == ["I look.", "I look."]


def _calls(*names: str) -> list[dict[str, Any]]:
    return [{"id": name, "function": {"name": name, "arguments": {}}} for name in names]


@pytest.mark.parametrize(
    ("given", "choice", "names"),
    [
        (None, "auto", ["weather", "other"]),
        ("required", "required", ["weather", "other"]),
        ({"type": "function", "name": "weather"}, "function:weather", ["weather", "other"]),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "other"}]},
            "required",
            ["other"],
        ),
    ],
)
def test_responses_tool_choice_is_read(given: Any, choice: str, names: list[str]) -> None:
    found = chat(spec_of(tools=[TOOL, TOOL | {"name": "other"}], tool_choice=given))
    assert (found.tool_choice, [tool["function"]["name"] for tool in found.tools]) == (choice, names)
    assert found.strict_tools


def test_overlong_prompt_is_truncated_only_on_request() -> None:
    assert not spec_of().request.truncate
    assert spec_of(truncation="auto").request.truncate


def test_text_format_is_read() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    given = {"type": "json_schema", "name": "n", "schema": schema, "strict": True}
    assert spec_of(text={"format": given}).format() == Format.json_schema(schema)
    assert spec_of(text={"format": {"type": "json_object"}}).format() == Format.json_object()
    assert spec_of(text={"format": {"type": "text"}, "verbosity": "low"}).format() is None


def test_hosted_tools_are_reported_and_ignored() -> None:
    spec = spec_of(tools=[{"type": "web_search"}, TOOL])
    assert len(chat(spec).tools) == 1
    assert spec.ignored == ["tools[0] is ignored: tools of the type 'web_search' are not supported"]


def test_include_requests_log_probabilities() -> None:
    assert not spec_of().request.logprobs
    request = spec_of(include=["message.output_text.logprobs"], top_logprobs=2).request
    assert (request.logprobs, request.top_logprobs) == (True, 2)


def test_every_item_has_an_id_and_references_are_resolved() -> None:
    items = input_items([{"role": "user", "content": "a"}, {"type": "item_reference", "id": "rs_1"}])
    assert items[0]["id"].startswith("msg_")
    found = resolved(items, lambda id: {"id": id, "type": "reasoning"})
    assert [item["type"] for item in found] == ["message", "reasoning"]


@pytest.mark.parametrize(
    ("given", "fields", "words"),
    [
        ([], {}, "input must be a string or a list"),
        ([5], {}, r"input\[0\] must be an object"),
        ([{}], {}, "missing required 'type' field"),
        ([{"type": "dream"}], {}, r"input\[0\]: unknown input item type: 'dream'"),
        ([{"role": "narrator", "content": "x"}], {}, "role must be"),
        ([{"role": "user", "content": [{"type": "smell"}]}], {}, "unknown content type: 'smell'"),
        ([{"role": "user", "content": [{"type": "input_file"}]}], {}, "by its file_data"),
        ([{"type": "function_call", "name": "f", "arguments": "{"}], {}, "invalid tool call arguments"),
        ([{"type": "function_call_output", "output": "x"}], {}, "'call_id'"),
        ("hi", {"background": True, "store": False}, "background needs store"),
        ("hi", {"truncation": "some"}, "truncation must be"),
        ("hi", {"max_output_tokens": 0}, "max_output_tokens must be at least 1"),
        ("hi", {"tool_choice": "required"}, "the request has no tools"),
        ("hi", {"tools": [TOOL], "tool_choice": {"type": "function", "name": "x"}}, "not one of"),
        ("hi", {"tools": [TOOL], "tool_choice": {"type": "web_search"}}, "tool_choice must be"),
        ("hi", {"text": {"format": {"type": "xml"}}}, "text.format.type must be"),
    ],
)  # fmt: skip
def test_invalid_response_request_is_refused(given: Any, fields: dict[str, Any], words: str) -> None:
    with pytest.raises(PunaError, match=words) as caught:
        spec_of(given, **fields).format()
    assert caught.value.status == 400

"""The Responses API, through the real `openai` client against a real server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.e2e.servers import Server
from tests.e2e.test_anthropic_client import THINKER

pytestmark = pytest.mark.e2e

GREEDY: dict[str, Any] = {"model": "tiny", "max_output_tokens": 6, "temperature": 0}


@pytest.fixture(scope="module")
def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.url + "/v1/", api_key="unused", max_retries=0, timeout=120)


@pytest.fixture(scope="module")
def thinker(server: Server) -> Iterator[str]:
    server.client.create(model="pensive", from_="tiny", template=THINKER)
    yield "pensive"
    server.client.delete("pensive")


def prompt_tokens(server: Server, *messages: dict[str, str]) -> int:
    """Return the number of tokens in a chat's prompt."""
    reply = server.http.post("/v1/messages/count_tokens", json={"model": "tiny", "messages": messages})
    return int(reply.json()["input_tokens"])


def test_response_has_the_same_text_as_the_native_api(client: openai.OpenAI, server: Server) -> None:
    answer = client.responses.create(**GREEDY, input="hello", instructions="be brief")
    native = server.client.chat(
        "tiny",
        [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}],
        options={"temperature": 0, "num_predict": 6},
    )
    assert answer.output_text == native.message.content
    assert (answer.object, answer.status, answer.error) == ("response", "incomplete", None)
    assert answer.incomplete_details is not None
    assert answer.incomplete_details.reason == "max_output_tokens"
    assert (answer.instructions, answer.temperature, answer.tool_choice) == ("be brief", 0, "auto")
    assert answer.usage is not None
    assert answer.usage.output_tokens == 6
    assert answer.usage.input_tokens == native.prompt_eval_count


def test_stream_has_numbered_events_and_ends_with_the_response(client: openai.OpenAI) -> None:
    with client.responses.stream(**GREEDY, input="hello") as stream:
        events = list(stream)
    final = events[-1].response  # type: ignore[union-attr]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    assert kinds[:4] == [
        "response.created", "response.in_progress", "response.output_item.added",
        "response.content_part.added",
    ]  # fmt: skip
    assert set(kinds[4:-4]) == {"response.output_text.delta"}
    assert kinds[-4:] == [
        "response.output_text.done", "response.content_part.done", "response.output_item.done",
        "response.incomplete",
    ]  # fmt: skip
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == final.output_text
    assert len({event.item_id for event in events if event.type == "response.output_text.delta"}) == 1
    assert client.responses.retrieve(final.id).output_text == text


def test_conversation_continues_from_a_stored_response(client: openai.OpenAI, server: Server) -> None:
    first = client.responses.create(**GREEDY, input="hello", instructions="forgotten by the next")
    second = client.responses.create(**GREEDY, input="world", previous_response_id=first.id)
    third = client.responses.create(**GREEDY, input="again", previous_response_id=second.id)
    assert third.previous_response_id == second.id
    chat = [
        {"role": "user", "content": "hello"}, {"role": "assistant", "content": first.output_text},
        {"role": "user", "content": "world"}, {"role": "assistant", "content": second.output_text},
        {"role": "user", "content": "again"},
    ]  # fmt: skip
    same = server.client.chat("tiny", chat, options={"temperature": 0, "num_predict": 6})
    assert third.output_text == same.message.content
    assert third.usage is not None
    assert third.usage.input_tokens == same.prompt_eval_count == prompt_tokens(server, *chat)

    listed = list(client.responses.input_items.list(third.id, order="asc", limit=2))  # several pages
    texts = [part.text for item in listed for part in item.content]  # type: ignore[union-attr]
    assert texts == [message["content"] for message in chat]
    newest = client.responses.input_items.list(third.id, limit=1)
    assert newest.data[0].id == listed[-1].id

    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError, match="not found"):
        client.responses.retrieve(first.id)
    with pytest.raises(openai.BadRequestError, match="continues, not found"):
        client.responses.create(**GREEDY, input="more", previous_response_id=third.id)
    assert client.responses.retrieve(third.id).output_text == third.output_text


def test_stored_item_can_be_referenced(client: openai.OpenAI) -> None:
    first = client.responses.create(**GREEDY, input="hello")
    first_message: dict[str, Any] = {"role": "user", "content": "hello"}
    item = {"type": "item_reference", "id": first.output[0].id}
    again: dict[str, Any] = {"role": "user", "content": "world"}
    by_reference = client.responses.create(**GREEDY, input=[first_message, item, again])  # type: ignore[list-item]
    by_state = client.responses.create(**GREEDY, input="world", previous_response_id=first.id)
    assert by_reference.output_text == by_state.output_text
    with pytest.raises(openai.BadRequestError, match="item 'msg_x' not found"):
        client.responses.create(**GREEDY, input=[{"type": "item_reference", "id": "msg_x"}])


def test_response_is_not_stored_if_store_is_false(client: openai.OpenAI) -> None:
    answer = client.responses.create(**GREEDY, input="hello", store=False)
    assert answer.model_dump()["store"] is False
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(answer.id)


def test_thinking_is_a_separate_item_and_is_sent_back(client: openai.OpenAI, thinker: str) -> None:
    fields = GREEDY | {"model": thinker}
    answer = client.responses.create(**fields, input="hello", reasoning={"effort": "low"})
    (item,) = answer.output
    assert item.type == "reasoning"
    assert item.summary[0].text
    assert answer.usage is not None
    assert answer.usage.output_tokens_details.reasoning_tokens > 0
    with client.responses.stream(**fields, input="hello") as stream:
        kinds = list(dict.fromkeys(event.type for event in stream))
    assert kinds == [
        "response.created", "response.in_progress", "response.output_item.added",
        "response.reasoning_summary_part.added", "response.reasoning_summary_text.delta",
        "response.reasoning_summary_text.done", "response.reasoning_summary_part.done",
        "response.output_item.done", "response.incomplete",
    ]  # fmt: skip
    plain = client.responses.create(**fields, input="hello", reasoning={"effort": "none"})
    assert [item.type for item in plain.output] == ["message"]
    again = client.responses.create(**fields, input="more", previous_response_id=answer.id)
    assert again.usage is not None
    assert again.usage.input_tokens > answer.usage.input_tokens + 6


def test_response_text_follows_its_schema(client: openai.OpenAI) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"],
              "additionalProperties": False}  # fmt: skip
    answer = client.responses.create(
        **GREEDY | {"max_output_tokens": 40}, input="hello",
        text={"format": {"type": "json_schema", "name": "n", "schema": schema}},
    )  # fmt: skip
    assert json.loads(answer.output_text) in ({"a": 1}, {"a": 2})
    assert answer.status == "completed"


def test_log_probabilities_are_included_on_request(client: openai.OpenAI) -> None:
    answer = client.responses.create(
        **GREEDY, input="hello", include=["message.output_text.logprobs"], top_logprobs=2
    )
    part = answer.output[0].content[0]  # type: ignore[union-attr,index]
    assert len(part.logprobs) == 6  # type: ignore[union-attr,arg-type]
    assert len(part.logprobs[0].top_logprobs) == 2  # type: ignore[union-attr,index]


def test_overlong_input_is_truncated_only_on_request(client: openai.OpenAI) -> None:
    turns: list[Any] = [{"role": "user", "content": f"hello world {i} " * 20} for i in range(40)]
    with pytest.raises(openai.BadRequestError, match="exceeds the context length"):
        client.responses.create(**GREEDY, input=turns)
    answer = client.responses.create(**GREEDY, input=turns, truncation="auto")
    assert answer.model_dump()["truncated"] > 0


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        ({"model": "nosuch"}, 404, "model 'nosuch' not found"),
        ({"previous_response_id": "resp_x"}, 400, "previous response 'resp_x' not found"),
        ({"background": True, "store": False}, 400, "background needs store"),
        ({"reasoning": {"effort": "huge"}}, 400, "invalid reasoning value"),
        ({"tools": [{"type": "function", "name": "f", "parameters": {}, "strict": False}]}, 400, "tools"),
    ],
)
def test_errors_have_openais_status_and_message(
    client: openai.OpenAI, arguments: dict[str, Any], status: int, words: str
) -> None:
    with pytest.raises(openai.APIStatusError, match=words) as caught:
        client.responses.create(**GREEDY | {"input": "hello"} | arguments)
    assert caught.value.status_code == status


def test_unsupported_features_are_ignored_with_warnings(client: openai.OpenAI) -> None:
    answer = client.responses.create(
        **GREEDY, input="hello", reasoning={"effort": "high"}, tools=[{"type": "web_search"}]
    )
    warnings = answer.model_dump()["warnings"]
    assert '"tiny" does not support thinking' in warnings
    assert "tools[0] is ignored: tools of the type 'web_search' are not supported" in warnings


def test_input_tokens_are_counted(client: openai.OpenAI, server: Server) -> None:
    counted = client.responses.input_tokens.count(model="tiny", input="hello")
    assert counted.input_tokens == prompt_tokens(server, {"role": "user", "content": "hello"})

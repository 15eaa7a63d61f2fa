"""The real `anthropic` client against a real server."""

from __future__ import annotations

import json
from collections.abc import Iterator

import anthropic
import pytest
from anthropic.types import MessageParam

from tests.e2e.servers import Server

pytestmark = pytest.mark.e2e

HELLO: list[MessageParam] = [{"role": "user", "content": "hello"}]
GREEDY = {"temperature": 0}  # newer clients have no argument for temperature
THINKER = (
    "{{ range .Messages }}{{ if .Thinking }}<think>{{ .Thinking }}</think>{{ end }}"
    "{{ .Role }}: {{ .Content }}\n{{ end }}{{ if .Think }}<think>{{ end }}"
)


@pytest.fixture(scope="module")
def client(server: Server) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=server.url, api_key="unused", max_retries=0, timeout=120)


@pytest.fixture(scope="module")
def thinker(server: Server) -> Iterator[str]:
    """Create a model that only thinks when thinking is requested."""
    server.client.create(model="thinker", from_="tiny", template=THINKER)
    yield "thinker"
    server.client.delete("thinker")


def test_message_has_the_same_text_as_the_native_api(client: anthropic.Anthropic, server: Server) -> None:
    answer = client.messages.create(
        model="tiny", max_tokens=6, messages=HELLO, system="be brief", extra_body=GREEDY
    )
    native = server.client.chat(
        "tiny",
        [{"role": "system", "content": "be brief"}, *HELLO],
        options={"temperature": 0, "num_predict": 6},
    )
    (block,) = answer.content
    assert block.type == "text"
    assert block.text == native.message.content
    assert (answer.type, answer.role, answer.model, answer.stop_reason) == (
        "message", "assistant", "tiny", "max_tokens",
    )  # fmt: skip
    assert answer.id.startswith("msg_")
    usage = answer.usage
    assert usage.output_tokens == 6
    assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == native.prompt_eval_count
    assert answer._request_id


def test_stream_has_its_events_in_order_and_the_same_text(client: anthropic.Anthropic) -> None:
    fresh = GREEDY | {"cache_prompt": False}  # otherwise the second would reuse the first's prompt
    whole = client.messages.create(model="tiny", max_tokens=6, messages=HELLO, extra_body=fresh)
    with client.messages.stream(model="tiny", max_tokens=6, messages=HELLO, extra_body=fresh) as stream:
        events = list(stream)
        final = stream.get_final_message()
    assert [(block.type, getattr(block, "text", "")) for block in final.content] == [
        (block.type, getattr(block, "text", "")) for block in whole.content
    ]
    assert (final.stop_reason, final.usage.output_tokens) == (whole.stop_reason, 6)
    assert final.usage.input_tokens == whole.usage.input_tokens
    kinds = [event.type for event in events if event.type != "text"]  # the client adds `text` itself
    begin, middle, end = kinds[:2], set(kinds[2:-3]), kinds[-3:]
    assert begin == ["message_start", "content_block_start"]
    assert middle == {"content_block_delta"}
    assert end == ["content_block_stop", "message_delta", "message_stop"]


def test_stream_has_the_apis_wire_format(server: Server) -> None:
    body = {"model": "tiny", "max_tokens": 2, "messages": HELLO, "stream": True}
    with server.http.stream("POST", "/v1/messages", json=body) as reply:
        assert reply.headers["content-type"] == "text/event-stream"
        text = reply.read().decode()
    frames = [frame.split("\n") for frame in text.strip().split("\n\n")]
    assert [(len(frame), frame[0][:7], frame[1][:6]) for frame in frames] == [(2, "event: ", "data: ")] * len(
        frames
    )
    values = [json.loads(frame[1][6:]) for frame in frames]
    assert [f"event: {value['type']}" for value in values] == [frame[0] for frame in frames]
    assert [value["type"] for value in values][:3] == ["message_start", "ping", "content_block_start"]
    begun = values[0]["message"]
    assert (begun["content"], begun["stop_reason"], begun["usage"]["output_tokens"]) == ([], None, 0)
    assert begun["usage"]["input_tokens"] > 0


@pytest.mark.parametrize("place", ["request", "system", "tool", "message", "result"])
def test_with_cache_control_evaluated_tokens_count_as_written_to_the_cache(
    client: anthropic.Anthropic, place: str
) -> None:
    mark = {"cache_control": {"type": "ephemeral"}}

    def marked(where: str) -> dict[str, object]:
        return mark if place == where else {}

    call = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}}
    inner = [{"type": "text", "text": f"found by {place}", **marked("result")}]
    body = {
        "model": "tiny",
        "max_tokens": 2,
        "system": [{"type": "text", "text": f"be {place}", **marked("system")}],
        "tools": [],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "hello", **marked("message")}]},
            {"role": "assistant", "content": [call]},
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": inner}],
            },
        ],
        **marked("request"),
    }
    if place == "tool":
        body["tools"] = [{"type": "web_search_20250305", "name": "web_search", **mark}]
    first, second = (
        client.post("/v1/messages", body=body, cast_to=anthropic.types.Message) for _ in range(2)
    )
    for reply in (first, second):
        assert reply.usage.input_tokens == 0
    assert first.usage.cache_creation_input_tokens
    assert second.usage.cache_creation_input_tokens == 1
    counts = [
        (u.cache_creation_input_tokens or 0) + (u.cache_read_input_tokens or 0)
        for u in (first.usage, second.usage)
    ]
    assert counts[0] == counts[1]
    plain = client.post(
        "/v1/messages", body=body | {"cache_prompt": False}, cast_to=anthropic.types.Message
    ).usage
    assert (plain.input_tokens, plain.cache_creation_input_tokens) == (counts[0], 0)


def test_thinking_is_returned_only_on_request(client: anthropic.Anthropic, thinker: str) -> None:
    deep = client.messages.create(
        model=thinker, max_tokens=1030, messages=HELLO, extra_body=GREEDY,
        thinking={"type": "enabled", "budget_tokens": 1024}, stop_sequences=["hello"],
    )  # fmt: skip
    (block,) = deep.content
    assert block.type == "thinking"
    assert block.thinking
    assert block.signature
    plain = client.messages.create(model=thinker, max_tokens=4, messages=HELLO, extra_body=GREEDY)
    assert [block.type for block in plain.content] == ["text"]
    with client.messages.stream(
        model=thinker, max_tokens=4, messages=HELLO, extra_body=GREEDY, thinking={"type": "adaptive"}
    ) as stream:
        deltas = [event.delta.type for event in stream if event.type == "content_block_delta"]
    assert deltas[0] == "thinking_delta"
    assert deltas[-1] == "signature_delta"
    # Models without thinking ignore the request, with a warning.
    able = client.messages.create(model="tiny", max_tokens=4, messages=HELLO, thinking={"type": "adaptive"})
    assert '"tiny" does not support thinking' in able.model_dump()["warnings"]


def test_models_are_listed_in_pages_and_described(client: anthropic.Anthropic, server: Server) -> None:
    names = [model["name"] for model in server.http.get("/api/tags").json()["models"]]
    assert len(names) >= 3
    assert [model.id for model in client.models.list(limit=1)] == names
    page = client.models.list(limit=2)
    assert (page.first_id, page.last_id, page.has_more) == (names[0], names[1], True)
    before = client.models.list(limit=1, before_id=names[2])
    assert [model.id for model in before.data] == [names[1]]
    one = client.models.retrieve("tiny")
    assert (one.id, one.type, one.display_name) == ("tiny", "model", "tiny")
    assert one.max_input_tokens
    for wrong in ({"limit": "0"}, {"limit": "many"}, {"after_id": "nosuch"}):
        with pytest.raises(anthropic.BadRequestError, match=next(iter(wrong))):
            client.models.list(extra_query=wrong)
    with pytest.raises(anthropic.NotFoundError, match="nosuch"):
        client.models.retrieve("nosuch")


def test_stop_sequence_is_reported(client: anthropic.Anthropic) -> None:
    whole = client.messages.create(model="tiny", max_tokens=6, messages=HELLO, extra_body=GREEDY)
    (block,) = whole.content
    assert block.type == "text"
    stop = block.text[2:4]
    answer = client.messages.create(
        model="tiny", max_tokens=6, messages=HELLO, extra_body=GREEDY, stop_sequences=["never", stop]
    )
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", stop)
    (block,) = answer.content
    assert block.type == "text"
    assert stop not in block.text


def test_final_assistant_message_is_continued(client: anthropic.Anthropic, server: Server) -> None:
    begun: list[MessageParam] = [*HELLO, {"role": "assistant", "content": "once upon"}]
    template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    server.client.create(model="begun", from_="tiny", template=template)
    try:
        counted = client.messages.count_tokens(model="begun", messages=begun)
        body = {"model": "begun", "messages": begun, "_debug_render_only": True}
        rendered = server.http.post("/api/chat", json=body).json()["_debug_info"]["rendered_template"]
        assert rendered.endswith("assistant: once upon")
        answer = client.messages.create(model="begun", max_tokens=1, messages=begun)
        assert answer.usage.input_tokens + (answer.usage.cache_read_input_tokens or 0) == counted.input_tokens
    finally:
        server.client.delete("begun")


def test_overlong_prompt_is_refused_rather_than_truncated(client: anthropic.Anthropic) -> None:
    long: list[MessageParam] = [{"role": "user", "content": "hello world " * 400}]
    counted = client.messages.count_tokens(model="tiny", messages=long)
    assert counted.input_tokens > 256
    with pytest.raises(anthropic.BadRequestError, match=r"prompt is too long[^0-9]*\d+ tokens > \d+"):
        client.messages.create(model="tiny", max_tokens=1, messages=long)


def test_errors_have_anthropics_format(client: anthropic.Anthropic, server: Server) -> None:
    with pytest.raises(anthropic.NotFoundError) as caught:
        client.messages.create(model="nosuch", max_tokens=1, messages=HELLO)
    body = caught.value.body
    assert isinstance(body, dict)
    assert (body["type"], body["error"]["type"]) == ("error", "not_found_error")
    assert "model 'nosuch' not found" in body["error"]["message"]
    assert body["request_id"] == caught.value.response.headers["x-request-id"]
    with pytest.raises(anthropic.BadRequestError, match="max_tokens is required"):
        client.messages.create(model="tiny", max_tokens=0, messages=HELLO)
    reply = server.http.post("/v1/messages/count_tokens", content=b"{")
    assert (reply.status_code, reply.json()["type"]) == (400, "error")


def test_image_for_a_model_without_vision_is_refused(client: anthropic.Anthropic) -> None:
    for source, words in (
        ({"type": "base64", "media_type": "image/png", "data": "AA=="}, "does not support images"),
        ({"type": "url", "url": "http://127.0.0.1/x.png"}, "PUNA_REMOTE_IMAGES"),
    ):
        message = {"role": "user", "content": [{"type": "image", "source": source}]}
        with pytest.raises(anthropic.BadRequestError, match=words):
            client.messages.create(model="tiny", max_tokens=1, messages=[message])  # type: ignore[list-item]


def test_answer_follows_the_schema_of_output_config(server: Server) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"],
              "additionalProperties": False}  # fmt: skip
    body = {"model": "tiny", "max_tokens": 40, "messages": HELLO, "temperature": 0,
            "output_config": {"format": {"type": "json_schema", "schema": schema}}}  # fmt: skip
    answer = server.http.post("/v1/messages", json=body).json()
    assert json.loads(answer["content"][0]["text"]) in ({"a": 1}, {"a": 2})

"""Responses in the background and conversations, through the real `openai` client."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.e2e.servers import Server, add_model, running
from tests.waiting import wait_until

pytestmark = pytest.mark.e2e

GREEDY: dict[str, Any] = {"model": "tiny", "max_output_tokens": 6, "temperature": 0}
ENDLESS: dict[str, Any] = {"model": "endless", "temperature": 0, "input": "hello", "background": True}


def client_of(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.url + "/v1/", api_key="unused", max_retries=0, timeout=120)


@pytest.fixture(scope="module")
def client(server: Server) -> openai.OpenAI:
    return client_of(server)


def finished(client: openai.OpenAI, id: str) -> Any:
    """Return a response once it has ended."""
    wait_until(lambda: client.responses.retrieve(id).status not in ("queued", "in_progress"), "the end")
    return client.responses.retrieve(id)


def test_background_response_is_answered_while_nobody_waits(client: openai.OpenAI) -> None:
    begun = client.responses.create(**GREEDY, input="hello", background=True, metadata={"a": "b"})
    assert (begun.status, begun.background, begun.output) == ("queued", True, [])
    ended = finished(client, begun.id)
    plain = client.responses.create(**GREEDY, input="hello")
    assert (ended.output_text, ended.status, ended.metadata) == (plain.output_text, "incomplete", {"a": "b"})
    again = client.responses.create(**GREEDY, input="more", previous_response_id=begun.id)
    assert again.usage is not None
    assert again.usage.input_tokens > ended.usage.input_tokens + 6


def test_stream_of_a_background_response_begins_again_after_any_event(client: openai.OpenAI) -> None:
    stream = client.responses.create(**GREEDY, input="hello", background=True, stream=True)
    first = next(iter(stream))
    stream.close()
    assert first.type == "response.created"
    id = first.response.id
    whole = list(client.responses.retrieve(id, stream=True))
    assert [event.sequence_number for event in whole] == list(range(len(whole)))
    assert [event.type for event in whole[:3]] == [
        "response.created", "response.queued", "response.in_progress",
    ]  # fmt: skip
    assert whole[-1].type == "response.incomplete"
    assert list(client.responses.retrieve(id, stream=True, starting_after=4)) == whole[5:]
    text = "".join(event.delta for event in whole if event.type == "response.output_text.delta")
    assert text == finished(client, id).output_text


def test_cancelled_response_keeps_what_it_has(client: openai.OpenAI, server: Server) -> None:
    begun = client.responses.create(**ENDLESS)
    wait_until(lambda: client.responses.retrieve(begun.id).output_text != "", "the first text")
    assert client.responses.retrieve(begun.id).status == "in_progress"
    with ThreadPoolExecutor(4) as pool:  # several times at once
        ended, *others = pool.map(client.responses.cancel, [begun.id] * 4)
    assert (ended.status, bool(ended.output_text)) == ("cancelled", True)
    assert {one.output_text for one in others} == {ended.output_text}
    assert client.responses.retrieve(begun.id).output_text == ended.output_text
    assert server.running_requests() == []
    *_, last = client.responses.retrieve(begun.id, stream=True)
    assert last.response.status == "cancelled"  # type: ignore[union-attr]


def test_deleting_a_background_response_ends_it(client: openai.OpenAI, server: Server) -> None:
    begun = client.responses.create(**ENDLESS)
    client.responses.delete(begun.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(begun.id)
    assert server.running_requests() == []


def test_failure_in_the_background_is_told(client: openai.OpenAI) -> None:
    turns: list[Any] = [{"role": "user", "content": "hello world " * 400}]
    ended = finished(client, client.responses.create(**GREEDY, input=turns, background=True).id)
    assert (ended.status, ended.error.code) == ("failed", "invalid_prompt")
    assert "exceeds the context length" in ended.error.message
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(**GREEDY, input=turns)
    assert caught.value.code == "context_length_exceeded"


def test_only_background_responses_can_be_cancelled_and_streamed(client: openai.OpenAI) -> None:
    plain = client.responses.create(**GREEDY, input="hello")
    with pytest.raises(openai.BadRequestError, match="cancelled"):
        client.responses.cancel(plain.id)
    with pytest.raises(openai.BadRequestError, match="streamed"):
        client.responses.retrieve(plain.id, stream=True)
    with pytest.raises(openai.NotFoundError):
        client.responses.cancel("resp_x")


@pytest.fixture
def restarted(tmp_path: Path, endless_file: Path) -> tuple[Path, dict[signal.Signals, str]]:
    """Return a store with a response for each way in which its server ended."""
    begun = {}
    for way in (signal.SIGTERM, signal.SIGKILL):
        with running(tmp_path / "models") as server:
            if not begun:
                add_model(server, "endless", endless_file)
            begun[way] = client_of(server).responses.create(**ENDLESS).id
            wait_until(lambda: server.requests()[0] == 1, "the start")
            server.stop(way)
    return tmp_path / "models", begun


def test_response_whose_server_ended_has_failed(
    restarted: tuple[Path, dict[signal.Signals, str]],
) -> None:
    models, begun = restarted
    with running(models) as server:
        for way, words in ((signal.SIGTERM, "shut down"), (signal.SIGKILL, "server ended")):
            found = client_of(server).responses.retrieve(begun[way])
            assert found.status == "failed"
            assert found.error is not None
            assert words in found.error.message


# --- conversations ---


def test_conversation_grows_with_each_response(client: openai.OpenAI, server: Server) -> None:
    first: Any = {"role": "user", "content": "hello"}
    made = client.conversations.create(items=[first], metadata={"topic": "x"})
    answer = client.responses.create(**GREEDY, input="world", conversation=made.id)
    assert answer.conversation is not None
    assert answer.conversation.id == made.id
    begun = client.responses.create(**GREEDY, input="again", conversation={"id": made.id}, background=True)
    ended = finished(client, begun.id)
    chat = [
        first, {"role": "user", "content": "world"}, {"role": "assistant", "content": answer.output_text},
        {"role": "user", "content": "again"},
    ]  # fmt: skip
    same = server.client.chat("tiny", chat, options={"temperature": 0, "num_predict": 6})
    assert ended.output_text == same.message.content
    listed = list(client.conversations.items.list(made.id, order="asc", limit=2))
    texts = [item.content[0].text for item in listed]  # type: ignore[union-attr]
    assert texts == ["hello", "world", answer.output_text, "again", ended.output_text]


def test_conversation_can_be_looked_at_and_changed(client: openai.OpenAI) -> None:
    made = client.conversations.create(metadata={"topic": "x"})
    assert client.conversations.retrieve(made.id).metadata == {"topic": "x"}
    assert client.conversations.update(made.id, metadata={"topic": "y"}).metadata == {"topic": "y"}
    items: Any = [{"type": "message", "role": "user", "content": text} for text in "abc"]
    added = client.conversations.items.create(made.id, items=items)
    one = client.conversations.items.retrieve(added.data[1].id, conversation_id=made.id)
    assert one.content[0].text == "b"  # type: ignore[union-attr]
    assert client.conversations.items.delete(one.id, conversation_id=made.id).id == made.id  # type: ignore[arg-type]
    left = [item.id for item in client.conversations.items.list(made.id)]
    assert left == [added.data[2].id, added.data[0].id]
    assert client.conversations.delete(made.id).deleted
    for id in (made.id, "conv_x"):
        with pytest.raises(openai.NotFoundError, match="not found"):
            client.conversations.retrieve(id)
        with pytest.raises(openai.NotFoundError, match="not found"):
            client.responses.create(**GREEDY, input="hello", conversation=id)


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("conversations", {"items": [{"role": "user", "content": "x"}] * 21}, "more than 20 items"),
        ("conversations", {"items": [{"type": "computer_call"}]}, "unknown input item type"),
        ("conversations", {"metadata": {str(n): "" for n in range(17)}}, "more than 16 items"),
        ("conversations", {"metadata": {"a": "x" * 513}}, "more than 512 characters"),
        ("conversations", {"metadata": {"x" * 65: ""}}, "more than 64 characters"),
        ("responses", {"conversation": "conv_x", "previous_response_id": "resp_x"}, "exclude each other"),
        ("responses", {"conversation": 3}, "must be the id"),
        ("responses", {"metadata": {"a": "x" * 513}}, "more than 512 characters"),
    ],
)
def test_wrong_requests_are_refused(server: Server, path: str, body: dict[str, Any], words: str) -> None:
    given = body if path == "conversations" else {**GREEDY, "input": "x", **body}
    reply = server.http.post(f"/v1/{path}", json=given)
    assert reply.status_code == 400
    assert words in reply.json()["error"]["message"]

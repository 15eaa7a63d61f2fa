"""Message batches, through the real `anthropic` client."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import anthropic
import httpx
import pytest

from puna.server.keys import change_keys, new_key
from tests.e2e.servers import Server, add_model, running
from tests.waiting import wait_until

pytestmark = pytest.mark.e2e


def client_of(server: Server, key: str = "unused") -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=server.url, api_key=key, max_retries=0, timeout=120)


@pytest.fixture(scope="module")
def client(server: Server) -> anthropic.Anthropic:
    return client_of(server)


def request(custom_id: str, text: str = "hello", **more: Any) -> Any:
    params = {
        "model": "tiny", "max_tokens": 6, "temperature": 0, "messages": [{"role": "user", "content": text}],
    }  # fmt: skip
    return {"custom_id": custom_id, "params": params | more}


def interactive(server: Server, request: Any) -> Any:
    """Return the message that answers the request of a batch at once."""
    return server.http.post("/v1/messages", json=request["params"]).json()


def endless(custom_id: str) -> Any:
    return request(custom_id, model="endless", max_tokens=100_000)


def ended(client: anthropic.Anthropic, id: str) -> Any:
    """Return a batch once it has ended."""
    batches = client.messages.batches
    wait_until(lambda: batches.retrieve(id).processing_status == "ended", "the end of the batch")
    return batches.retrieve(id)


def results(client: anthropic.Anthropic, id: str) -> dict[str, Any]:
    return {one.custom_id: one.result for one in client.messages.batches.results(id)}


def test_batch_gives_the_answers_of_its_requests(client: anthropic.Anthropic, server: Server) -> None:
    made = client.messages.batches.create(
        requests=[
            request("a"),
            request("b", "world"),
            request("c", model="nosuch"),
            request("d", stream=True),
        ]
    )
    assert (made.processing_status, made.request_counts.processing, made.results_url) == (
        "in_progress",
        4,
        None,
    )
    batch = ended(client, made.id)
    counts = batch.request_counts
    assert (counts.succeeded, counts.errored, counts.processing) == (2, 2, 0)
    found = results(client, made.id)
    for id, text in (("a", "hello"), ("b", "world")):
        plain = interactive(server, request(id, text))
        assert [block.model_dump(exclude_none=True) for block in found[id].message.content] == plain[
            "content"
        ]
        assert found[id].message.stop_reason == "max_tokens"
    assert found["c"].error.error.type == "not_found_error"
    assert "cannot be streamed" in found["d"].error.error.message


def test_cancelled_batch_ends_at_once(client: anthropic.Anthropic, server: Server) -> None:
    made = client.messages.batches.create(requests=[endless(f"e{number}") for number in range(6)])
    wait_until(lambda: len(server.running_requests()) == 4, "four requests at a time")
    with pytest.raises(anthropic.BadRequestError, match="under way cannot be deleted"):
        client.messages.batches.delete(made.id)
    assert client.messages.batches.cancel(made.id).processing_status == "canceling"
    assert ended(client, made.id).request_counts.canceled == 6
    assert {result.type for result in results(client, made.id).values()} == {"canceled"}
    assert server.running_requests() == []


def test_batches_are_listed_and_deleted(client: anthropic.Anthropic, server: Server) -> None:
    ids = [client.messages.batches.create(requests=[request("a")]).id for _ in range(3)]
    for id in ids:
        ended(client, id)
    listed = [batch.id for batch in client.messages.batches.list(limit=2)]  # several pages
    assert listed[:3] == ids[::-1]
    assert client.messages.batches.delete(ids[0]).type == "message_batch_deleted"
    with pytest.raises(anthropic.NotFoundError):
        client.messages.batches.retrieve(ids[0])
    assert not (server.models / "batches" / ids[0]).exists()


@pytest.mark.parametrize(
    ("requests", "words"),
    [
        ([], "must not be empty"),
        ([request("a"), request("a")], "given twice"),
        ([request("a b")], "custom_id"),
        ([request("x" * 65)], "custom_id"),
        ([{"custom_id": "a"}], "params"),
        ([request("a")] * 10_001, "more than 10,000 items"),
    ],
)
def test_wrong_batches_are_refused(server: Server, requests: Any, words: str) -> None:
    reply = server.http.post("/v1/messages/batches", json={"requests": requests})
    assert reply.status_code == 400
    assert words in reply.json()["error"]["message"]


def test_interactive_requests_go_before_a_batch(client: anthropic.Anthropic, server: Server) -> None:
    """The batch's endless requests take all places of the model."""
    made = client.messages.batches.create(requests=[endless(f"e{number}") for number in range(4)])
    wait_until(lambda: server.requests()[0] == 4, "the batch to take all places")
    assert interactive(server, request("", model="endless"))["usage"]["output_tokens"] == 6
    assert client.messages.batches.retrieve(made.id).processing_status == "in_progress"
    client.messages.batches.cancel(made.id)
    ended(client, made.id)


def test_batch_gives_way_to_another_model(tmp_path: Path, tiny_file: Path, endless_file: Path) -> None:
    with running(tmp_path / "models", PUNA_MAX_LOADED_MODELS="1") as server:
        add_model(server, "tiny", tiny_file)
        add_model(server, "endless", endless_file)
        client = client_of(server)
        made = client.messages.batches.create(requests=[endless("e")])
        wait_until(lambda: server.requests()[0] == 1, "the batch to run")
        assert interactive(server, request(""))["usage"]["output_tokens"] == 6
        batches = client.messages.batches
        assert batches.retrieve(made.id).processing_status == "in_progress"
        wait_until(lambda: server.requests()[0] == 1, "the batch to run again")
        batches.cancel(made.id)
        assert ended(client, made.id).request_counts.canceled == 1


@pytest.mark.parametrize("way", [signal.SIGTERM, signal.SIGKILL])
def test_batch_goes_on_after_a_restart(
    tmp_path: Path, tiny_file: Path, endless_file: Path, way: signal.Signals
) -> None:
    models = tmp_path / "models"
    with running(models) as server:
        add_model(server, "tiny", tiny_file)
        add_model(server, "endless", endless_file)
        client = client_of(server)
        made = client.messages.batches.create(requests=[request("a"), endless("e"), request("b")])
        lines = models / "batches" / made.id / "results.jsonl"
        wait_until(lambda: lines.exists() and lines.read_bytes().count(b"\n") == 2, "two results")
        server.stop(way)
    if way is signal.SIGKILL:
        with lines.open("ab") as file:  # a crash may cut off a line
            file.write(b'{"custom_id": "e", "resu')
    with running(models) as server:
        client = client_of(server)
        wait_until(lambda: len(server.running_requests()) == 1, "the batch to go on")
        client.messages.batches.cancel(made.id)
        ended(client, made.id)
        assert {id: found.type for id, found in results(client, made.id).items()} == {
            "a": "succeeded", "b": "succeeded", "e": "canceled",
        }  # fmt: skip


def test_batches_belong_to_their_key_and_end_with_it(tmp_path: Path, endless_file: Path) -> None:
    keys, models = tmp_path / "keys.json", tmp_path / "models"
    (ann, ann_key), (bob, bob_key) = new_key("ann"), new_key("bob")
    with running(models) as server:
        add_model(server, "endless", endless_file)
    change_keys(keys, lambda _: [ann_key, bob_key])
    with running(models, PUNA_API_KEYS_FILE=str(keys)) as server:
        made = client_of(server, ann).messages.batches.create(requests=[endless("a")])
        others = client_of(server, bob).messages.batches
        assert list(others.list()) == []
        for act in (others.retrieve, others.cancel, others.delete, others.results):
            with pytest.raises(anthropic.NotFoundError):
                act(made.id)
    change_keys(keys, lambda _: [bob_key])
    with running(models, PUNA_API_KEYS_FILE=str(keys)):
        lines = models / "batches" / made.id / "results.jsonl"
        wait_until(lambda: lines.exists() and lines.read_bytes().endswith(b"\n"), "the result")
    assert "the key that made the batch was revoked" in lines.read_text()


def test_batch_larger_than_all_may_be_is_refused(tmp_path: Path) -> None:
    with running(tmp_path / "small", PUNA_RESPONSES_MB="1") as server:
        reply = _post(server, [request("a", "x" * (1 << 20))])
        assert "PUNA_RESPONSES_MB" in reply.json()["error"]["message"]
    with running(tmp_path / "none", PUNA_RESPONSES_MB="0") as server:
        reply = _post(server, [request("a")])
        assert "keeps no batches" in reply.json()["error"]["message"]
        assert not (server.models / "batches").exists()


def _post(server: Server, requests: list[Any]) -> httpx.Response:
    reply = server.http.post("/v1/messages/batches", json={"requests": requests})
    assert reply.status_code == 400
    return reply

"""Progress of a request before it answers, in streams that ask for it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import anthropic
import openai
import pytest

from tests.e2e.servers import Server
from tests.held import HeldRunners, wait_until_stopped
from tests.waiting import wait_until

pytestmark = pytest.mark.e2e

#: Longer than two batches.
WORDS = " ".join(f"w{number}" for number in range(400))
REQUEST = {"model": "endless", "options": {"num_predict": 2, "num_ctx": 8192}, "cache_prompt": False}


def lines(server: Server, path: str, **body: Any) -> list[dict[str, Any]]:
    with server.http.stream("POST", path, json=REQUEST | body) as response:
        return [json.loads(line) for line in response.iter_lines()]


def check(steps: list[dict[str, Any]], tokens: int) -> None:
    """Check that the steps of a prompt advance from one to the next and reach its end."""
    assert len(steps) >= 2
    assert [step["processed"] for step in steps] == sorted({step["processed"] for step in steps})
    assert [step["time_ms"] for step in steps] == sorted(step["time_ms"] for step in steps)
    assert {(step["total"], step["cache"]) for step in steps} == {(tokens, 0)}
    assert steps[-1]["processed"] == tokens


def test_stream_reports_progress_of_the_load_and_the_prompt(server: Server) -> None:
    server.unload()
    found = lines(server, "/api/generate", prompt=WORDS, raw=True, return_progress=True)
    loads = [line["load_progress"] for line in found if "load_progress" in line]
    size = loads[-1]["total"]
    assert loads[-1]["processed"] == size > 0
    prompts = [line["prompt_progress"] for line in found if "prompt_progress" in line]
    check(prompts, found[-1]["prompt_eval_count"])
    before = found[: len(loads) + len(prompts)]
    assert all("load_progress" in line for line in before[: len(loads)])
    assert all(line["response"] == "" and line["done"] is False for line in before)
    assert all("prompt_progress" not in line for line in found[len(before) :])
    chat = {"messages": [{"role": "user", "content": WORDS}], "return_progress": True}
    found = lines(server, "/api/chat", **chat)
    assert not any("load_progress" in line for line in found), "the model is already loaded"
    check(
        [line["prompt_progress"] for line in found if "prompt_progress" in line],
        found[-1]["prompt_eval_count"],
    )
    assert not any("progress" in key for line in lines(server, "/api/generate", prompt=WORDS) for key in line)


def test_openais_client_receives_the_progress_of_every_prompt(server: Server) -> None:
    client = openai.OpenAI(base_url=server.url + "/v1/", api_key="any", max_retries=0, timeout=120)
    own = {"return_progress": True, "cache_prompt": False}
    chunks = list(
        client.completions.create(
            model="endless", prompt=[WORDS, WORDS + " more"], max_tokens=2, stream=True, n=2, extra_body=own
        )
    )
    reports = [chunk for chunk in chunks if hasattr(chunk, "prompt_progress")]
    assert {chunk.choices[0].index for chunk in reports} == {0, 2}, (
        "a prompt has the index of its first answer"
    )
    for choice in (0, 2):
        steps = [chunk.prompt_progress for chunk in reports if chunk.choices[0].index == choice]
        check(steps, steps[0]["total"])
    messages: Any = [{"role": "user", "content": WORDS}]
    stream = client.chat.completions.create(
        model="endless", messages=messages, max_tokens=2, stream=True, extra_body=own
    )
    assert any(hasattr(chunk, "prompt_progress") and not chunk.choices[0].delta.content for chunk in stream)


def test_responses_report_progress_before_their_items(server: Server) -> None:
    client = openai.OpenAI(base_url=server.url + "/v1/", api_key="any", max_retries=0, timeout=120)
    own = {"return_progress": True, "cache_prompt": False}
    events = list(
        client.responses.create(
            model="endless", input=WORDS, max_output_tokens=16, stream=True, extra_body=own
        )
    )
    kinds = [str(event.type) for event in events]
    first = kinds.index("response.output_item.added")
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert set(kinds[2:first]) == {"response.progress"}
    assert "response.progress" not in kinds[first:]
    steps: list[Any] = [getattr(event, "prompt_progress", None) for event in events[2:first]]
    check([step for step in steps if step], next(step["total"] for step in steps if step))
    assert [event.sequence_number for event in events] == list(range(len(events)))


def test_messages_report_progress_in_pings_that_clients_pass_over(server: Server) -> None:
    client = anthropic.Anthropic(base_url=server.url, api_key="any", max_retries=0, timeout=120)
    own = {"return_progress": True, "cache_prompt": False}
    messages: Any = [{"role": "user", "content": WORDS}]
    with client.messages.stream(model="endless", max_tokens=4, messages=messages, extra_body=own) as stream:
        tokens = stream.get_final_message().usage.input_tokens
    body = {"model": "endless", "max_tokens": 4, "messages": messages, "stream": True} | own
    with server.http.stream("POST", "/v1/messages", json=body) as response:
        data = [json.loads(line[6:]) for line in response.iter_lines() if line.startswith("data: ")]
    check([each["prompt_progress"] for each in data if "prompt_progress" in each], tokens)
    assert {each["type"] for each in data if "prompt_progress" in each} == {"ping"}


def test_progress_without_a_stream_is_ignored_with_a_warning(server: Server) -> None:
    body = REQUEST | {"prompt": "a", "return_progress": True}
    answer = server.http.post("/api/generate", json=body | {"stream": False}).json()
    assert "return_progress is ignored without stream" in answer["warnings"]
    assert "prompt_progress" not in answer
    assert server.http.post("/api/generate", json=body | {"model": "none"}).status_code == 404


def test_disconnecting_or_cancelling_during_a_load_ends_the_load(
    holding_server: Server, held: HeldRunners
) -> None:
    server = holding_server
    body = REQUEST | {"prompt": "a", "return_progress": True}

    @contextmanager
    def stopped_load() -> Iterator[None]:
        """Hold the first request's load within the block, and let it continue afterwards."""
        runner = server.runner()
        wait_until_stopped(runner)
        assert [one["state"] for one in server.running_requests()] == ["loading"]
        yield
        runner.resume()

    server.unload()
    with held.stopping(), server.open_request("/api/generate", body), stopped_load():
        pass
    wait_until(lambda: not server.running_requests(), "the end of the request")
    server.unload()

    def ask() -> str:
        return server.http.post("/api/generate", json=body, headers={"X-Request-Id": "mine-3"}).text

    with held.stopping(), ThreadPoolExecutor(1) as pool:
        pending = pool.submit(ask)
        with stopped_load():
            assert server.http.post("/api/cancel", json={"id": "mine-3"}).status_code == 200
            assert "the request was cancelled" in pending.result()
            wait_until(lambda: not server.running_requests(), "the end of the request")
    wait_until(lambda: not server.runners(), "the unwanted load to end")
    assert lines(server, "/api/generate", prompt="a")[-1]["done"] is True

"""Answers of a cluster, which are those of one machine whatever happens to its nodes."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest

from tests.cluster.clusters import Cluster, resume
from tests.e2e.test_demo_vision import two_shapes
from tests.e2e.tools import calling
from tests.scripted import trigger
from tests.waiting import PATIENCE_S, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

SEEDED = {"seed": 5, "temperature": 1.0, "top_k": 0, "repeat_penalty": 1.1}
LENGTH = 3000


def endless(**fields: Any) -> dict[str, Any]:
    options = {"num_ctx": 8192, "num_predict": LENGTH} | fields.pop("options", {})
    return {"model": "endless", "prompt": "Go on.", "options": options, "ignore_eos": True} | fields


def scripted(number: int, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": f"{trigger(number)} please"}]
    options = {"temperature": 0, "num_ctx": 8192} | fields.pop("options", {})
    return {"model": "scripted", "messages": messages, "options": options} | fields


def lines(cluster: Cluster, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    path = "/api/chat" if "messages" in body else "/api/generate"
    with cluster.server.http.stream("POST", path, json=body) as reply:
        for line in reply.iter_lines():
            yield json.loads(line)


def events(cluster: Cluster, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    with cluster.server.http.stream("POST", path, json=body | {"stream": True}) as reply:
        for line in reply.iter_lines():
            if line.startswith("data: {"):
                yield json.loads(line.removeprefix("data: "))


def merged(items: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what a client has in the end, without times."""
    messages = [item.get("message") or item for item in items]
    last = items[-1]
    return {
        "text": "".join(each.get("content", each.get("response", "")) for each in messages),
        "thinking": "".join(each.get("thinking") or "" for each in messages),
        "calls": [call["function"] for each in messages for call in each.get("tool_calls", [])],
        "logprobs": [one for item in items for one in item.get("logprobs", [])],
        "end": [last[name] for name in ("done_reason", "prompt_eval_count", "eval_count")],
    }


def stop(process: psutil.Process) -> None:
    process.suspend()
    wait_until(lambda: process.status() == psutil.STATUS_STOPPED, "the stop")


def interrupted(
    cluster: Cluster,
    body: dict[str, Any],
    kill: Callable[[psutil.Process], None],
    read: Callable[[Cluster, dict[str, Any]], Iterator[dict[str, Any]]] = lines,
) -> list[dict[str, Any]]:
    """Return the parts of an answer whose replica is stopped after some of them, and then lost by `kill`."""
    items, found = [], None
    for item in read(cluster, body):
        items.append(item)
        if len(items) == 20:
            [found] = cluster.busy(body["model"]).runners()
            stop(found)
            kill(found)
    assert found is not None, "the answer was over before anything was lost"
    assert "a request goes on without node" in cluster.server.log.read_text()
    return items


def lose_process(runner: psutil.Process) -> None:
    """Kill the actor of a stopped runner, which ends with it: as a failing machine does, but faster."""
    actor = runner.parent()
    assert actor is not None
    actor.kill()
    runner.resume()


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(endless(options={"temperature": 0}), id="greedy", marks=pytest.mark.thorough),
        pytest.param(endless(options=SEEDED), id="sampled"),
        pytest.param(
            endless(options=SEEDED | {"mirostat": 2}, logprobs=True, top_logprobs=2),
            id="mirostat",
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            endless(options=SEEDED, format={"type": "array", "items": {"type": "integer"}, "minItems": 500}),
            id="format",
            marks=pytest.mark.thorough,
        ),
        pytest.param(scripted(1, think=True), id="thinking", marks=pytest.mark.thorough),
    ],
)
def test_an_answer_goes_on_elsewhere_with_the_same_tokens(workers: Cluster, body: dict[str, Any]) -> None:
    whole = merged(list(lines(workers, body)))
    workers.unload()
    assert merged(interrupted(workers, body, lose_process)) == whole


def test_a_call_goes_on_within_its_arguments(workers: Cluster) -> None:
    def call(items: list[dict[str, Any]]) -> tuple[str, str, str]:
        choices = [choice for item in items for choice in item["choices"]]
        deltas = [call for choice in choices for call in choice["delta"].get("tool_calls", [])]
        assert len({delta["id"] for delta in deltas if "id" in delta}) == 1
        functions = [delta["function"] for delta in deltas]
        names = "".join(each.get("name") or "" for each in functions)
        return names, "".join(each.get("arguments") or "" for each in functions), items[-1]["model"]

    messages = [{"role": "user", "content": trigger(2)}]
    body = {"model": "scripted", "messages": messages, "tools": calling.TOOLS, "temperature": 0}
    whole = list(events(workers, body))
    workers.unload()
    parts = interrupted(workers, body, lose_process, events)
    assert call(parts) == call(whole)
    assert json.loads(call(parts)[1])["days"] == 2


@pytest.mark.thorough
def test_all_samples_go_on(workers: Cluster) -> None:
    body = {"model": "endless", "prompt": "Go on.", "n": 2, "max_tokens": 1500, "seed": 3, "ignore_eos": True}

    def texts(items: list[dict[str, Any]]) -> list[str]:
        choices = [choice for item in items for choice in item["choices"]]
        return ["".join(one["text"] for one in choices if one["index"] == index) for index in range(2)]

    whole = texts(list(events(workers, body)))
    workers.unload()
    assert texts(interrupted(workers, body, lose_process, events)) == whole


@pytest.mark.thorough
def test_an_answer_about_a_picture_goes_on(workers: Cluster) -> None:
    picture = base64.b64encode(two_shapes()).decode()
    body = {
        "model": "demo-vision", "prompt": "What is in the picture?", "images": [picture],
        "options": SEEDED | {"num_predict": 200}, "ignore_eos": True,
    }  # fmt: skip
    whole = merged(list(lines(workers, body)))
    workers.unload()
    assert merged(interrupted(workers, body, lose_process)) == whole


@pytest.mark.thorough
def test_an_answer_survives_a_machine_that_stands_still(workers: Cluster) -> None:
    body = endless(options=SEEDED)
    whole = merged(list(lines(workers, body)))
    [node] = workers.replicas("endless")
    lost = workers.worker(node)
    suspended: list[psutil.Process] = []
    found = interrupted(workers, body, lambda _: suspended.extend(lost.suspend()))
    assert merged(found) == whole
    assert lost.node not in workers.nodes()
    resume(suspended)
    assert lost.process.wait(PATIENCE_S) == 1
    workers.workers.remove(lost)


@pytest.mark.thorough
def test_an_answer_survives_the_loss_of_a_machine(workers: Cluster) -> None:
    body = endless(options=SEEDED)
    whole = merged(list(lines(workers, body)))
    [node] = workers.replicas("endless")
    lost = workers.worker(node)
    found = interrupted(workers, body, lambda _: workers.kill(lost))
    assert merged(found) == whole
    wait_until(lambda: lost.node not in workers.nodes(), "the head to notice the loss")

"""Nodes of a cluster: how they join and leave, and what each gets to do."""

from __future__ import annotations

import base64
import contextlib
import ipaddress
import json
import threading
from pathlib import Path

import psutil
import pytest

from puna.store.blobs import file_digest
from tests import commands
from tests.cluster.clusters import Cluster, clustered
from tests.cluster.test_answers import SEEDED, endless, lines, merged
from tests.e2e.servers import add_model, environment, running
from tests.e2e.test_cache_events import listening
from tests.e2e.test_demo_vision import digits, two_shapes
from tests.waiting import PATIENCE_S, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


def test_nothing_listens_beyond_this_machine(cluster: Cluster) -> None:
    cluster.server.client.generate("demo", "Hello", options={"num_predict": 2, "seed": 1})
    head = psutil.Process(cluster.server.process.pid)
    mine = {each.pid for each in [head, *head.children(recursive=True)]}
    mine |= {each.pid for worker in cluster.workers for each in worker.processes()}
    found = [
        one.laddr.ip for one in psutil.net_connections("tcp") if one.pid in mine and one.status == "LISTEN"
    ]
    assert len(found) > 5

    def is_loopback(text: str) -> bool:
        address = ipaddress.ip_address(text)
        mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
        return (mapped or address).is_loopback

    assert [text for text in found if not is_loopback(text)] == []


def test_answers_are_those_of_one_machine_and_files_are_copied(workers: Cluster, tmp_path: Path) -> None:
    body = endless(options=SEEDED | {"num_predict": 100}, logprobs=True)
    found = merged(list(lines(workers, body)))
    [node] = workers.replicas("endless")
    original = workers.folder / "endless.gguf"
    worker = workers.worker(node)
    assert {each.nice() for each in worker.runners()} == {psutil.Process(worker.process.pid).nice()}
    copied = worker.models / "blobs" / file_digest(original).replace(":", "-")
    assert copied.read_bytes() == original.read_bytes()
    with running(tmp_path / "one") as server:
        add_model(server, "endless", original)
        with server.http.stream("POST", "/api/generate", json=body) as reply:
            assert merged([json.loads(line) for line in reply.iter_lines()]) == found


def test_a_drained_node_ends_its_answers_and_gets_no_others(workers: Cluster) -> None:
    stream = lines(workers, endless(options=SEEDED))
    first = next(stream)
    node = workers.busy("endless").node
    draining = threading.Thread(target=workers.drain, args=(node,))
    draining.start()
    wait_until(lambda: workers.nodes()[node]["state"] == "draining", "the drain")
    other = merged(list(lines(workers, endless(options=SEEDED | {"num_predict": 5}))))
    assert other["end"][2] == 5
    assert node not in workers.replicas("endless") or workers.replicas("endless")[node]["users"] == 1
    assert merged([first, *stream])["end"][2] == 3000
    draining.join(PATIENCE_S)
    assert node not in workers.replicas("endless")
    workers.drain(node, undo=True)
    assert workers.nodes()[node]["state"] == "ready"


def test_a_worker_leaves_once_its_answers_have_ended(workers: Cluster) -> None:
    stream = lines(workers, endless(options=SEEDED))
    first = next(stream)
    worker = workers.busy("endless")
    worker.leave()
    wait_until(lambda: workers.nodes()[worker.node]["state"] == "draining", "the drain")
    assert merged([first, *stream])["end"][2] == 3000
    assert worker.process.wait(PATIENCE_S) == 0
    workers.workers.remove(worker)
    wait_until(lambda: worker.node not in workers.nodes(), "the head to notice")
    assert "without node" not in workers.server.log.read_text().rpartition("is drained")[2]


@pytest.mark.thorough
def test_a_drained_node_can_leave_though_its_agent_was_killed(workers: Cluster) -> None:
    worker = workers.workers[0]
    workers.drain(worker.node)
    [agent] = worker.actors("NodeAgent")
    agent.kill()
    wait_until(lambda: worker.actors("NodeAgent") not in ([], [agent]), "another agent")
    worker.leave()
    assert worker.process.wait(PATIENCE_S) == 0
    workers.workers.remove(worker)
    wait_until(lambda: worker.node not in workers.nodes(), "the head to notice")


@pytest.mark.thorough
def test_a_model_that_is_being_loaded_on_a_drained_node_goes_elsewhere(workers: Cluster) -> None:
    stream = lines(workers, endless(options=SEEDED | {"num_predict": 5}))
    asking = threading.Thread(target=lambda: parts.extend(stream))
    parts: list[dict[str, object]] = []
    with contextlib.ExitStack() as stack:
        asking.start()
        wait_until(lambda: any(worker.runners() for worker in workers.workers), "a runner")
        [worker] = [worker for worker in workers.workers if worker.runners()]
        [runner] = worker.runners()
        runner.suspend()
        stack.callback(runner.resume)
        draining = threading.Thread(target=workers.drain, args=(worker.node,))
        draining.start()
        wait_until(lambda: workers.nodes()[worker.node]["state"] == "draining", "the drain")
        assert not workers.holding(worker.node)
    draining.join(PATIENCE_S)
    asking.join(PATIENCE_S)
    assert merged(parts)["end"][2] == 5
    assert worker.node not in workers.replicas("endless")
    assert worker.runners() == []
    workers.drain(worker.node, undo=True)


@pytest.mark.thorough
def test_a_node_that_cannot_keep_files_is_named_and_then_spared(workers: Cluster) -> None:
    def without_room(models: Path) -> None:
        models.mkdir()
        (models / "blobs").write_text("this is no folder")

    broken = workers.join(without_room)
    others = [worker.node for worker in workers.workers if worker is not broken]
    for node in others:
        workers.drain(node)
    body = endless(options=SEEDED | {"num_predict": 5})
    for _ in range(2):
        reply = workers.server.http.post("/api/generate", json=body | {"stream": False})
        assert reply.status_code == 500
        assert f"node {broken.node}: cannot write into" in reply.json()["error"]
    for node in others:
        workers.drain(node, undo=True)
    assert merged(list(lines(workers, body)))["end"][2] == 5
    assert workers.server.log.read_text().count(f"node {broken.node} cannot take a model") == 1
    broken.leave()
    assert broken.process.wait(PATIENCE_S) == 0
    workers.workers.remove(broken)
    wait_until(lambda: broken.node not in workers.nodes(), "the head to notice")


def test_an_unknown_node_cannot_be_drained(cluster: Cluster) -> None:
    reply = cluster.server.http.post("/api/cluster/drain", json={"node": "nowhere"})
    assert reply.status_code == 400
    assert "nowhere" in reply.json()["error"]
    assert cluster.head in reply.json()["error"]


def test_nodes_are_shown_on_the_command_line(cluster: Cluster) -> None:
    def command_line(*words: str) -> str:
        host = cluster.server.url.removeprefix("http://")
        ended = commands.run(*words, env=environment(cluster.server.models, PUNA_HOST=host))
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    cluster.server.client.generate("demo", "Hello", options={"num_predict": 2, "seed": 1})
    shown = command_line("cluster", "status")
    for node in cluster.nodes():
        assert node in shown
    assert "demo:latest" in shown
    assert set(json.loads(command_line("cluster", "status", "--json"))) == {"nodes", "refused", "models"}


def test_a_model_says_how_many_replicas_it_has(workers: Cluster) -> None:
    client = workers.server.client
    client.create(model="double", from_="demo", parameters={"replicas": "2,3"})
    client.generate("double", "Hello", options={"num_predict": 2, "seed": 1})
    wait_until(lambda: len(workers.replicas("double")) == 2, "the second replica")

    def bounds() -> tuple[int, int]:
        [model] = workers.status()["models"]
        return model["least"], model["most"]

    assert bounds() == (2, 3)
    body = {"model": "double", "prompt": "Hello", "stream": False, "options": {"num_predict": 2, "seed": 1}}
    body["options"] |= {"replicas": 1}  # for this request, and as long as no other wishes more
    reply = workers.server.http.post("/api/generate", json=body).raise_for_status().json()
    assert "replicas" not in json.dumps(reply)
    assert bounds() == (1, 1)
    wait_until(lambda: len(workers.replicas("double")) == 1, "the end of the second replica")
    workers.unload()
    client.delete("double")


def test_conversations_find_the_replica_that_remembers_them(workers: Cluster) -> None:
    def ask(messages: list[dict[str, str]]) -> tuple[str, int]:
        body = {
            "model": "demo",
            "messages": messages,
            "stream": False,
            "options": {"num_predict": 8, "seed": 1},
        }
        found = workers.server.http.post("/api/chat", json=body).raise_for_status().json()
        return found["message"]["content"], found.get("cached", 0)

    workers.spread("demo")
    conversations = [
        [{"role": "user", "content": f"Story {number}: " + f"the fox number {number} went on. " * 30}]
        for number in range(6)
    ]
    for messages in conversations:
        content, _ = ask(messages)
        messages += [{"role": "assistant", "content": content}, {"role": "user", "content": "And then?"}]
    wait_until(
        lambda: all(replica["cached_blocks"] > 3 for replica in workers.replicas("demo").values()),
        "both replicas to report what they remember",
    )
    assert [cached > 200 for _, cached in map(ask, conversations)] == [True] * 6
    for replica in [one["name"] for one in workers.replicas("demo").values()]:
        with workers.server.http.stream("GET", "/api/puna/live", params={"replica": replica}) as reply:
            states = (json.loads(line[6:]) for line in reply.iter_lines() if line.startswith("data: "))
            shown = next(model for state in states for model in state["models"] if model["steps"])
        assert shown["replica"] == replica
        assert len(shown["replicas"]) == 2
    with listening(workers.server) as events:
        assert next(events)[0] == "begin"
        found = [next(events)[1] for _ in range(2)]
    assert {one["node"] for one in found} == {worker.node for worker in workers.workers}
    assert all(one["whole"] and len(one["added"]) > 3 for one in found)


@pytest.mark.thorough
def test_pictures_are_found_where_they_were_seen(workers: Cluster) -> None:
    pictures = [base64.b64encode(picture).decode() for picture in (two_shapes(), digits("3"))]
    workers.spread("demo-vision")

    def ask(picture: str, prompt: str) -> int:
        options = {"num_predict": 2, "seed": 1}
        body = {"model": "demo-vision", "prompt": prompt, "images": [picture], "stream": False}
        found = workers.server.http.post("/api/generate", json=body | {"options": options}).raise_for_status()
        cached: int = found.json().get("cached", 0)
        return cached

    text = "Look closely at all of it. " * 30  # so that there are whole blocks
    for picture in pictures:
        ask(picture, text + "What is in the picture?")
    assert [ask(picture, text + "What is this?") > 100 for picture in pictures] == [True, True]


@pytest.mark.thorough
def test_a_worker_ends_with_its_head(tmp_path: Path) -> None:
    with clustered(tmp_path, 1) as cluster:
        [worker] = cluster.workers
        cluster.server.process.kill()
        assert worker.process.wait(PATIENCE_S) == 1
        assert "is the head" in worker.log.read_text()

"""Pulling and pushing through the server: Ollama's client, the command line, and clients that disconnect."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import ollama
import psutil
import pytest

from tests import commands
from tests.e2e.servers import Server, running
from tests.ports import free_port
from tests.registry.receiving import Receiving
from tests.registry.registries import Published, Registry, serving
from tests.waiting import wait_until

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def puller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Run a server that may pull from this machine."""
    with running(tmp_path_factory.mktemp("models"), PUNA_PRIVATE_REGISTRIES="127.0.0.1") as server:
        yield server


@pytest.fixture
def registry(tiny_file: Path) -> Iterator[Registry]:
    with serving(Registry(Published.of(tiny_file.read_bytes()))) as registry:
        yield registry


def puna(server: Server, *words: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"PUNA_HOST": server.url, "PUNA_NOHISTORY": "1"}
    return commands.run(*words, env=env)


def test_ollamas_client_pulls_a_model_and_uses_it(puller: Server, registry: Registry) -> None:
    steps = list(puller.client.pull(registry.name, insecure=True, stream=True))
    assert [steps[0].status, steps[-1].status] == ["pulling manifest", "success"]
    digest = registry.published.model_digest
    layer = [step for step in steps if step.digest == digest][-1]
    assert (layer.status, layer.completed) == (f"pulling {digest[7:19]}", layer.total)
    name = registry.name.removeprefix("http://") + ":latest"
    assert name in [model.model for model in puller.client.list().models]
    assert (
        1
        <= (
            puller.client.generate(name, "hello", options={"temperature": 0, "num_predict": 4}).eval_count
            or 0
        )
        <= 4
    )
    older = {"name": registry.name, "insecure": True, "stream": False}
    again = puller.http.post("/api/pull", json=older)
    assert (again.json(), again.headers["content-type"]) == ({"status": "success"}, "application/json")
    puller.unload()
    puller.client.delete(name)


def test_pull_errors_are_reported_in_the_stream_or_by_the_status(puller: Server, registry: Registry) -> None:
    missing = {"model": f"http://{registry.address}/team/other", "insecure": True}
    answer = puller.http.post("/api/pull", json=missing)
    assert answer.status_code == 200
    assert [json.loads(line) for line in answer.text.splitlines()] == [
        {"status": "pulling manifest"},
        {"error": "pull model manifest: file does not exist"},
    ]
    answer = puller.http.post("/api/pull", json=missing | {"stream": False})
    assert (answer.status_code, answer.json()["error"]) == (500, "pull model manifest: file does not exist")
    answer = puller.http.post("/api/pull", json={"model": "a model"})
    assert (answer.status_code, answer.json()["error"]) == (400, "invalid model name")
    with pytest.raises(ollama.ResponseError, match="insecure protocol http"):
        puller.client.pull(registry.name)


def test_pull_cannot_reach_private_addresses_by_default(server: Server, registry: Registry) -> None:
    with pytest.raises(ollama.ResponseError, match="not a public address"):
        server.client.pull(registry.name, insecure=True)
    assert registry.requested == []


def test_command_line_pulls_and_runs_a_missing_model(puller: Server, registry: Registry) -> None:
    done = puna(puller, "pull", "--insecure", registry.name)
    assert (done.returncode, done.stdout) == (0, "")
    lines = done.stderr.splitlines()
    assert lines[0] == "pulling manifest"
    assert f"pulling {registry.published.model_digest[7:19]}" in lines
    assert lines[-1] == "success"
    name = registry.name.removeprefix("http://")
    ran = puna(puller, "run", name, "--seed", "1", "--num-predict", "4", "hello")
    assert ran.returncode == 0, ran.stderr
    other = puna(puller, "run", f"{registry.address}/team/other", "hello")
    assert other.returncode == 1
    assert "cannot be pulled from" in other.stderr
    assert "puna run FILE.gguf" in other.stderr
    puller.unload()
    assert puna(puller, "rm", name).returncode == 0


def test_disconnecting_ends_the_pull_and_the_next_one_resumes(puller: Server, registry: Registry) -> None:
    model = registry.published.model_digest
    template = registry.published.layer(1)
    entered, left = threading.Event(), threading.Event()

    def intercept(handler: BaseHTTPRequestHandler) -> bool:
        if handler.path.endswith(template):
            entered.set()
            left.wait(60)
        return False

    registry.intercept = intercept
    name = registry.name.removeprefix("http://") + ":latest"
    with puller.open_request("/api/pull", {"model": registry.name, "insecure": True}):
        assert entered.wait(60)
    left.set()
    registry.intercept = lambda handler: False
    puller.client.pull(registry.name, insecure=True)
    assert name in [entry.model for entry in puller.client.list().models]
    assert sum(path.endswith(model) for path, _ in registry.requested) == 1
    puller.client.delete(name)


def test_create_pulls_the_model_it_derives_from(puller: Server, registry: Registry) -> None:
    with pytest.raises(ollama.ResponseError, match="pull model manifest: "):  # the registry has no TLS
        puller.client.create("mine", from_=f"{registry.address}/team/model", system="Be brief.")
    puller.client.pull(registry.name, insecure=True)
    created = puller.client.create("mine", from_=f"{registry.address}/team/model", system="Be brief.")
    assert created.status == "success"
    for name in ("mine", registry.name.removeprefix("http://")):  # or other tests would find its layers
        puller.client.delete(name)


def test_ollamas_client_and_the_command_line_push_a_model(puller: Server, registry: Registry) -> None:
    puller.client.pull(registry.name, insecure=True)
    source = registry.name.removeprefix("http://")
    with serving(Receiving()) as target:
        name = f"{target.address}/team/model"
        puller.client.copy(source, name)
        steps = list(puller.client.push(target.name, insecure=True, stream=True))
        assert [steps[0].status, steps[-1].status] == ["retrieving manifest", "success"]
        digest = registry.published.model_digest
        layer = [step for step in steps if step.digest == digest][-1]
        assert (layer.status, layer.completed) == (f"pushing {digest[7:19]}", layer.total)
        assert target.blobs == registry.published.blobs
        target.blobs.clear()
        done = puna(puller, "push", "--insecure", name)
        assert (done.returncode, done.stdout) == (0, "")
        assert done.stderr.splitlines()[-2:] == ["success", f"You can find your model at {name}"]
        assert target.blobs == registry.published.blobs
    answer = puller.http.post("/api/push", json={"model": "model"})
    lines = [json.loads(line) for line in answer.text.splitlines()]
    assert lines[0] == {"status": "retrieving manifest"}
    assert "puna cp model YOU/model" in lines[-1]["error"]
    answer = puller.http.post("/api/push", json={})
    assert (answer.status_code, answer.json()["error"]) == (400, "model is required")
    for each in (source, name):
        puller.client.delete(each)


@contextmanager
def dripping(registry: Registry) -> Iterator[threading.Event]:
    """Make `registry` send a byte at a time within the block. Yields an event that is set once it does."""
    over, requested = threading.Event(), threading.Event()

    def intercept(handler: BaseHTTPRequestHandler) -> bool:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nx-slow: ")
        requested.set()
        with contextlib.suppress(OSError):  # the client has disconnected
            while not over.wait(0.05):
                handler.wfile.write(b"a")
        handler.close_connection = True
        return True

    registry.intercept = intercept
    try:
        yield requested
    finally:
        over.set()


def threads(server: Server) -> int:
    return psutil.Process(server.process.pid).num_threads()


def test_slow_registries_do_not_block_others_and_leave_no_threads(
    puller: Server, registry: Registry, tiny_file: Path
) -> None:
    slow = serving(Registry(Published.of(tiny_file.read_bytes())))
    with slow as other, dripping(other) as requested, ExitStack() as clients:
        puller.http.get("/api/tags")
        before = threads(puller)
        for _ in range(5):
            clients.enter_context(puller.open_request("/api/pull", {"model": other.name, "insecure": True}))
        assert requested.wait(60)
        puller.client.pull(registry.name, insecure=True)
        wait_until(lambda: threads(puller) >= before + 4, "the slow transfers")
        clients.close()  # the clients disconnect
        wait_until(lambda: threads(puller) <= before + 1, "the end of their threads", timeout_s=30)
    puller.client.delete(registry.name.removeprefix("http://"))
    assert "Traceback" not in puller.log.read_text()


def test_registry_has_four_transfers_at_once_and_others_are_told_to_wait(
    puller: Server, registry: Registry
) -> None:
    body = {"model": registry.name, "insecure": True}
    with dripping(registry) as requested, ExitStack() as clients:
        for _ in range(4):
            clients.enter_context(puller.open_request("/api/pull", body))
        assert requested.wait(60)
        wait_until(lambda: len(registry.requested) == 4, "four transfers")
        with puller.http.stream("POST", "/api/pull", json=body) as answer:
            line = json.loads(next(answer.iter_lines()))
    assert line == {"status": "waiting for 4 other transfers"}
    assert len(registry.requested) == 4


def test_forbidden_addresses_and_unreachable_registries_have_different_errors(
    server: Server, puller: Server, registry: Registry
) -> None:
    private = {"model": registry.name, "insecure": True, "stream": False}
    answer = server.http.post("/api/pull", json=private)
    assert answer.status_code == 400
    assert "start the server with PUNA_PRIVATE_REGISTRIES=127.0.0.1" in answer.json()["error"]
    answer = puller.http.post("/api/pull", json={**private, "insecure": False})
    assert answer.status_code == 400
    unreachable = {**private, "model": f"http://127.0.0.1:{free_port()}/team/model"}
    answer = puller.http.post("/api/pull", json=unreachable)
    assert answer.status_code == 502
    assert "Connection refused" in answer.json()["error"]

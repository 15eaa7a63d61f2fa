"""Failures around a generation: runners die, clients disconnect, ports are taken, signals arrive."""

from __future__ import annotations

import contextlib
import json
import re
import resource
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import openai
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.servers import Server, add_model, command, environment, running
from tests.held import HeldRunners, wait_until_stopped
from tests.tiny.llama import TinyLlama, tiny_llama_gguf
from tests.waiting import PATIENCE_S, wait_until, wait_until_asleep

pytestmark = pytest.mark.e2e

#: Generates for minutes unless stopped.
LONG = {"temperature": 0, "num_predict": -1, "num_ctx": 8192}
LONG_BODY = {"model": "endless", "prompt": "once upon a time", "options": LONG}
SHORT_BODY = {"model": "endless", "prompt": "hello", "stream": False, "options": {**LONG, "num_predict": 2}}


@pytest.fixture(scope="module")
def one_at_a_time(servers: Callable[..., Server]) -> Server:
    """Return a server that computes one request at a time, so that a stray generation blocks the next."""
    server = servers(PUNA_NUM_PARALLEL="1")
    server.unload()
    return server


def check_answer(server: Server) -> None:
    assert server.http.post("/api/generate", json=SHORT_BODY).json()["eval_count"] == 2


@contextmanager
def one_cancelled(server: Server) -> Iterator[None]:
    """Check that a client disconnecting within the block makes the server stop its work."""

    def count() -> float:
        families = text_string_to_metric_families(server.http.get("/metrics").text)
        samples = [sample for family in families for sample in family.samples]
        return sum(
            sample.value
            for sample in samples
            if sample.name == "puna_requests_total" and sample.labels["outcome"] == "cancelled"
        )

    wait_until(lambda: server.running_requests() == [], "the end of earlier requests")
    before = count()
    yield
    wait_until(lambda: count() == before + 1, "the end of the work")
    check_answer(server)


def kill_runner(server: Server) -> None:
    server.runner().kill()


def test_runner_killed_mid_stream_gives_an_error_line_and_is_replaced(
    one_at_a_time: Server,
) -> None:
    with one_at_a_time.http.stream("POST", "/api/generate", json=LONG_BODY) as response:
        lines = response.iter_lines()
        assert json.loads(next(lines))["done"] is False
        kill_runner(one_at_a_time)
        rest = [json.loads(line) for line in lines]
    assert "model runner has unexpectedly stopped" in rest[-1]["error"]
    assert not any(line.get("done") for line in rest)
    check_answer(one_at_a_time)


def test_runner_killed_mid_stream_raises_in_the_openai_client(one_at_a_time: Server) -> None:
    client = openai.OpenAI(base_url=one_at_a_time.url + "/v1/", api_key="unused", max_retries=0)
    stream = client.completions.create(model="endless", prompt="once", max_tokens=80_000, stream=True)
    next(stream)
    kill_runner(one_at_a_time)
    with pytest.raises(openai.APIError, match="model runner has unexpectedly stopped"):
        list(stream)
    check_answer(one_at_a_time)


def test_runner_killed_without_streaming_gives_status_500(one_at_a_time: Server) -> None:
    check_answer(one_at_a_time)
    with ThreadPoolExecutor(1) as pool:
        pending = pool.submit(one_at_a_time.http.post, "/api/generate", json=LONG_BODY | {"stream": False})
        wait_until(lambda: one_at_a_time.requests() == (1, 0), "the request's turn")
        kill_runner(one_at_a_time)
        response = pending.result()
    assert response.status_code == 500
    assert "model runner has unexpectedly stopped" in response.json()["error"]
    check_answer(one_at_a_time)


def test_runner_killed_while_idle_is_replaced(one_at_a_time: Server) -> None:
    check_answer(one_at_a_time)
    kill_runner(one_at_a_time)
    check_answer(one_at_a_time)


@pytest.fixture(scope="module")
def impatient(servers: Callable[..., Server]) -> Server:
    """Return a server that soon treats an unresponsive runner as hung."""
    server = servers(PUNA_STEP_TIMEOUT="3s")
    server.unload()
    return server


@pytest.mark.slow
def test_runner_that_hangs_while_idle_is_replaced(impatient: Server) -> None:
    check_answer(impatient)
    runner = impatient.runner()
    runner.suspend()
    check_answer(impatient)
    assert not runner.is_running()


@pytest.mark.slow
def test_runner_that_hangs_at_work_is_ended_and_replaced(impatient: Server) -> None:
    with impatient.http.stream("POST", "/api/generate", json=LONG_BODY) as response:
        lines = response.iter_lines()
        next(lines)
        runner = impatient.runner()
        runner.suspend()
        rest = [json.loads(line) for line in lines]
    assert rest[-1]["error"] == "the model runner was ended: it did not answer for 3 s"
    check_answer(impatient)
    assert not runner.is_running()


@pytest.mark.slow
def test_model_that_keeps_crashing_is_refused_for_a_while(
    tmp_path: Path, endless_file: Path, tiny_file: Path
) -> None:
    with running(tmp_path) as server:
        add_model(server, "endless", endless_file)
        add_model(server, "tiny", tiny_file)
        for _ in range(3):
            with server.http.stream("POST", "/api/generate", json=LONG_BODY) as response:
                lines = response.iter_lines()
                next(lines)
                kill_runner(server)
                assert "killed by signal 9" in json.loads(list(lines)[-1])["error"]
        refused = server.http.post("/api/generate", json=SHORT_BODY)
        assert refused.status_code == 503
        found = re.search(r"crashed 3 times in a row .* another (\d) s.*signal 9", refused.json()["error"])
        assert found is not None, refused.text
        assert server.client.generate("tiny", "hello", options={"num_predict": 2}).eval_count
        metrics = server.http.get("/metrics").text
        assert 'puna_crashes_total{model="endless:latest"} 3.0' in metrics
        assert 'puna_requests_total{model="endless:latest",outcome="error"} 4.0' in metrics

        def is_back() -> bool:
            return server.http.post("/api/generate", json=SHORT_BODY).status_code == 200

        wait_until(is_back, "the end of the pause")


def test_disconnecting_mid_stream_stops_the_generation(one_at_a_time: Server) -> None:
    with (
        one_cancelled(one_at_a_time),
        one_at_a_time.http.stream("POST", "/api/generate", json=LONG_BODY) as response,
    ):
        next(response.iter_lines())


def test_disconnecting_while_waiting_for_the_answer_stops_the_generation(one_at_a_time: Server) -> None:
    with one_cancelled(one_at_a_time), one_at_a_time.open_request("/api/chat", chat(stream=False)):
        wait_until(lambda: one_at_a_time.requests() == (1, 0), "the request's turn")


def test_disconnecting_while_queued_leaves_the_queue(one_at_a_time: Server) -> None:
    with one_at_a_time.open_request("/api/generate", LONG_BODY | {"stream": False}):
        wait_until(lambda: one_at_a_time.requests() == (1, 0), "the first request's turn")
        with one_at_a_time.open_request("/api/chat", chat(stream=True)):
            wait_until(lambda: one_at_a_time.requests() == (1, 1), "the request in the queue")
        wait_until(lambda: one_at_a_time.requests() == (1, 0), "the queue to be empty")
    check_answer(one_at_a_time)


def chat(*, stream: bool) -> dict[str, object]:
    message = {"role": "user", "content": "tell me everything"}
    return {"model": "endless", "messages": [message], "stream": stream, "options": LONG}


def test_idle_runner_uses_no_processor_time(one_at_a_time: Server) -> None:
    with one_at_a_time.http.stream("POST", "/api/generate", json=LONG_BODY) as response:
        next(response.iter_lines())
    wait_until_asleep(one_at_a_time.runner().pid)


def test_port_in_use_gives_one_clear_line_and_status_1(one_at_a_time: Server) -> None:
    host = one_at_a_time.url.removeprefix("http://")
    ended = subprocess.run(
        command(),
        env=environment(one_at_a_time.models, PUNA_HOST=host),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert ended.returncode == 1
    (line,) = ended.stderr.strip().splitlines()
    assert host in line
    assert "already in use" in line
    assert ended.stdout == ""


def test_unknown_host_gives_one_clear_line_and_status_1(tmp_path: Path) -> None:
    ended = subprocess.run(
        command(),
        env=environment(tmp_path, PUNA_HOST="no-such-host.invalid:1234"),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert ended.returncode == 1
    (line,) = ended.stderr.strip().splitlines()
    assert "no-such-host.invalid:1234" in line


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_streams_runners_and_the_server_with_status_0(
    tmp_path: Path, endless_file: Path, number: signal.Signals
) -> None:
    with running(tmp_path) as server:
        add_model(server, "endless", endless_file)
        with server.http.stream("POST", "/api/generate", json=LONG_BODY) as response:
            lines = response.iter_lines()
            next(lines)
            runner = server.runner()
            assert server.stop(number) == 0
            rest = [json.loads(line) for line in lines]
        assert rest[-1] == {"error": "the server is shutting down"}
        assert not runner.is_running()


def test_killed_server_leaves_no_runner_behind(tmp_path: Path, endless_file: Path) -> None:
    with running(tmp_path) as server:
        add_model(server, "endless", endless_file)
        check_answer(server)
        runner = server.runner()
        server.stop(signal.SIGKILL)
        wait_until(lambda: not alive(runner), "the runner's end")


def alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_interrupted_upload_leaves_no_blob(one_at_a_time: Server) -> None:
    digest = "sha256:" + "ab" * 32
    address = one_at_a_time.url.removeprefix("http://").split(":")
    with socket.create_connection((address[0], int(address[1]))) as connection:
        head = f"POST /api/blobs/{digest} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n"
        connection.sendall(head.encode() + b"x" * 10_000)
        wait_until(lambda: any(blobs(one_at_a_time, "tmp-*")), "the upload's file")
    wait_until(lambda: not any(blobs(one_at_a_time, "tmp-*")), "the removal of the upload's file")
    assert one_at_a_time.http.head(f"/api/blobs/{digest}").status_code == 404


def blobs(server: Server, pattern: str) -> list[Path]:
    return list((server.models / "blobs").glob(pattern))


def test_disconnecting_while_the_model_loads_cancels_the_load(
    holding_server: Server, held: HeldRunners
) -> None:
    server = holding_server
    server.unload()
    with held.stopping():
        with server.open_request("/api/generate", SHORT_BODY):
            wait_until_stopped(server.runner())
            (model,) = server.http.get("/api/ps").json()["models"]
            assert "loading" in model
        wait_until(lambda: server.client.ps().models == [], "the half-loaded model to leave the list")
        wait_until(lambda: not server.runners(), "the end of the half-started runner")
    check_answer(server)


def test_model_too_large_for_memory_reports_how_much_it_needs(one_at_a_time: Server, tmp_path: Path) -> None:
    path = tiny_llama_gguf(tmp_path / "huge.gguf", TinyLlama(context=2**30))
    add_model(one_at_a_time, "huge", path)
    body = {"model": "huge", "prompt": "x", "options": {"num_ctx": 2**30}}
    response = one_at_a_time.http.post("/api/generate", json=body)
    assert response.status_code == 500
    assert re.search(r"memory.*\d.*GiB.*\d.*GiB", response.json()["error"]), response.json()
    check_answer(one_at_a_time)


def test_unlimited_context_setting_reports_the_context_that_fits(tmp_path: Path) -> None:
    path = tiny_llama_gguf(tmp_path / "endless.gguf", TinyLlama(context=2**31 - 1))
    with running(tmp_path / "models", PUNA_CONTEXT_LENGTH=str(2**31 - 1)) as server:
        add_model(server, "endless", path)
        body = {"model": "endless", "prompt": "x", "stream": False, "options": {"seed": 0, "num_predict": 1}}
        refused = server.http.post("/api/generate", json=body)
        assert refused.status_code == 500
        fitting = re.search(r"num_ctx (\d+) would fit", refused.json()["error"])
        assert fitting, refused.text
        body["options"]["num_ctx"] = int(fitting[1]) // 2  # other processes may take memory in the meantime
        assert server.http.post("/api/generate", json=body).status_code == 200


def test_connections_may_exceed_the_shells_open_file_limit(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.ExitStack() as stack:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
        try:
            started = stack.enter_context(running(tmp_path, started=True))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        host, port = started.url.removeprefix("http://").split(":")
        for _ in range(300):
            connection = stack.enter_context(socket.create_connection((host, int(port)), timeout=PATIENCE_S))
            connection.sendall(b"HEAD /api/version HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert connection.recv(12) == b"HTTP/1.1 200"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="an always-full device needs Linux")
def test_full_disk_loses_only_the_log(tmp_path: Path, endless_file: Path) -> None:
    with Path("/dev/full").open("w") as full, running(tmp_path, errors=full) as server:
        add_model(server, "endless", endless_file)
        check_answer(server)
        for runner in server.runners():
            runner.kill()
        wait_until(lambda: not server.runners(), "the end of the runner")
        check_answer(server)

"""Clients that keep connections open, send partial requests, do not read, or come in crowds."""

from __future__ import annotations

import contextlib
import json
import re
import resource
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import psutil
import pytest

from puna.runner.client import MAX_UNREAD
from tests.e2e.servers import Server, add_model, running
from tests.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.e2e

HALF = b"POST /api/generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{"
GREEDY = {"temperature": 0, "num_predict": 2}
BUSY = {"error": "server busy, please try again.  maximum pending requests exceeded"}


@contextlib.contextmanager
def crowd(server: Server, count: int, data: bytes) -> Iterator[list[socket.socket]]:
    """Open `count` connections and send `data` on each."""
    address = urlsplit(server.url)
    with contextlib.ExitStack() as stack:
        clients = []
        for _ in range(count):
            client = socket.create_connection((address.hostname, address.port), timeout=PATIENCE_S)
            clients.append(stack.enter_context(client))
            with contextlib.suppress(OSError):  # the server may have closed it already
                client.sendall(data)
        yield clients


def descriptors(server: Server) -> int:
    return psutil.Process(server.process.pid).num_fds()


def test_incomplete_requests_time_out_with_the_reason(tmp_path: Path) -> None:
    with running(tmp_path, PUNA_HEADER_TIMEOUT="1s", PUNA_CLIENT_TIMEOUT="1s") as server:
        before = descriptors(server)
        for data, setting in ((HALF[:20], "PUNA_HEADER_TIMEOUT"), (HALF, "PUNA_CLIENT_TIMEOUT")):
            with crowd(server, 50, data) as clients:
                for client in clients:
                    answer = client.makefile("rb").read().decode()
                    assert answer.startswith("HTTP/1.1 408 ")
                    assert setting in answer
            assert httpx.get(server.url + "/api/version").status_code == 200
        wait_until(lambda: descriptors(server) <= before, "the descriptors to be released")


def test_connections_beyond_the_limit_lock_nobody_out(tmp_path: Path) -> None:
    with running(tmp_path, PUNA_MAX_CONNECTIONS="100") as server, crowd(server, 200, HALF):
        for _ in range(20):
            assert httpx.get(server.url + "/api/version").status_code == 200
        assert len(psutil.Process(server.process.pid).net_connections()) <= 102
        assert "cannot accept" not in server.log.read_text()


def test_server_without_descriptors_keeps_serving_and_logs_little(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        with server.http as open_before:
            assert open_before.get("/api/version").status_code == 200
            _, hard = resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE)
            resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (descriptors(server), hard))
            with crowd(server, 20, HALF):
                wait_until(lambda: "cannot accept" in server.log.read_text(), "a line in the log")
                assert open_before.get("/api/version").status_code == 200
            lines = [line for line in server.log.read_text().splitlines() if "accept" in line]
            assert re.search(r"Too many open files \(\d{2,} failures", lines[0])
            assert len(server.log.read_bytes()) < 10_000
            resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (1024, hard))
        assert httpx.get(server.url + "/api/version", timeout=PATIENCE_S).status_code == 200


@pytest.mark.slow
def test_unread_answer_ends_instead_of_growing(server: Server) -> None:
    body = {
        "model": "endless",
        "prompt": "once",
        "logprobs": True,
        "top_logprobs": 20,
        "options": {"temperature": 0, "num_predict": -1, "num_ctx": 8192},
    }
    server.http.post("/api/generate", json=body | {"options": {**GREEDY, "num_ctx": 8192}})
    before = generated(server)
    content = json.dumps(body).encode()
    head = (
        "POST /api/generate HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        f"Content-Length: {len(content)}\r\n\r\n"
    ).encode()
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        address = urlsplit(server.url)
        client.connect((address.hostname, address.port))
        client.sendall(head + content)
        wait_until(lambda: generated(server) > before, "the first token")
        wait_until(lambda: server.requests() == (0, 0), "the end of the generation")
        answer = client.makefile("rb").read().decode()
    assert f"{MAX_UNREAD} pieces of the answer are unread: the client reads too slowly" in answer


def test_requests_waiting_for_a_loaded_model_count_towards_the_queue(
    tmp_path: Path, endless_file: Path
) -> None:
    long = {"model": "endless", "prompt": "once", "options": {"num_predict": -1, "num_ctx": 8192}}
    short = {"model": "endless", "prompt": "x", "stream": False, "options": {**GREEDY, "num_ctx": 8192}}
    with running(tmp_path, PUNA_MAX_QUEUE="2", PUNA_NUM_PARALLEL="1") as server:
        add_model(server, "endless", endless_file)
        with server.open_request("/api/generate", long):
            wait_until(lambda: server.requests() == (1, 0), "the first request's turn")
            with server.open_request("/api/generate", long), server.open_request("/api/generate", long):
                wait_until(lambda: server.requests() == (1, 2), "two waiting requests")
                refused = server.http.post("/api/generate", json=short)
                assert (refused.status_code, refused.json()) == (503, BUSY)
                texts = {"model": "endless", "input": "x", "options": {"num_ctx": 8192}}
                other = server.http.post("/api/embed", json=texts)
                assert other.status_code == 503
        wait_until(lambda: server.requests() == (0, 0), "the abandoned requests to end")
        assert server.http.post("/api/generate", json=short).json()["eval_count"] == 2


def test_client_with_many_waiting_requests_does_not_delay_or_exclude_another(
    tmp_path: Path, endless_file: Path
) -> None:
    """The requests have different client addresses, which a proxy on this machine may set."""
    options = {"num_predict": 20, "temperature": 0, "num_ctx": 8192}
    body = {"model": "endless", "prompt": "x", "stream": False, "options": options}
    long = body | {"options": options | {"num_predict": -1}}
    ended: list[tuple[datetime, str]] = []  # times as the server reports them: here they may arrive together
    with running(tmp_path, PUNA_MAX_QUEUE="8", PUNA_NUM_PARALLEL="1") as server:
        add_model(server, "endless", endless_file)

        def ask(client: str) -> None:
            headers = {"X-Forwarded-For": client}
            answer = httpx.post(f"{server.url}/api/generate", json=body, headers=headers, timeout=120)
            assert answer.status_code == 200, answer.text
            ended.append((datetime.fromisoformat(answer.json()["created_at"]), client))

        with ThreadPoolExecutor(16) as pool:
            with server.open_request("/api/generate", long):
                wait_until(lambda: server.requests() == (1, 0), "the first request's turn")
                futures = [pool.submit(ask, "192.0.2.1") for _ in range(8)]
                wait_until(lambda: server.requests() == (1, 8), "a full queue")
                futures.append(pool.submit(ask, "192.0.2.2"))
                wait_until(lambda: server.requests() == (1, 9), "one more")
            for future in futures:
                future.result()
    assert [client for _, client in sorted(ended)].index("192.0.2.2") == 1


def generated(server: Server) -> int:
    """Return the number of tokens generated by the models in memory."""
    return sum(model["tokens"]["generated"] for model in server.http.get("/api/ps").json()["models"])

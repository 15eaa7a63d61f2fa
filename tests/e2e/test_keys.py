"""A server that requires keys, and one that speaks TLS."""

from __future__ import annotations

import json
import os
import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import ollama
import openai
import pytest
import trustme

from tests import commands
from tests.e2e.servers import Server, add_model, command, environment, running
from tests.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.e2e

GREEDY = {"temperature": 0, "num_predict": 2}
ASK = {"model": "tiny", "prompt": "hello", "stream": False, "options": GREEDY}


def puna(home: Path, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    return commands.run(*arguments, env=environment(home, **settings))


def new_key(server: Server, *options: str) -> str:
    created = puna(server.models, "key", "new", *options)
    assert created.returncode == 0, created.stderr
    return created.stdout.strip()


@contextmanager
def half_sent(server: Server, headers: dict[str, str] | None = None) -> Iterator[socket.socket]:
    """Open a connection and send a request's header, but not its body."""
    address = urlsplit(server.url)
    lines = ["POST /api/generate HTTP/1.1", "Host: localhost", "Content-Length: 1000"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    with socket.create_connection((address.hostname, address.port), timeout=PATIENCE_S) as client:
        client.sendall("\r\n".join([*lines, "", ""]).encode())
        yield client


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory, tiny_file: Path) -> Iterator[Server]:
    """Run a server with the model `tiny` that then requires keys."""
    with running(tmp_path_factory.mktemp("closed"), PUNA_NUM_PARALLEL="1") as server:
        add_model(server, "tiny", tiny_file)
        new_key(server, "--name", "first")
        yield server


def test_only_the_greeting_is_available_without_a_key(closed: Server) -> None:
    http = closed.http
    assert http.get("/").text == "Ollama is running"
    for path in ("/api/tags", "/api/version", "/nothing"):
        refused = http.get(path)
        assert refused.status_code == 401
        assert refused.headers["www-authenticate"] == 'Bearer realm="puna"'
        assert "Authorization: Bearer" in refused.json()["error"]
    wrong = http.post("/v1/chat/completions", json={}, headers=bearer("puna-wrong"))
    assert wrong.status_code == 401
    assert wrong.headers["www-authenticate"] == 'Bearer realm="puna", error="invalid_token"'
    assert wrong.json()["error"]["type"] == "authentication_error"


def test_body_is_not_read_without_a_valid_key(closed: Server) -> None:
    with half_sent(closed) as client:
        assert client.recv(100).startswith(b"HTTP/1.1 401 ")


def test_preflights_need_no_key_and_web_pages_can_read_refusals(closed: Server) -> None:
    page = {"origin": "http://localhost:3000"}
    preflight = closed.http.options("/api/chat", headers=page | {"access-control-request-method": "POST"})
    assert preflight.status_code == 204
    refused = closed.http.get("/api/tags", headers=page)
    assert refused.status_code == 401
    assert refused.headers["access-control-allow-origin"] == "http://localhost:3000"


def test_common_clients_and_the_command_line_send_their_keys(closed: Server) -> None:
    key = new_key(closed)
    native = ollama.Client(host=closed.url, headers=bearer(key))
    assert native.generate("tiny", "hello", options=GREEDY).eval_count == 2
    client = openai.OpenAI(base_url=closed.url + "/v1/", api_key=key, max_retries=0)
    assert client.completions.create(model="tiny", prompt="hello", max_tokens=2).choices
    assert closed.http.post("/api/generate", json=ASK, headers={"x-api-key": key}).status_code == 200
    shown = puna(closed.models, "list", PUNA_HOST=closed.url, PUNA_API_KEY=key)
    assert "tiny" in shown.stdout
    without = puna(closed.models, "list", PUNA_HOST=closed.url)
    assert (without.returncode, "PUNA_API_KEY" in without.stderr) == (1, True)


def test_key_grants_only_its_scopes(closed: Server) -> None:
    keys = {scope: bearer(new_key(closed, "--scope", scope)) for scope in ("read", "generate", "manage")}
    http = closed.http

    def allowed(method: str, path: str, body: object = None) -> set[str]:
        found = set()
        for scope, headers in keys.items():
            answer = http.request(method, path, json=body, headers=headers)
            if answer.status_code == 403:
                assert "needs the scope" in answer.text
            else:
                found.add(scope)
        return found

    assert allowed("GET", "/api/tags") == {"read"}
    assert allowed("POST", "/api/show", {"model": "tiny"}) == {"read"}
    assert allowed("POST", "/api/generate", ASK) == {"generate"}
    assert allowed("POST", "/v1/embeddings", {"model": "tiny", "input": "x"}) == {"generate"}
    assert allowed("POST", "/api/copy", {"source": "tiny", "destination": "twin"}) == {"manage"}
    assert allowed("DELETE", "/api/delete", {"model": "twin"}) == {"manage"}
    assert allowed("GET", "/api/debug/cache") == {"manage"}
    both = bearer(new_key(closed, "--scope", "generate,manage"))
    more = ASK | {"options": GREEDY | {"replicas": 2}}
    refused = http.post("/api/generate", json=more, headers=keys["generate"])
    assert refused.status_code == 403
    assert "number of replicas needs the scope 'manage'" in refused.json()["error"]
    assert http.post("/api/generate", json=more, headers=both).status_code == 200
    unload = {"model": "tiny", "keep_alive": 0}
    assert http.post("/api/generate", json=unload, headers=keys["generate"]).status_code == 403
    assert http.post("/api/generate", json=unload, headers=both).json()["done_reason"] == "unload"


def test_rate_and_concurrency_limits_of_a_key_are_enforced(closed: Server) -> None:
    http = closed.http
    rare = bearer(new_key(closed, "--rate", "2/min"))
    answers = [http.get("/api/version", headers=rare) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert 1 <= int(answers[2].headers["retry-after"]) <= 30
    single = bearer(new_key(closed, "--concurrency", "1"))
    with ExitStack() as first:

        def taken() -> bool:
            # One more each time, as the check may precede the previous one's effect.
            first.enter_context(half_sent(closed, single))
            return refused(http, single)

        wait_until(taken, "a refusal")
        second = http.post("/v1/completions", json={}, headers=single)
        assert (second.status_code, second.headers["retry-after"]) == (429, "1")
        assert second.json()["error"]["type"] == "rate_limit_error"
    wait_until(lambda: not refused(http, single), "the end of the first request")


def refused(http: httpx.Client, headers: dict[str, str]) -> bool:
    return http.get("/api/version", headers=headers).status_code == 429


def test_revoked_key_is_refused_at_once(closed: Server) -> None:
    key = new_key(closed, "--name", "lost")
    assert closed.http.get("/api/tags", headers=bearer(key)).status_code == 200
    assert puna(closed.models, "key", "revoke", "lost").returncode == 0
    assert closed.http.get("/api/tags", headers=bearer(key)).status_code == 401
    listed = puna(closed.models, "key", "list").stdout
    assert "first" in listed
    assert "lost" not in listed


def test_new_key_cannot_access_conversations_of_a_revoked_one_with_its_name(closed: Server) -> None:
    def named() -> httpx.Client:
        return httpx.Client(
            base_url=closed.url, headers=bearer(new_key(closed, "--name", "reused")), timeout=PATIENCE_S
        )

    request = {"model": "tiny", "input": "hello", "temperature": 0, "max_output_tokens": 1}
    with named() as former:
        first = former.post("/v1/responses", json=request).json()["id"]
        reads = (f"/v1/responses/{first}", f"/v1/responses/{first}/input_items")
        continued = request | {"previous_response_id": first}
        referred = request | {
            "input": [{"type": "item_reference", "id": former.get(reads[0]).json()["output"][0]["id"]}]
        }
        assert former.post("/v1/responses", json=continued).status_code == 200
        assert former.post("/v1/responses", json=referred).status_code == 200
        assert puna(closed.models, "key", "revoke", "reused").returncode == 0
    with named() as later:
        assert [later.get(path).status_code for path in reads] == [404, 404]
        assert later.delete(reads[0]).status_code == 404
        for body in (continued, referred):
            refused = later.post("/v1/responses", json=body)
            assert (refused.status_code, "not found" in refused.text) == (400, True)
            assert later.post("/v1/responses/input_tokens", json=body).status_code == 400


def test_keys_appear_neither_in_logs_nor_in_runners_environments(tmp_path: Path, tiny_file: Path) -> None:
    key = "a-key-of-the-environment"
    with running(tmp_path, PUNA_API_KEYS=key, PUNA_DEBUG="1") as server:
        with pytest.raises(ollama.ResponseError):
            server.client.list()
        os.environ["OLLAMA_API_KEY"] = key
        try:
            add_model(server, "tiny", tiny_file)
            assert server.client.generate("tiny", "hello", options=GREEDY).eval_count == 2
        finally:
            del os.environ["OLLAMA_API_KEY"]
        (runner,) = server.runners()
        assert key not in json.dumps(runner.environ())
        assert key not in server.log.read_text()


def test_server_reachable_by_strangers_warns(tmp_path: Path) -> None:
    with running(tmp_path / "open", PUNA_HOST="0.0.0.0:0") as server:
        assert "ANYBODY WHO CAN REACH 0.0.0.0:" in server.log.read_text()
    with running(tmp_path / "keys", PUNA_HOST="0.0.0.0:0", PUNA_API_KEYS="a-long-and-random-key") as server:
        text = server.log.read_text()
        assert "ANYBODY" not in text
        assert "unencrypted" in text
    with running(tmp_path / "local") as server:
        assert "puna key new" not in server.log.read_text()


def test_connections_can_be_encrypted(tmp_path: Path) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("localhost", "127.0.0.1")
    cert, key, trusted = (str(tmp_path / name) for name in ("cert.pem", "key.pem", "ca.pem"))
    certificate.cert_chain_pems[0].write_to_path(cert)
    certificate.private_key_pem.write_to_path(key)
    authority.cert_pem.write_to_path(trusted)
    with running(tmp_path, PUNA_TLS_CERT=cert, PUNA_TLS_KEY=key) as server:
        secure = server.url.replace("http://", "https://")
        context = ssl.create_default_context(cafile=trusted)
        assert httpx.get(secure + "/api/version", verify=context).status_code == 200
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            httpx.get(secure + "/api/version")
        with pytest.raises(httpx.HTTPError):
            httpx.get(server.url + "/api/version")
        shown = puna(server.models, "list", PUNA_HOST=secure, SSL_CERT_FILE=trusted)
        assert (shown.returncode, shown.stdout.split()[:1]) == (0, ["NAME"]), shown.stderr
        stranger = puna(server.models, "list", PUNA_HOST=secure)
        assert (stranger.returncode, "could not connect" in stranger.stderr) == (1, True)
        assert httpx.get(secure + "/", verify=context).text == "Ollama is running"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"PUNA_TLS_CERT": "cert.pem"}, "set both PUNA_TLS_CERT and PUNA_TLS_KEY"),
        ({"PUNA_TLS_CERT": "none.pem", "PUNA_TLS_KEY": "none.pem"}, "No such file"),
        ({"PUNA_API_KEYS_FILE": "none.json"}, "there is no such key file"),
    ],
)
def test_server_with_broken_security_settings_does_not_start(
    tmp_path: Path, settings: dict[str, str], words: str
) -> None:
    started = subprocess.run(
        command(), env=environment(tmp_path, **settings), capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert (started.returncode, words in started.stderr) == (1, True), started.stderr

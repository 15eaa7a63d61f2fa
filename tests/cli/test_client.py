"""The HTTP client and replies that no healthy server sends."""

from __future__ import annotations

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from puna.cli.client import Client
from puna.errors import ConnectionFailedError, ServerError
from puna.hosts import Host, parse_host
from tests.answering import answering

#: Path -> status and body. The truncated body announces more bytes than it sends.
ANSWERS: dict[str, tuple[int, bytes]] = {
    "/error": (400, b'{"error":"option \\"top_p\\" is wrong"}'),
    "/openai": (404, b'{"error":{"message":"no such model","type":"not_found"}}'),
    "/proxy": (502, b"<html>Bad gateway</html>"),
    "/page": (200, b"<!DOCTYPE html><html>Welcome</html>"),
    "/plain": (404, b"404 page not found"),
    "/empty-error": (500, b""),
    "/list": (200, b"[1, 2]"),
    "/empty": (200, b""),
    "/lines": (200, b'{"response":"a"}\n\n{"response":"b","done":true}\n'),
    "/broken-line": (200, b'{"response":"a"}\nnot JSON\n'),
    "/error-line": (200, b'{"response":"a"}\n{"error":"the runner died"}\n'),
    "/cut": (200, b'{"response":"a"}\n'),
}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        status, body = ANSWERS[self.path]
        self.send_response(status)
        self.send_header("Content-Length", str(len(body) + (100 if self.path == "/cut" else 0)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    with answering(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as server:
        yield parse_host(f"127.0.0.1:{server.server_port}")


@pytest.mark.parametrize(
    ("path", "status", "message"),
    [
        ("/error", 400, 'option "top_p" is wrong'),
        ("/openai", 404, "no such model"),
        ("/plain", 404, "404 Not Found: 404 page not found"),
        ("/empty-error", 500, "500 Internal Server Error"),
    ],
)
def test_an_error_keeps_its_text_and_status(host: Host, path: str, status: int, message: str) -> None:
    with Client(host) as client:
        for call in (client.post, lambda where, body: list(client.stream(where, body))):
            with pytest.raises(ServerError) as caught:
                call(path, {})
            assert (str(caught.value), caught.value.status_code) == (message, status)


def test_a_reply_that_is_not_an_object_is_an_error(host: Host) -> None:
    with Client(host) as client:
        assert client.post("/empty", {}) == {}
        with pytest.raises(ServerError, match="did not answer with a JSON object"):
            client.post("/list", {})


@pytest.mark.parametrize(("path", "status"), [("/proxy", "502 Bad Gateway"), ("/page", "200 OK")])
def test_error_names_the_server_instead_of_showing_its_page(host: Host, path: str, status: str) -> None:
    with Client(host) as client:
        for call in (client.post, lambda where, body: list(client.stream(where, body))):
            with pytest.raises(ConnectionFailedError) as caught:
                call(path, {})
            assert str(caught.value).startswith(
                f"the server at {host.client_url} is neither Puna nor Ollama ({status})"
            )
            assert "<html>" not in str(caught.value)


def test_a_stream_is_read_line_by_line(host: Host) -> None:
    with Client(host) as client:
        assert list(client.stream("/lines", {})) == [{"response": "a"}, {"response": "b", "done": True}]


@pytest.mark.parametrize(
    ("path", "error", "message"),
    [
        ("/broken-line", ServerError, "not JSON"),
        ("/error-line", ServerError, "^the runner died$"),
        ("/cut", ConnectionFailedError, "closed the connection in the middle of the answer"),
    ],
)
def test_output_before_an_error_is_not_lost(
    host: Host, path: str, error: type[Exception], message: str
) -> None:
    with Client(host) as client:
        items = client.stream(path, {})
        assert next(items) == {"response": "a"}
        with pytest.raises(error, match=message):
            next(items)


def test_a_missing_server_is_reported_with_a_hint() -> None:
    with Client(parse_host("127.0.0.1:9")) as client:
        assert not client.is_up()
        with pytest.raises(ConnectionFailedError, match=r"127\.0\.0\.1:9, run 'puna serve' to start it"):
            client.get("/api/tags")
    with (
        Client(parse_host("https://127.0.0.1:9")) as client,
        pytest.raises(ConnectionFailedError, match="check PUNA_HOST"),
    ):
        client.get("/api/tags")


def test_a_web_proxy_is_not_used_for_this_machine(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    with Client(host) as client:
        assert client.post("/empty", {}) == {}

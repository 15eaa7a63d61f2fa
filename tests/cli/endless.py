"""A server whose answers end only when the client disconnects, so that no test depends on timing."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from puna.hosts import Host, parse_host
from tests.answering import answering


class EndlessServer(ThreadingHTTPServer):
    """A server of the part of the API a chat needs; its model is loaded while `loaded` is set."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.loaded = threading.Event()
        self.loaded.set()
        self.read = threading.Event()  # the prompt is read, for requests that want progress
        self.read.set()
        self.asked = threading.Event()  # a request has arrived
        self.abandoned = threading.Semaphore(0)  # released for every request whose client disconnected

    @property
    def host(self) -> Host:
        return parse_host(f"127.0.0.1:{self.server_port}")

    def handle_error(self, *_: object) -> None:
        """Print nothing: clients disconnect on purpose."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: EndlessServer

    def do_HEAD(self) -> None:
        self._reply({})

    def do_GET(self) -> None:
        loading = [] if self.server.loaded.is_set() else [{"name": "tiny:latest", "loading": 0.25}]
        self._reply({"models": loading})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/api/show":
            self._reply({"capabilities": ["completion"]})
            return
        self.server.asked.set()
        try:
            self._wait_until_loaded()
            if body.get("stream") is False:
                self._reply({"done": True})
            else:
                self._stream(body.get("options", {}).get("num_predict"), progress=body.get("return_progress"))
        except OSError:
            self.server.abandoned.release()
            self.close_connection = True

    def _wait_until_loaded(self) -> None:
        self.connection.settimeout(0.01)
        while not self.server.loaded.is_set():
            try:
                if not self.connection.recv(1):
                    raise ConnectionResetError
            except TimeoutError:
                continue
        self.connection.settimeout(None)

    def _stream(self, limit: int | None, *, progress: bool) -> None:
        """Send words forever, or `limit` of them, once the prompt is read."""
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        while progress and not self.server.read.wait(0.05):
            self._chunk({"response": "", "prompt_progress": {"total": 1000, "processed": 420}, "done": False})
        sent = 0
        while limit is None or sent < limit:
            self._chunk({"message": {"content": "word "}, "response": "word ", "done": False})
            sent += 1
        self._chunk({"done": True})
        self.wfile.write(b"0\r\n\r\n")

    def _chunk(self, item: dict[str, Any]) -> None:
        line = json.dumps(item).encode() + b"\n"
        self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))

    def _reply(self, item: dict[str, Any]) -> None:
        text = json.dumps(item).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@contextmanager
def endless_server() -> Iterator[EndlessServer]:
    with answering(EndlessServer()) as server:
        yield server

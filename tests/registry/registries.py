"""Registries to pull from: Debian's docker-registry, and one that fails on demand."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Protocol, TypeVar

import httpx
import pytest

from puna.store.manifest import CONFIG, MANIFEST, MODEL, TEMPLATE
from tests.answering import answering
from tests.ports import free_port
from tests.waiting import PATIENCE_S, wait_until


def digest_of(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


@dataclass
class Published:
    """A model as registries hold it: its manifest, and its blobs by digest."""

    blobs: dict[str, bytes]
    manifest: bytes

    @classmethod
    def of(cls, model: bytes, template: bytes = b"{{ .Prompt }}") -> Published:
        config = json.dumps({"model_format": "gguf", "model_family": "llama"}).encode()
        layers = [(MODEL, model), (TEMPLATE, template)]
        value = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": {"mediaType": CONFIG, "digest": digest_of(config), "size": len(config)},
            "layers": [
                {"mediaType": kind, "digest": digest_of(data), "size": len(data)} for kind, data in layers
            ],
        }
        blobs = {digest_of(data): data for data in (config, model, template)}
        return cls(blobs, json.dumps(value).encode())

    @property
    def model_digest(self) -> str:
        return self.layer(0)

    def layer(self, index: int) -> str:
        """Return the digest of layer `index`."""
        return str(json.loads(self.manifest)["layers"][index]["digest"])


@dataclass
class Registry:
    """A registry of one model, `team/model:latest`, in this process.

    `intercept` may answer in its place, and returns whether it did.
    """

    published: Published
    ranges: bool = True
    intercept: Callable[[BaseHTTPRequestHandler], bool] = lambda handler: False
    requested: list[tuple[str, str]] = field(default_factory=list)  # paths and ranges
    sent: int = 0  # bytes of blobs
    address: str = ""

    @property
    def name(self) -> str:
        return f"http://{self.address}/team/model"

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        requested = handler.headers.get("range", "")
        self.requested.append((handler.path, requested))
        if self.intercept(handler):
            return
        if handler.command not in ("GET", "HEAD"):
            handler.send_error(501)
            return
        if handler.path == "/v2/team/model/manifests/latest":
            reply(handler, 200, self.published.manifest)
            return
        data = self.published.blobs.get(handler.path.rpartition("/")[2])
        if data is None or not handler.path.startswith("/v2/team/model/blobs/"):
            reply(handler, 404, b'{"errors":[{"code":"NOT_FOUND"}]}')
            return
        self.sent += serve_blob(handler, data, ranges=self.ranges)


def serve_blob(
    handler: BaseHTTPRequestHandler,
    data: bytes,
    headers: dict[str, str] | None = None,
    *,
    ranges: bool = True,
) -> int:
    """Send the requested range, or everything, and return the number of bytes sent."""
    given = re.fullmatch(r"bytes=(\d+)-(\d*)", handler.headers.get("range", ""))
    if given is None or not ranges:
        reply(handler, 200, data, headers)
        return len(data)
    start, end = int(given[1]), int(given[2] or len(data) - 1) + 1
    content_range = {"content-range": f"bytes {start}-{end - 1}/{len(data)}"}
    reply(handler, 206, data[start:end], content_range | (headers or {}))
    return end - start


def reply(
    handler: BaseHTTPRequestHandler, status: int, data: bytes, headers: dict[str, str] | None = None
) -> None:
    handler.send_response(status)
    for name, value in {"content-length": str(len(data)), **(headers or {})}.items():
        handler.send_header(name, value)
    handler.end_headers()
    if handler.command != "HEAD":
        handler.wfile.write(data)


class Answering(Protocol):
    """A stand-in for a registry or another server."""

    address: str

    def answer(self, handler: BaseHTTPRequestHandler) -> None: ...


_Answering = TypeVar("_Answering", bound=Answering)


@contextmanager
def serving(registry: _Answering) -> Iterator[_Answering]:
    """Serve `registry` and set its address."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # else a body waits 40 ms, until its header is acknowledged

        def do_GET(self) -> None:
            registry.answer(self)

        do_HEAD = do_POST = do_PUT = do_PATCH = do_GET  # noqa: N815

        def log_message(self, *_: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: Any) -> None:
            pass  # clients that disconnect midway

    with answering(Server(("127.0.0.1", 0), Handler)) as server:
        registry.address = f"127.0.0.1:{server.server_port}"
        yield registry


@contextmanager
def docker_registry(folder: Path) -> Iterator[str]:
    """Run a `docker-registry` with its data in `folder`, and yield its address.

    Skips the test if there is no such program.
    """
    program = shutil.which("docker-registry")
    if program is None:
        pytest.skip("docker-registry is not installed (apt install docker-registry)")
    address = f"127.0.0.1:{free_port()}"
    config = folder / "config.yml"
    config.write_text(
        "version: 0.1\nlog: {level: error}\n"
        f"storage: {{filesystem: {{rootdirectory: {folder / 'data'}}}}}\nhttp: {{addr: '{address}'}}\n"
    )
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([program, "serve", str(config)], stdout=log, stderr=log)
    try:
        wait_until(lambda: _answers(address), "the registry")
        yield address
    finally:
        process.terminate()
        process.wait(timeout=PATIENCE_S)


def _answers(address: str) -> bool:
    try:
        return httpx.get(f"http://{address}/v2/").is_success
    except httpx.TransportError:
        return False


def publish(address: str, published: Published, name: str = "team/model", tag: str = "latest") -> None:
    """Push a model to a registry with its own protocol."""
    with httpx.Client(base_url=f"http://{address}/v2/{name}/") as http:
        for digest, data in published.blobs.items():
            location = http.post("blobs/uploads/").raise_for_status().headers["location"]
            separator = "&" if "?" in location else "?"
            http.put(f"{location}{separator}digest={digest}", content=data).raise_for_status()
        http.put(
            f"manifests/{tag}", content=published.manifest, headers={"content-type": MANIFEST}
        ).raise_for_status()

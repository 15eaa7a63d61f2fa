"""Real server processes, and ways to watch them."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

import httpx
import ollama
import psutil
import torch

from tests import commands
from tests.forks.runners import NURSERY
from tests.scripted import randomly_cut, write_scripted
from tests.tiny.gemma3 import TinyGemma3
from tests.tiny.lfm2 import TinyLfm2
from tests.tiny.llama import SPECIALS, TinyLlama, vocabulary
from tests.waiting import PATIENCE_S, wait_until

#: Thousands of clients are created for servers without TLS; this spares each from loading root certificates.
_NO_ROOT_CERTIFICATES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)

Process = commands.Command | subprocess.Popen[str]


def _is_runner(child: psutil.Process) -> bool:
    try:
        return child.status() != psutil.STATUS_ZOMBIE and child.name() != NURSERY
    except psutil.NoSuchProcess:  # it has ended in the meantime
        return False


@dataclass
class Server:
    """A running server, whose startup message was `first_line`."""

    process: Process
    log: Path
    models: Path
    first_line: str
    url: str

    @property
    def client(self) -> ollama.Client:
        return ollama.Client(host=self.url, timeout=120, verify=_NO_ROOT_CERTIFICATES)

    @property
    def http(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=120, verify=_NO_ROOT_CERTIFICATES)

    def runners(self) -> list[psutil.Process]:
        """Return the model processes that are alive."""
        children = psutil.Process(self.process.pid).children()
        return [child for child in children if _is_runner(child)]

    def runner(self) -> psutil.Process:
        """Return the only model process, once any others have ended."""
        wait_until(lambda: len(self.runners()) == 1, "a single runner")
        return self.runners()[0]

    def unload(self) -> None:
        """Unload all models, and wait until nothing remains of abandoned requests."""
        wait_until(lambda: self.running_requests() == [], "all requests to end")
        for model in self.client.ps().models:
            self.client.generate(model.model or "", keep_alive=0)
        wait_until(lambda: self.client.ps().models == [] and not self.runners(), "all models to be unloaded")

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Stop the server and return its exit status."""
        self.process.send_signal(number)
        return self.process.wait(timeout=PATIENCE_S)

    def running_requests(self) -> list[dict[str, Any]]:
        """Return the server's list of the requests it serves."""
        found: list[dict[str, Any]] = self.http.get("/api/ps").json()["requests"]
        return found

    def requests(self) -> tuple[int, int]:
        """Return how many requests run and how many wait, on models in memory."""
        while True:
            models = [one for one in self.http.get("/api/ps").json()["models"] if "loading" not in one]
            if all(one["responding"] for one in models):  # otherwise some counts are missing
                break
        return (
            sum(model["requests_running"] for model in models),
            sum(model["requests_waiting"] for model in models),
        )

    @contextmanager
    def open_request(self, path: str, body: dict[str, object], request_id: str = "") -> Iterator[None]:
        """Send a request whose client disconnects at the end of the block without reading anything.

        The server eventually gives up a long stream that nobody reads; request a whole answer instead.
        """
        address = urlsplit(self.url)
        content = json.dumps(body).encode()
        lines = [f"POST {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(content)}"]
        if request_id:
            lines.append(f"X-Request-Id: {request_id}")
        with socket.create_connection((address.hostname, address.port)) as connection:
            connection.sendall("\r\n".join([*lines, "", ""]).encode() + content)
            yield


def command() -> list[str]:
    return [sys.executable, "-m", "puna", "serve"]


def environment(models: Path, **settings: str) -> dict[str, str]:
    """Return an environment with a test's settings only, whatever the developer's shell sets."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OLLAMA_", "PUNA_"))}
    for name in ("PUNA_OPS", "PUNA_NUM_THREADS"):
        if name in os.environ:
            kept[name] = os.environ[name]
    return (
        kept
        | {"PUNA_MODELS": str(models), "PUNA_HOME": str(models / "home"), "PUNA_HOST": "127.0.0.1:0"}
        | settings
    )


@contextmanager
def running(
    models: Path, errors: IO[str] | None = None, *, started: bool = False, **settings: str
) -> Iterator[Server]:
    """Run a server on a free port within the block; `errors` receives its log instead of a file.

    The server is a fork, and so are its model processes (`tests.forks`), unless it is `started` by Python.
    """
    models.mkdir(parents=True, exist_ok=True)
    log = models / "server.log"
    env = environment(models, **settings)
    output, write_end = os.pipe()
    with os.fdopen(output) as announced:
        with log.open("a") as file, Path(os.devnull).open() as nothing:
            process = (_start if started else _fork)(
                env, (nothing.fileno(), write_end, (errors or file).fileno())
            )
        os.close(write_end)
        try:
            line = announced.readline().strip()
            assert line.startswith("Listening on "), f"the server printed {line!r}\n{log.read_text()}"
            yield Server(process, log, models, line, "http://" + line.split()[2])
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(timeout=20)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


def _fork(env: dict[str, str], streams: tuple[int, int, int]) -> Process:
    return commands.start("serve", env=env, streams=streams)


def _start(env: dict[str, str], streams: tuple[int, int, int]) -> Process:
    stdin, stdout, stderr = streams
    return subprocess.Popen(command(), stdin=stdin, stdout=stdout, stderr=stderr, env=env, text=True)


def add_model(server: Server, name: str, path: Path) -> None:
    """Create `name` from a GGUF file as a client does, with a seed that makes its answers repeat."""
    digest = server.client.create_blob(path)
    created = server.client.create(model=name, files={path.name: digest}, parameters={"seed": 1})
    assert created.status == "success"


@contextmanager
def scripted(server: Server, name: str, folder: Path, texts: Sequence[str], template: str) -> Iterator[None]:
    """Create the model `name` within the block; the trigger in a prompt selects which of `texts` it says."""
    add_model(server, name, write_scripted(folder / "scripted.gguf", randomly_cut(texts), template=template))
    yield
    server.unload()
    server.client.delete(name)


def endless(config: TinyLlama | TinyGemma3 | TinyLfm2) -> object:
    """Build a model whose greedy answers never end: its special tokens have the logit 0, never the highest.

    Its output must not be tied to its input.
    """
    model = config.build()
    words = vocabulary()
    with torch.no_grad():
        for token in SPECIALS:
            model.lm_head.weight[words.index(token)] = 0.0
    return model

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
from tests.scripted import randomly_cut, write_scripted
from tests.tiny.gemma3 import TinyGemma3
from tests.tiny.lfm2 import TinyLfm2
from tests.tiny.llama import SPECIALS, TinyLlama, vocabulary
from tests.waiting import PATIENCE_S, wait_until

#: Clients of servers without TLS are made by the thousand, and each would read a file of whom to trust.
_TRUSTING_NOBODY = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)

Process = commands.Command | subprocess.Popen[str]


def _lives(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:  # it ended meanwhile
        return False


@dataclass
class Server:
    """A running server. `first_line` is what it announced itself with."""

    process: Process
    log: Path
    models: Path
    first_line: str
    url: str

    @property
    def client(self) -> ollama.Client:
        return ollama.Client(host=self.url, timeout=120, verify=_TRUSTING_NOBODY)

    @property
    def http(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=120, verify=_TRUSTING_NOBODY)

    def runners(self) -> list[psutil.Process]:
        """The model processes that live now."""
        children = psutil.Process(self.process.pid).children()
        return [child for child in children if _lives(child)]

    def runner(self) -> psutil.Process:
        """The one model process there is, once others have ended."""
        wait_until(lambda: len(self.runners()) == 1, "a single runner")
        return self.runners()[0]

    def unload(self) -> None:
        """Until no model is in memory, and nothing is left of requests that were abandoned."""
        wait_until(lambda: self.running_requests() == [], "the end of the requests")
        for model in self.client.ps().models:
            self.client.generate(model.model or "", keep_alive=0)
        wait_until(lambda: self.client.ps().models == [] and not self.runners(), "an empty memory")

    def stop(self, number: int = signal.SIGTERM) -> int:
        """End the server and return its exit status."""
        self.process.send_signal(number)
        return self.process.wait(timeout=PATIENCE_S)

    def running_requests(self) -> list[dict[str, Any]]:
        """What the server says of the requests it serves."""
        found: list[dict[str, Any]] = self.http.get("/api/ps").json()["requests"]
        return found

    def requests(self) -> tuple[int, int]:
        """How many requests run, and how many wait, on models in memory."""
        while True:
            models = [one for one in self.http.get("/api/ps").json()["models"] if "loading" not in one]
            if all(one["responding"] for one in models):  # else nothing is known of some
                break
        return (
            sum(model["requests_running"] for model in models),
            sum(model["requests_waiting"] for model in models),
        )

    @contextmanager
    def asked(self, path: str, body: dict[str, object], request_id: str = "") -> Iterator[None]:
        """A request whose client leaves, without having read anything, at the end of the block.

        If its answer is a long stream, the server gives it up some time; ask for a whole one.
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
    """Only what a test sets counts, whatever the developer's shell has."""
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
    """A server on a free port, for the length of the block; `errors` takes its log instead of a file.

    It is a fork (`tests.commands`) unless it is `started` by Python, as a test of how that starts needs it.
    """
    models.mkdir(parents=True, exist_ok=True)
    log = models / "server.log"
    env = environment(models, **settings)
    output, end = os.pipe()
    with os.fdopen(output) as said:
        with log.open("a") as file, Path(os.devnull).open() as nothing:
            process = (_started if started else _forked)(
                env, (nothing.fileno(), end, (errors or file).fileno())
            )
        os.close(end)
        try:
            line = said.readline().strip()
            assert line.startswith("Listening on "), f"the server said {line!r}\n{log.read_text()}"
            yield Server(process, log, models, line, "http://" + line.split()[2])
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(timeout=20)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


def _forked(env: dict[str, str], streams: tuple[int, int, int]) -> Process:
    return commands.start("serve", env=env, streams=streams)


def _started(env: dict[str, str], streams: tuple[int, int, int]) -> Process:
    stdin, stdout, stderr = streams
    return subprocess.Popen(command(), stdin=stdin, stdout=stdout, stderr=stderr, env=env, text=True)


def add_model(server: Server, name: str, path: Path) -> None:
    """Create `name` from a GGUF file, as a client does it. Its answers are the same every time."""
    digest = server.client.create_blob(path)
    made = server.client.create(model=name, files={path.name: digest}, parameters={"seed": 1})
    assert made.status == "success"


@contextmanager
def scripted(server: Server, name: str, folder: Path, texts: Sequence[str], template: str) -> Iterator[None]:
    """While it is open, the model `name` says one of `texts`, as the trigger in its prompt tells it."""
    add_model(server, name, write_scripted(folder / "scripted.gguf", randomly_cut(texts), template=template))
    yield
    server.unload()
    server.client.delete(name)


def endless(config: TinyLlama | TinyGemma3 | TinyLfm2) -> object:
    """A model whose greedy answers never end: its special tokens have the logit 0, never the best.

    Its output must not be tied to its input.
    """
    model = config.build()
    words = vocabulary()
    with torch.no_grad():
        for token in SPECIALS:
            model.lm_head.weight[words.index(token)] = 0.0
    return model

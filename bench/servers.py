"""The compared servers: real processes with the same file, threads and number of slots."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
from http_load import Answer, Ask

from puna.store import Store
from puna.store.create import ModelSpec

LLAMA_SERVER = Path(sys.executable).with_name("llama-server")
SERVER_READY_S = 300.0
MODEL = "bench"


class MissingError(Exception):
    """A server is not available here; the message says why."""


@dataclass(frozen=True)
class Setting:
    """The settings of all servers."""

    model: Path
    slots: int  # parallel requests
    context: int  # tokens of each request
    threads: int


@dataclass(eq=False)
class Server:
    """A running server, and the requests it accepts."""

    name: str
    process: subprocess.Popen[bytes]
    port: int

    #: A request that is answered immediately, without a model.
    greeting = "/v1/models"
    #: Whether a second turn can continue the tokens of the first, which may not correspond to a text.
    continues = False

    def completion(self, prompt: str, tokens: int) -> Ask:
        """Return a request to stream a greedy answer of `tokens` tokens."""
        return Ask("/v1/completions", {
            "model": MODEL, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "stream": True,
            "stream_options": {"include_usage": True}, **self.extra,
        })  # fmt: skip

    @property
    def extra(self) -> dict[str, Any]:
        """The fields that make answers continue after the model's end token."""
        return {"ignore_eos": True}

    def turn(self, before: Turn | None, prompt: str, tokens: int) -> Ask:
        """Return the request for the next turn of a conversation. Only if `continues`."""
        raise NotImplementedError

    def turned(self, before: Turn | None, prompt: str, answer: Answer) -> Turn:
        """Return the conversation after a turn."""
        raise NotImplementedError

    def processes(self) -> list[psutil.Process]:
        """Return the process that serves HTTP, then its children."""
        first = psutil.Process(self.process.pid)
        return [first, *first.children(recursive=True)]


@dataclass(frozen=True)
class Turn:
    """A conversation so far, in the server's own format, and the cost of its last turn."""

    so_far: Any
    prompt_tokens: int
    evaluated: int


class Puna(Server):
    continues = True

    def turn(self, before: Turn | None, prompt: str, tokens: int) -> Ask:
        body: dict[str, Any] = {"model": MODEL, "prompt": prompt, "stream": True, "ignore_eos": True}
        if before is not None:
            body["context"] = before.so_far
        return Ask("/api/generate", body | {"options": {"temperature": 0, "num_predict": tokens}})

    def turned(self, before: Turn | None, prompt: str, answer: Answer) -> Turn:
        read = answer.field("prompt_eval_count")
        return Turn(answer.field("context"), read, read - (answer.field("cached") or 0))


class LlamaCppServer(Server):
    continues = True

    def turn(self, before: Turn | None, prompt: str, tokens: int) -> Ask:
        so_far = [] if before is None else before.so_far
        return Ask("/completion", {
            "prompt": [*so_far, prompt], "n_predict": tokens, "temperature": 0, "stream": True,
            "return_tokens": True, "ignore_eos": True,
        })  # fmt: skip

    def turned(self, before: Turn | None, prompt: str, answer: Answer) -> Turn:
        so_far = [] if before is None else before.so_far
        said = [token for _, value in answer.objects if text_only(value) for token in value["tokens"]]
        timings = answer.field("timings")
        return Turn([*so_far, prompt, *said], timings["cache_n"] + timings["prompt_n"], timings["prompt_n"])


class LlamaCppPython(Server):
    """A server that processes one request at a time, accepts only text, and always ends at the end token."""

    @property
    def extra(self) -> dict[str, Any]:
        return {}


def text_only(value: dict[str, Any]) -> bool:
    """Whether an object of llama.cpp's stream is a piece of text, not the final summary."""
    return not value.get("stop")


@contextlib.contextmanager
def puna(setting: Setting, *, program: Sequence[str] = ("-m", "puna"), **variables: str) -> Iterator[Server]:
    """Run `puna serve` with the model in a separate store, and with more environment variables."""
    with tempfile.TemporaryDirectory(prefix="puna-bench-") as folder:
        store = Store(Path(folder) / "models")
        digest = store.import_file(setting.model)
        parameters = {"num_ctx": setting.context, "num_thread": setting.threads}
        store.create(MODEL, ModelSpec(files={"model.gguf": digest}, parameters=parameters))
        port = free_port()
        kept = environment(
            PUNA_HOST=f"127.0.0.1:{port}",
            PUNA_MODELS=str(store.root),
            PUNA_NUM_PARALLEL=str(setting.slots),
            PUNA_KEEP_ALIVE="-1",
            **variables,
        )
        with running([sys.executable, *program, "serve"], kept) as process:
            yield ready(Puna("Puna", process, port), "/")


def environment(**variables: str) -> dict[str, str]:
    """Return this process's environment with these settings of Puna and no others."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PUNA_", "OLLAMA_"))}
    return kept | variables


@contextlib.contextmanager
def llama_cpp_server(setting: Setting, name: str, *more: str) -> Iterator[Server]:
    """Run llama-server with `more` arguments. All slots share one cache."""
    if not LLAMA_SERVER.exists():
        raise MissingError("not built")
    port = free_port()
    arguments = {
        "model": setting.model, "port": port, "parallel": setting.slots,
        "ctx-size": setting.slots * setting.context, "threads": setting.threads,
        "threads-http": setting.slots + 4,  # each stream occupies one
        "fit": "off",  # it would reduce the context if it considers memory short
    }  # fmt: skip
    command = [str(LLAMA_SERVER), "--kv-unified", "--offline", *more]
    command += [part for key, value in arguments.items() for part in (f"--{key}", str(value))]
    with running(command) as process:
        yield ready(LlamaCppServer(name, process, port), "/health")


@contextlib.contextmanager
def llama_cpp_python(setting: Setting) -> Iterator[Server]:
    _need("llama_cpp", "fastapi", "sse_starlette", "starlette_context", "pydantic_settings")
    port = free_port()
    arguments = {
        "model": setting.model, "port": port, "n_ctx": setting.context, "n_threads": setting.threads,
        "n_threads_batch": setting.threads,
        "interrupt_requests": False,  # otherwise a new request aborts the current stream
    }  # fmt: skip
    command = [sys.executable, "-m", "llama_cpp.server"]
    command += [part for key, value in arguments.items() for part in (f"--{key}", str(value))]
    with running(command) as process:
        yield ready(LlamaCppPython("llama-cpp-python", process, port), "/v1/models")


def _need(*modules: str) -> None:
    absent = [name for name in modules if find_spec(name) is None]
    if absent:
        raise MissingError(f"not installed: {', '.join(absent)}")


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextlib.contextmanager
def running(
    command: list[str], environment: dict[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process until the end of the block, printing its output if it exits earlier."""
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT, env=environment)
        try:
            yield process
        except BaseException:
            if process.poll() is not None:
                said.seek(0)
                print(said.read()[-4000:].decode(errors="replace"), file=sys.stderr)
            raise
        finally:
            process.terminate()
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def ready(server: Server, path: str) -> Server:
    """Wait until `server` answers at `path`. Raises `MissingError` if it exits or takes too long."""
    deadline = time.monotonic() + SERVER_READY_S
    while time.monotonic() < deadline:
        if server.process.poll() is not None:
            raise MissingError(f"it exited with status {server.process.returncode}")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{server.port}{path}", timeout=5):
                return server
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise MissingError(f"it did not answer within {SERVER_READY_S:g} s")

"""Servers and models shared by the end-to-end tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import openai
import pytest

from tests.e2e.canary import repeated_when_held_up
from tests.e2e.servers import Server, add_model, endless, running
from tests.held import HeldRunners
from tests.tiny.llama import TinyLlama, tiny_llama_gguf


def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> None:
    pyfuncitem.obj = repeated_when_held_up(pyfuncitem.obj)


@pytest.fixture(scope="session")
def tiny_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


@pytest.fixture(scope="session")
def endless_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a model with a long context whose answers go on until they are stopped."""
    config = TinyLlama(context=8192, seed=3)
    path = tmp_path_factory.mktemp("gguf") / "endless.gguf"
    return tiny_llama_gguf(path, config, model=endless(config))


@pytest.fixture(scope="session")
def servers(
    tmp_path_factory: pytest.TempPathFactory, tiny_file: Path, endless_file: Path
) -> Iterator[Callable[..., Server]]:
    """Return a function giving the shared server with some settings and the models `tiny` and `endless`.

    For tests that leave the server as they found it; a test that ends one starts its own with `running`.
    """
    started: dict[frozenset[tuple[str, str]], Server] = {}
    with ExitStack() as stack:

        def server_with(**settings: str) -> Server:
            key = frozenset(settings.items())
            if key not in started:
                server = stack.enter_context(running(tmp_path_factory.mktemp("models"), **settings))
                add_model(server, "tiny", tiny_file)
                add_model(server, "endless", endless_file)
                started[key] = server
            return started[key]

        yield server_with


@pytest.fixture(scope="session")
def server(servers: Callable[..., Server]) -> Server:
    """Return the server with default settings."""
    return servers()


@pytest.fixture(scope="session")
def held(tmp_path_factory: pytest.TempPathFactory) -> HeldRunners:
    return HeldRunners(tmp_path_factory.mktemp("held"))


@pytest.fixture(scope="session")
def holding_server(servers: Callable[..., Server], held: HeldRunners) -> Server:
    """Return a server whose loads can be held up with `held`."""
    return servers(**held.settings)


@pytest.fixture(scope="session")
def logging_server(servers: Callable[..., Server]) -> Server:
    """Return a server that logs JSON."""
    return servers(PUNA_LOG_FORMAT="json")


@pytest.fixture(scope="session")
def client(logging_server: Server) -> openai.OpenAI:
    """Return an OpenAI client of `logging_server`; it does not retry, so that every refusal shows."""
    return openai.OpenAI(base_url=logging_server.url + "/v1/", api_key="unused", max_retries=0, timeout=120)

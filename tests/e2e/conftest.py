"""Servers and models shared by the end-to-end tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.servers import Server, add_model, endless, running
from tests.tiny import TinyLlama, tiny_llama_gguf


@pytest.fixture(scope="session")
def tiny_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


@pytest.fixture(scope="session")
def endless_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with a long context that goes on until it is stopped."""
    config = TinyLlama(context=8192, seed=3)
    path = tmp_path_factory.mktemp("gguf") / "endless.gguf"
    return tiny_llama_gguf(path, config, model=endless(config))


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory, tiny_file: Path) -> Iterator[Server]:
    """One server for all tests that leave it as they find it; it has the model `tiny`."""
    with running(tmp_path_factory.mktemp("models")) as started:
        add_model(started, "tiny", tiny_file)
        yield started

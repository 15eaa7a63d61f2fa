"""The model of the library's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import puna
from tests.tiny.llama import TinyLlama, tiny_llama_gguf


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[puna.Model]:
    config = TinyLlama(hidden=128, layers=3, context=2048)
    path = tiny_llama_gguf(tmp_path_factory.mktemp("library") / "tiny.gguf", config, endless=True)
    with puna.load(path, num_ctx=2048, parallel=4) as loaded:
        yield loaded

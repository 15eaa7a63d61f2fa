"""Tiny models for the engine's tests, each made once."""

from __future__ import annotations

from pathlib import Path

import pytest

from puna.model.load import LoadedModel, load_model
from tests.tiny.gemma3 import TinyGemma3, tiny_gemma3_gguf
from tests.tiny.lfm2 import tiny_lfm2_gguf
from tests.tiny.llama import TinyLlama, tiny_llama_gguf
from tests.tiny.llama4 import TinyLlama4, tiny_llama4_gguf

#: A model for each kind of cache.
KINDS = {
    "plain": lambda path: tiny_llama_gguf(path, TinyLlama(context=128)),
    "windowed": lambda path: tiny_gemma3_gguf(path, TinyGemma3(layers=3, pattern=3, window=16)),
    "chunked": lambda path: tiny_llama4_gguf(path, TinyLlama4(chunk=8, no_rope_interval=2)),
    "recurrent": tiny_lfm2_gguf,
}


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama_gguf(tmp_path_factory.mktemp("tiny") / "tiny.gguf", TinyLlama(context=128))


@pytest.fixture(scope="session")
def tiny(tiny_path: Path) -> LoadedModel:
    return load_model(tiny_path)


@pytest.fixture(scope="session", params=KINDS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    """Return a tiny model with each kind of cache in turn."""
    return load_model(KINDS[request.param](tmp_path_factory.mktemp("kinds") / f"{request.param}.gguf"))


@pytest.fixture(scope="session")
def recurrent(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    """Return a model whose cache cannot drop the middle of a sequence."""
    return load_model(tiny_lfm2_gguf(tmp_path_factory.mktemp("lfm2") / "lfm2.gguf"))

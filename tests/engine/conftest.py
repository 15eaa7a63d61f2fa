"""Tiny models for the engine's tests, made once."""

from __future__ import annotations

from pathlib import Path

import pytest

from puna.model.load import LoadedModel, load_model
from tests.tiny import TinyLlama, tiny_llama_gguf


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama_gguf(tmp_path_factory.mktemp("tiny") / "tiny.gguf", TinyLlama(context=128))


@pytest.fixture(scope="session")
def tiny(tiny_path: Path) -> LoadedModel:
    return load_model(tiny_path)

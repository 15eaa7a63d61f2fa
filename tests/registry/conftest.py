"""Fixtures: an empty store that may pull from this machine, and a model to pull."""

from __future__ import annotations

from pathlib import Path

import pytest

from puna.store import Store
from tests.registry.registries import Published
from tests.store.store_files import write_gguf


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("PUNA_PRIVATE_REGISTRIES", "127.0.0.1")
    return Store(tmp_path / "models")


@pytest.fixture
def published(tmp_path: Path) -> Published:
    path = tmp_path / "published.gguf"
    write_gguf(path, "llama", parameters=50_000)
    return Published.of(path.read_bytes())

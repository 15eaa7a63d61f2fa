"""Fixtures: an empty store, and a function that writes small GGUF files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from puna.store import Store, bundled
from tests.store.store_files import write_gguf


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setattr(bundled, "BUNDLED", ())
    return Store(tmp_path / "models")


@pytest.fixture
def make_gguf(tmp_path: Path) -> Callable[..., Path]:
    paths: list[Path] = []

    def make(architecture: str = "llama", **options: Any) -> Path:
        path = tmp_path / f"made-{len(paths)}.gguf"
        paths.append(path)
        write_gguf(path, architecture, **options)
        return path

    return make

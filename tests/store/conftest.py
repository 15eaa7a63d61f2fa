"""Small GGUF files (made by the gguf package) and an empty store to put them into."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from puna.store import Store

MakeGGUF = Callable[..., Path]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setattr("puna.store.bundled.DEMO_FILE", tmp_path / "no-demo.gguf")
    monkeypatch.setattr("puna.store.store.bundled_model", lambda: None)
    return Store(tmp_path / "models")


@pytest.fixture
def make_gguf(tmp_path: Path) -> MakeGGUF:
    count = 0

    def make(architecture: str = "llama", *, parameters: int = 0, **metadata: Any) -> Path:
        """A GGUF with one tensor of `parameters` values; `metadata` keys use `__` for dots."""
        nonlocal count
        count += 1
        path = tmp_path / f"made-{count}.gguf"
        writer = gguf.GGUFWriter(path, architecture)
        for key, value in metadata.items():
            name = key.replace("__", ".").replace("ARCH", architecture)
            if isinstance(value, bool):
                writer.add_bool(name, value)
            elif isinstance(value, int):
                writer.add_uint32(name, value)
            elif isinstance(value, str):
                writer.add_string(name, value)
            else:
                writer.add_array(name, value)
        if parameters:
            writer.add_tensor("token_embd.weight", np.zeros((2, parameters // 2), dtype=np.float16))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return make

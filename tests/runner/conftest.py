"""The model of the tests of runners."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tiny import TinyLlama, tiny_llama_gguf


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Endless, and so slow that nothing ends before it is stopped."""
    config = TinyLlama(hidden=256, feed_forward=512, layers=4, context=2048)
    return tiny_llama_gguf(tmp_path_factory.mktemp("runner") / "tiny.gguf", config, endless=True)

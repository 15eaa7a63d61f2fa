"""Models that transformers lacks: our log-probabilities are llama.cpp's, and so are those in the files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.model.models.parity import our_log_probabilities
from tests.tiny.seeded import EXPECTED, SEEDED

pytestmark = pytest.mark.peers
pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed: run make test-peers")


@pytest.mark.parametrize("name", SEEDED)
def test_log_probabilities_are_those_of_llama_cpp(name: str, tmp_path: Path) -> None:
    from puna.model.load import load_model
    from tests.parity.write_seeded import log_probabilities

    path = SEEDED[name].contents().write(tmp_path / "model.gguf")
    written = json.loads((EXPECTED / f"{name}.json").read_text())
    tokens, expected = written["tokens"], log_probabilities(path, written["tokens"])
    found = our_log_probabilities(load_model(path), tokens, [len(tokens)]).numpy()
    assert np.abs(found - expected).max() < 1e-3
    assert np.abs(expected[:, written["chosen"]] - written["log_probabilities"]).max() < 1e-4

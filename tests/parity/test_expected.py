"""The committed log-probabilities are those that llama.cpp computes, and so are all of ours."""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np
import pytest

from puna.model.load import load_model
from tests.model.models.expected import expected
from tests.model.models.parity import our_log_probabilities
from tests.parity.convert.conversion import PEERS
from tests.tiny.remote_code import CHECKPOINTS
from tests.tiny.seeded import SEEDED

pytestmark = PEERS
pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed: run make test-peers")

written = importlib.import_module("tests.parity.write_expected")


@pytest.mark.parametrize("name", [*CHECKPOINTS, *SEEDED, *written.HEADS])
def test_committed_log_probabilities_are_those_of_llama_cpp(name: str, tmp_path: Path) -> None:
    known, found = expected(name), written.computed(name, tmp_path)
    assert (found.text, found.tokens) == (known.text, known.tokens)
    np.testing.assert_allclose(found.log_probabilities, known.log_probabilities, atol=1e-4)


@pytest.mark.parametrize("name", SEEDED)
def test_log_probabilities_of_all_tokens_are_those_of_llama_cpp(name: str, tmp_path: Path) -> None:
    path, text = written.model_file(name, tmp_path), expected(name).text
    found = our_log_probabilities(load_model(path), text, [len(text)])
    assert (found - written.log_probabilities(path, text)).abs().max() < 1e-3

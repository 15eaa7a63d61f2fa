"""The committed log-probabilities are those that llama.cpp computes."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import numpy as np
import pytest

from tests.parity.convert.conversion import PEERS
from tests.tiny.remote_code import CHECKPOINTS

pytestmark = PEERS
pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed: run make test-peers")

written = importlib.import_module("tests.parity.write_expected")


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_committed_log_probabilities_are_those_of_llama_cpp(name: str, tmp_path: Path) -> None:
    known = json.loads(written.TARGET.read_text(encoding="utf-8"))[name]
    found = written.expected(name, tmp_path)
    assert (found["text"], found["tokens"]) == (known["text"], known["tokens"])
    np.testing.assert_allclose(found["log_probabilities"], known["log_probabilities"], atol=1e-4)

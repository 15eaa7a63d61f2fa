"""Log-probabilities of Puna and llama.cpp on the same files, each compared with float32 (bench/accuracy.py).

Run by `make test-peers`, which builds llama-cpp-python. Puna must not be significantly worse, and must be
about as close to llama.cpp as llama.cpp is to itself.
"""

from __future__ import annotations

import importlib

import pytest

from puna.gguf import GGMLType

pytestmark = pytest.mark.peers
pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed: run make test-peers")

accuracy = importlib.import_module("bench.accuracy")


@pytest.mark.parametrize("model", accuracy.MODELS)
@pytest.mark.parametrize("kind", accuracy.KINDS, ids=lambda kind: kind.name)
def test_log_probabilities_are_no_less_accurate_than_those_of_llama_cpp(
    model: str, kind: GGMLType, capsys: pytest.CaptureFixture[str]
) -> None:
    # One of thirty comparisons may look worse by chance; a real difference remains with four times as many.
    for count in (accuracy.SEQUENCES, 4 * accuracy.SEQUENCES):
        result = accuracy.measure(model, kind, count)
        with capsys.disabled():
            print(f"\n{accuracy.line(result)}")
        if result.log_ratio - 2 * result.log_error <= 0.02:
            break
    certain = result.log_error < 0.15 or result.interval[1] < 1
    assert certain, "the sequences differ too much to tell"
    assert result.log_ratio - 2 * result.log_error <= 0.02, "further from float32, beyond chance"
    assert result.to_llama_cpp <= 2 * result.llama_cpp_to_itself + 1e-3

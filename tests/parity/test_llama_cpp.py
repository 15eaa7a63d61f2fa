"""Log-probabilities beside llama.cpp's on the same files, both held against float32 (`bench/accuracy.py`).

Run by `make test-peers`, which builds llama-cpp-python. What is tested is whether Puna is worse beyond
chance, and whether it is about as close to llama.cpp as llama.cpp is to itself.
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
def test_as_close_to_float32_as_llama_cpp_and_to_llama_cpp_as_it_is_to_itself(
    model: str, kind: GGMLType, capsys: pytest.CaptureFixture[str]
) -> None:
    # Of thirty comparisons one may look worse by chance. What is worse still is with four times as many.
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

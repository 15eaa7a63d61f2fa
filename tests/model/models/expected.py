"""Results of llama.cpp for models that transformers lacks, written by `tests/parity/write_expected.py`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch

FOLDER: Final = Path(__file__).parent / "llama_cpp"


@dataclass(frozen=True)
class Expected:
    """Log-probabilities of a few `tokens` after each token of a text, float32 [text, tokens].

    Those of a head that drafts begin after the second token.
    """

    text: list[int]
    tokens: list[int]
    log_probabilities: torch.Tensor


def place_of(name: str) -> Path:
    """Return the file with the results of a checkpoint."""
    return FOLDER / f"{name.replace(',', '').replace(' ', '-')}.json"


def expected(name: str) -> Expected:
    """Return the committed results of a checkpoint."""
    found = json.loads(place_of(name).read_text(encoding="utf-8"))
    return Expected(found["text"], found["tokens"], torch.tensor(found["log_probabilities"]))

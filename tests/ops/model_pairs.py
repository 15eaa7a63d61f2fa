"""Models on a backend under test, beside the same ones of transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from puna.model.load import LoadedModel, load_model
from puna.ops import Backend
from tests.model.models.parity import (
    log_probabilities_after_reuse,
    original,
    our_log_probabilities,
    random_tokens,
    reference_log_probabilities,
)
from tests.tiny.models import ARCHITECTURES

#: Caches of all positions, windows, chunks, states and latents; experts; rotations that vary by context.
NAMES = ("llama", "gemma3", "llama4", "lfm2", "qwen3moe", "phi3", "deepseek2")


def pair_of(name: str, ops: Backend, folder: Path) -> tuple[LoadedModel, Any]:
    """Return a random model of an architecture on `ops`, and its original."""
    config, write = ARCHITECTURES[name]
    theirs = original(config)
    return load_model(write(folder / "model.gguf", config, model=theirs), ops=ops), theirs


def check_pieces(ours: LoadedModel, theirs: Any) -> None:
    """Compare log-probabilities of a prompt in pieces: more and fewer rows than decoding kernels take."""
    tokens = random_tokens(ours, 40, 1)
    found = our_log_probabilities(ours, tokens, [25, 1, 14])
    assert (found - reference_log_probabilities(theirs, tokens)).abs().max() < 1e-3


def check_reuse(ours: LoadedModel, theirs: Any) -> None:
    """Compare log-probabilities after a prefix that another sequence has read."""
    tokens = random_tokens(ours, 40, 2)
    found = log_probabilities_after_reuse(ours, tokens, 30)
    assert (found - reference_log_probabilities(theirs, tokens)[-len(found) :]).abs().max() < 1e-3

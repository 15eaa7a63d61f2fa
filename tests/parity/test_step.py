"""Step 3.5 in llama.cpp: the same log-probabilities on the same tiny files.

Run by `make test-peers`, which builds llama-cpp-python.
"""

from __future__ import annotations

import dataclasses
import importlib
from pathlib import Path
from typing import Any

import pytest
import torch

from puna.model.load import load_model
from tests.model.models.parity import original, our_log_probabilities, random_tokens
from tests.tiny.decoders import tiny_decoder_gguf
from tests.tiny.step import STEP35

pytestmark = pytest.mark.peers
pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed: run make test-peers")

peer = importlib.import_module("bench.llama_cpp_peer")

#: All features, and what published settings do not have: a single key head, narrower rotations.
SETTINGS: dict[str, dict[str, Any]] = {
    "as published": {},
    "one key head, narrow": {
        "head_dim": 32, "num_key_value_heads": 1, "num_sliding_attention_heads": 3,
        "n_routed_experts": 5, "num_experts_per_tok": 2, "swiglu_limits": None,
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.25},
            "sliding_attention": {
                "rope_type": "default", "rope_theta": 3e3, "partial_rotary_factor": 0.75
            },
        },
    },
}  # fmt: skip


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=list(SETTINGS))
def test_log_probabilities_are_those_of_llama_cpp(tmp_path: Path, settings: dict[str, Any]) -> None:
    tiny = dataclasses.replace(STEP35, settings={**STEP35.settings, **settings})
    path = tiny_decoder_gguf(tmp_path / "model.gguf", tiny, model=original(tiny))
    ours = load_model(path)
    tokens = random_tokens(ours, 70, 11)
    other = peer.LlamaCpp(path, context=128, threads=1, setting=peer.Setting(flash=False), exact=True)
    logits = torch.from_numpy(other.logits(tokens, at_once=70))
    other.close()
    difference = our_log_probabilities(ours, tokens, [70]) - torch.log_softmax(logits, -1)
    assert difference.abs().max() < 1e-3

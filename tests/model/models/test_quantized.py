"""A hybrid in every file type, against transformers with the same weights in float32.

Its layers are a gated delta network and attention, so that weights of that type are used in both.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from puna.gguf import GGMLType
from puna.gguf.blocks import QUANTIZABLE, dequantize, quantize
from puna.model.load import load_model
from tests.model.models.parity import (
    original,
    our_log_probabilities,
    random_tokens,
    reference_log_probabilities,
)
from tests.ops.block_bytes import multiplied_as_integers
from tests.tiny.converted import holds
from tests.tiny.decoders import tiny_decoder_gguf
from tests.tiny.hybrids import SETTINGS, TinyHybrid

#: Rows of 256, which every type holds.
HYBRID = TinyHybrid(
    "qwen3_next",
    {
        **SETTINGS, "num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"],
        "hidden_size": 256, "intermediate_size": 256, "head_dim": 64, "num_experts": 0,
        "linear_key_head_dim": 64, "linear_value_head_dim": 64,
        "rope_parameters": {"rope_theta": 1e6, "rope_type": "default", "partial_rotary_factor": 0.5},
    },
    {
        "full_attention_interval": 2, "expert_count": None, "expert_used_count": None,
        "expert_feed_forward_length": None, "expert_shared_feed_forward_length": None,
    },
    first=True, seed=80,
)  # fmt: skip
TYPES = sorted(QUANTIZABLE - {GGMLType.F32, GGMLType.F64})


def rounded(model: Any, kind: GGMLType) -> Any:
    """Return the model with the weights of a file of type `kind`."""
    found = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in found.parameters():
            if holds(kind, parameter):
                values = dequantize(quantize(parameter.numpy(), kind), kind)
                parameter.copy_(torch.from_numpy(values.reshape(parameter.shape)))
    return found


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.name)
def test_log_probabilities_match_the_weights_in_the_file(tmp_path: Path, kind: GGMLType) -> None:
    theirs = original(HYBRID)
    ours = load_model(tiny_decoder_gguf(tmp_path / "model.gguf", HYBRID, model=theirs, matrices=kind))
    tokens = random_tokens(ours, 40, 81)
    found = our_log_probabilities(ours, tokens, [24, 1, 15])
    difference = (found - reference_log_probabilities(rounded(theirs, kind), tokens)).abs()
    # Activations of 8 bits give 0.02 to 0.04, integers of 16 bits 3e-4, floats 1e-6.
    bound = 1e-3 if multiplied_as_integers(kind) else 1e-4
    assert difference.mean() < (0.06 if kind.is_quantized else bound)

"""Decoders against Hugging Face transformers, on tiny random models in float32: one entry for each variant.

What only one architecture has is tested in a file of its own.
"""

from __future__ import annotations

from typing import Any

import pytest

from puna.model.load import LoadedModel, load_model
from puna.ops import Backend
from tests.model.models.parity import (
    check_greedy,
    log_probabilities_after_reuse,
    original,
    our_log_probabilities,
    random_tokens,
    reference_log_probabilities,
)
from tests.tiny_decoders import (
    GEMMA2,
    OLMO2,
    PHI3,
    POST_NORMS,
    QWEN2,
    QWEN3_MOE,
    TinyDecoder,
    tiny_decoder_gguf,
)

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
YARN_KEYS = {
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 64,
}
SHARED = {
    "num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 48,
}  # fmt: skip
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32}
MODELS = {
    "qwen2": QWEN2,
    "qwen2 tied, yarn": TinyDecoder(
        "qwen2", "qwen2", {"tie_word_embeddings": True, "rope_parameters": {"rope_theta": 5000.0, **YARN}},
        YARN_KEYS, seed=1,
    ),
    "qwen2moe": TinyDecoder("qwen2moe", "qwen2_moe", SHARED, seed=12),
    "qwen2moe normalised, gates are vectors": TinyDecoder(
        "qwen2moe", "qwen2_moe", {**SHARED, "norm_topk_prob": True}, {"expert_weights_norm": True},
        squeezed=True, seed=13,
    ),
    "granite": TinyDecoder(
        "granite", "granite",
        {"embedding_multiplier": 6.0, "residual_multiplier": 0.22, "attention_multiplier": 0.1,
         "logits_scaling": 0.5},
        {"embedding_scale": 6.0, "residual_scale": 0.22, "attention.scale": 0.1, "logit_scale": 0.5},
        permuted=True, seed=14,
    ),
    "command-r": TinyDecoder(
        "command-r", "cohere", {"logit_scale": 0.3},
        {"logit_scale": 0.3, "attention.layer_norm_epsilon": 1e-5, "rope.scaling.type": "none"}, seed=15,
    ),
    "cohere2": TinyDecoder(
        "cohere2", "cohere2", {"logit_scale": 0.3, "num_hidden_layers": 4, "sliding_window": 12},
        {"logit_scale": 0.3, "attention.layer_norm_epsilon": 1e-5, "attention.sliding_window": 12}, seed=16,
    ),
    "qwen3": TinyDecoder("qwen3", "qwen3", {"head_dim": 32, "rope_parameters": {"rope_theta": 1e6}}, seed=2),
    "qwen3moe": QWEN3_MOE,
    "qwen3moe not normalised": TinyDecoder(
        "qwen3moe", "qwen3_moe", {**EXPERTS, "head_dim": 16}, {"norm_top_k_prob": False}, seed=4
    ),
    "gemma2": GEMMA2,
    "gemma2 without caps": TinyDecoder(
        "gemma2", "gemma2",
        {"head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 32, "attn_logit_softcapping": None,
         "final_logit_softcapping": None},
        {"attention.sliding_window": 32, "attn_logit_softcapping": 0.0, "final_logit_softcapping": 0.0},
        POST_NORMS, norm_offset=1, seed=6,
    ),
    "phi3": PHI3,
    "phi3 in part, window": TinyDecoder(
        "phi3", "phi3",
        {"pad_token_id": 0, "num_attention_heads": 2, "num_key_value_heads": 1, "sliding_window": 12,
         "rope_parameters": {"rope_theta": 500.0, "rope_type": "default", "partial_rotary_factor": 0.75}},
        {"rope.dimension_count": 24, "attention.sliding_window": 12}, seed=8,
    ),
    "olmo2": OLMO2,
    "olmo2 many heads": TinyDecoder(
        "olmo2", "olmo2", {"pad_token_id": 0, "num_key_value_heads": 4, "num_hidden_layers": 3}, {},
        POST_NORMS, seed=10,
    ),
    "olmo3, yarn where all is seen": TinyDecoder(
        "olmo3", "olmo3",
        {
            "pad_token_id": 0, "num_hidden_layers": 4, "sliding_window": 8,
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 5000.0},
                "full_attention": {"rope_theta": 5000.0, **YARN},
            },
        },
        {
            **YARN_KEYS, "rope.freq_base": 5000.0, "attention.sliding_window": 8,
            "attention.sliding_window_pattern": [True, True, True, False], "rope.scaling.attn_factor": 1.2,
        },
        POST_NORMS, seed=11,
    ),
}  # fmt: skip


@pytest.fixture(scope="module", params=MODELS, ids=lambda name: name.replace(" ", "-"))
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, ops: Backend):
    """(ours, transformers')."""
    tiny = MODELS[request.param]
    theirs = original(tiny)
    path = tiny_decoder_gguf(tmp_path_factory.mktemp("decoder") / "model.gguf", tiny, model=theirs)
    return load_model(path, ops=ops), theirs


@pytest.mark.parametrize("parts", [[70], [32, 32, 6], [1] * 70], ids=["whole", "chunks", "tokens"])
def test_log_probabilities_agree_beside_another_sequence(
    pair: tuple[LoadedModel, Any], parts: list[int]
) -> None:
    ours, theirs = pair
    tokens = random_tokens(ours, 70, 11)
    found = our_log_probabilities(ours, tokens, parts)
    assert (found - reference_log_probabilities(theirs, tokens)).abs().max() < 1e-3


@pytest.mark.parametrize("chunk", [256, 10])
def test_log_probabilities_agree_after_prefix_reuse(pair: tuple[LoadedModel, Any], chunk: int) -> None:
    ours, theirs = pair
    tokens = random_tokens(ours, 70, 12)
    found = log_probabilities_after_reuse(ours, tokens, 50, chunk=chunk)
    assert len(found) in (20, 70)  # what a window has forgotten is read again
    assert (found - reference_log_probabilities(theirs, tokens)[-len(found) :]).abs().max() < 1e-3


@pytest.mark.slow
def test_greedy_output_agrees_token_for_token(pair: tuple[LoadedModel, Any]) -> None:
    check_greedy(*pair, count=20)

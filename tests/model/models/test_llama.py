"""Llama and Mixtral against Hugging Face transformers, on tiny random models in float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from puna.batch import Batch
from puna.kvcache.types import KVTypes
from puna.model.load import LoadedModel, load_model
from puna.ops import Backend
from tests.model.models.parity import (
    check_close,
    check_greedy,
    log_probabilities_after_reuse,
    original,
    our_log_probabilities,
    random_tokens,
    reference_log_probabilities,
)
from tests.tiny.forward import logits_of
from tests.tiny.llama import LLAMA3_ROPE, TinyLlama, tiny_llama_gguf

MODELS = {
    "grouped queries": TinyLlama(),
    "tied embeddings": TinyLlama(tied=True, seed=1),
    "one query per key": TinyLlama(heads=4, kv_heads=4, seed=2),
    "one key for all": TinyLlama(heads=4, kv_heads=1, seed=3),
    "llama 3 rope factors": TinyLlama(rope_scaling=LLAMA3_ROPE, seed=4),
    "linear rope scaling": TinyLlama(rope_scaling={"rope_type": "linear", "factor": 4.0}, seed=5),
    "large rope base, odd sizes": TinyLlama(
        hidden=96, feed_forward=80, heads=6, kv_heads=3, rope_base=5e5, seed=6
    ),
    "experts": TinyLlama(experts=8, feed_forward=48, rope_base=1e6, seed=7),
    "experts, one tensor each": TinyLlama(experts=4, experts_used=3, expert_tensors="single", seed=8),
    "experts, gate and up joined": TinyLlama(
        experts=5, experts_used=1, feed_forward=40, expert_tensors="joined", seed=9
    ),
}


@pytest.fixture(scope="module", params=MODELS, ids=[name.replace(" ", "-") for name in MODELS])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, ops: Backend):
    """Return our model and transformers', of one configuration."""
    config = MODELS[request.param]
    theirs = original(config)
    path = tiny_llama_gguf(tmp_path_factory.mktemp("llama") / "model.gguf", config, model=theirs)
    return load_model(path, ops=ops), theirs


@pytest.mark.parametrize("parts", [[70], [32, 32, 6], [69, 1], [1] * 8 + [62]], ids=str)
def test_log_probabilities_agree(pair: tuple[LoadedModel, Any], parts: list[int]) -> None:
    ours, theirs = pair
    tokens = random_tokens(ours, 70, 11)
    found = our_log_probabilities(ours, tokens, parts)
    check_close(ours, found, reference_log_probabilities(theirs, tokens))


def test_log_probabilities_agree_after_prefix_reuse(pair: tuple[LoadedModel, Any]) -> None:
    ours, theirs = pair
    tokens = random_tokens(ours, 70, 12)
    found = log_probabilities_after_reuse(ours, tokens, 50)
    assert len(found) == 20
    check_close(ours, found, reference_log_probabilities(theirs, tokens)[-20:])


@pytest.mark.slow
def test_greedy_output_agrees_token_for_token(pair: tuple[LoadedModel, Any]) -> None:
    ours, theirs = pair
    check_greedy(ours, theirs)


def test_shifted_keys_equal_those_of_the_new_positions(tmp_path: Path) -> None:
    """Only the first layer's keys do not depend on what was removed, so one layer is compared."""
    config = TinyLlama(layers=1, rope_scaling=LLAMA3_ROPE, seed=9)
    ours = load_model(tiny_llama_gguf(tmp_path / "one.gguf", config))
    tokens = list(range(50, 90))

    def keys_after(kept: list[int], removed: tuple[int, int] | None) -> torch.Tensor:
        cache = ours.make_cache(sequences=1, context=64, types=KVTypes.parse("f32"))
        batch = Batch.of(kept, list(range(len(kept))), [0] * len(kept), [])
        with torch.inference_mode():
            cache.start_forward(batch)
            logits_of(ours.model, batch, cache)
        if removed:
            cache.remove(0, *removed)
        keys = cache.layer(0).view().keys.numbers(cache.cells.cells(0))
        return torch.from_numpy(ours.ops.numpy(keys).copy())

    shifted = keys_after(tokens, (5, 25))
    direct = keys_after(tokens[:5] + tokens[25:], None)
    torch.testing.assert_close(shifted, direct, atol=2e-5, rtol=0)

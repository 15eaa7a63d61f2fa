"""Rotations of Phi 3 and MiniCPM 4, which depend on the size of the context."""

from __future__ import annotations

from pathlib import Path

import pytest

from puna.model.load import load_model
from puna.ops import Backend
from tests.model.models.parity import (
    FLOATS,
    check_close,
    original,
    random_tokens,
    read,
    reference_log_probabilities,
)
from tests.tiny.decoders import TinyDecoder, tiny_decoder_gguf

FIRST, CONTEXT = 32, 256


def tiny(hf: str, pairs: int, **rope: float) -> TinyDecoder:
    short, long = [1.0 + 0.1 * i for i in range(pairs)], [1.5 + 2.0 * i for i in range(pairs)]
    return TinyDecoder(
        hf,
        {
            "pad_token_id": 0, "num_hidden_layers": 1, "original_max_position_embeddings": FIRST,
            "rope_parameters": {
                "rope_type": "longrope", "rope_theta": 10000.0, "short_factor": short, "long_factor": long,
                "original_max_position_embeddings": FIRST, **rope,
            },
        },
    )  # fmt: skip


TINY = tiny("phi3", 6, partial_rotary_factor=0.75)
MODELS = {"phi3": TINY, "llama": tiny("llama", 8)}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("context", "count"), [(FIRST, 30), (CONTEXT, 70)], ids=["short", "long"])
def test_the_context_selects_the_rotation_factors(
    tmp_path: Path, ops: Backend, context: int, count: int, name: str
) -> None:
    """The reference decides by the text's length, so texts here are as long as their contexts allow."""
    theirs = original(MODELS[name])
    ours = load_model(tiny_decoder_gguf(tmp_path / "m.gguf", MODELS[name], model=theirs), ops=ops)
    tokens = random_tokens(ours, count, 11)
    cache = ours.make_cache(sequences=1, context=context, types=FLOATS)
    ours.make_cache(
        sequences=1, context=FIRST + CONTEXT - context, types=FLOATS
    )  # caches of other contexts have no effect
    expected = reference_log_probabilities(theirs, tokens)
    assert (read(ours, cache, 0, tokens[:20]) - expected[:20]).abs().max() < 1e-3
    assert (read(ours, cache, 0, tokens[20:]) - expected[20:]).abs().max() < 1e-3


@pytest.mark.parametrize(("context", "count"), [(FIRST, 20), (CONTEXT, 60)], ids=["short", "long"])
def test_a_shift_uses_the_contexts_rotation_factors(tmp_path: Path, context: int, count: int) -> None:
    """The model has one layer, so the remaining keys do not depend on what was removed."""
    theirs = original(TINY)
    ours = load_model(tiny_decoder_gguf(tmp_path / "phi3.gguf", TINY, model=theirs))
    tokens = random_tokens(ours, count + 11, 12)
    cache = ours.make_cache(sequences=1, context=context, types=FLOATS)
    read(ours, cache, 0, tokens[: count + 5])
    cache.remove(0, 3, 8)
    found = read(ours, cache, 0, tokens[count + 5 :])
    expected = reference_log_probabilities(theirs, [*tokens[:3], *tokens[8:]])
    check_close(ours, found, expected[-len(found) :])

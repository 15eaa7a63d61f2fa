"""Latent attention: the contents of the cache, and files that leave out settings."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from puna.errors import ModelError
from puna.kvcache.storage import KVShape
from puna.model.load import LoadedModel, load_model
from tests.model.models.parity import (
    check_close,
    check_restored,
    check_shifted,
    original,
    our_log_probabilities,
    random_tokens,
    reference_log_probabilities,
)
from tests.tiny.decoders import tiny_decoder_gguf
from tests.tiny.latent import DEEPSEEK_V3, LATENT, ROPE, TinyLatent


def loaded(folder: Path, tiny: TinyLatent, **metadata: Any) -> LoadedModel:
    keys = {key.replace("__", "."): value for key, value in metadata.items()}
    changed = dataclasses.replace(tiny, metadata={**tiny.metadata, **keys})
    return load_model(tiny_decoder_gguf(folder / "model.gguf", changed, model=original(tiny)))


@pytest.mark.parametrize("joined", [False, True], ids=["split", "joined"])
def test_only_a_latent_and_a_rotated_key_are_cached(tmp_path: Path, joined: bool) -> None:
    ours = loaded(tmp_path, dataclasses.replace(DEEPSEEK_V3, joined=joined))
    assert set(ours.model.kv_shapes().values()) == {KVShape(1, ROPE + LATENT, LATENT, values_in_keys=True)}
    layers, numbers = len(ours.model.options.layers), ROPE + LATENT
    cache = ours.make_cache(sequences=2, context=100)
    assert cache.allocated_bytes == layers * 200 * numbers * 2


def test_saved_latents_are_restored(tmp_path: Path) -> None:
    ours = loaded(tmp_path, DEEPSEEK_V3)
    check_restored(ours, random_tokens(ours, 40, 5), saved=30)


def test_shifted_keys_equal_those_computed_at_the_new_positions(tmp_path: Path) -> None:
    settings = {**DEEPSEEK_V3.settings, "num_hidden_layers": 1, "first_k_dense_replace": 1}
    tiny = dataclasses.replace(DEEPSEEK_V3, settings=settings)
    check_shifted(loaded(tmp_path, tiny), original(tiny))


@pytest.mark.parametrize(
    "missing",
    [{"rope.scaling.type": None}, {"expert_gating_func": None, "expert_weights_norm": None}],
    ids=["yarn", "routing"],
)
def test_defaults_replace_missing_settings(tmp_path: Path, missing: dict[str, None]) -> None:
    ours = loaded(tmp_path, DEEPSEEK_V3, **missing)
    tokens = random_tokens(ours, 70, 4)
    found = our_log_probabilities(ours, tokens, [70])
    check_close(ours, found, reference_log_probabilities(original(DEEPSEEK_V3), tokens))


def test_norms_of_latents_have_their_own_epsilon(tmp_path: Path) -> None:
    """The epsilon is 1e-6, independent of the layers' norms."""
    tiny = dataclasses.replace(DEEPSEEK_V3, settings={**DEEPSEEK_V3.settings, "rms_norm_eps": 0.1})
    ours = loaded(tmp_path, tiny)
    tokens = random_tokens(ours, 40, 4)
    found = our_log_probabilities(ours, tokens, [40])
    check_close(ours, found, reference_log_probabilities(original(tiny), tokens))


@pytest.mark.parametrize(
    ("key", "value", "complaint"),
    [
        ("attention.kv_lora_rank", 2**31 - 1, "rank' is 2147483647, but tensor 'blk.0.attn_kv_a_norm"),
        ("attention.kv_lora_rank", None, "metadata key 'deepseek2.attention.kv_lora_rank' is missing"),
        ("rope.dimension_count", 10, "is 10 and makes 42 rows of 'blk.0.attn_kv_a_mqa.weight', not 48"),
        ("rope.dimension_count", 28, "rope.dimension_count' is 28, all 28 dimensions of a head"),
        ("attention.value_length_mla", 2**31 - 1, "value_length_mla' is 4 x 2147483647, but tensor"),
        ("attention.key_length_mla", 24, "tensor 'blk.0.attn_q_b.weight' has 112x40 values, expected 96x40"),
        ("attention.q_lora_rank", 0, "tensor 'blk.0.attn_q.weight' is missing"),
    ],
)
def test_sizes_that_do_not_fit_the_tensors_are_refused(
    tmp_path: Path, key: str, value: int | None, complaint: str
) -> None:
    with pytest.raises(ModelError, match=complaint):
        loaded(tmp_path, DEEPSEEK_V3, **{key: value})

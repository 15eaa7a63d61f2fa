"""Attention to the positions that an indexer chooses: its cache, and files that leave out settings."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from puna.batch import Batch
from puna.errors import ModelError
from puna.kvcache.storage import KVShape
from puna.model.layer_cache import ChosenBy, Everything
from puna.model.load import LoadedModel
from puna.model.stages import places_to_cut
from tests.model.models.parity import (
    FLOATS,
    check_few_chosen,
    check_restored,
    check_rounded_keys,
    check_shifted,
    original,
    our_log_probabilities,
    random_tokens,
    read,
)
from tests.model.models.test_deepseek2 import loaded
from tests.tiny.latent import DEEPSEEK_V32, GLM_DSA, LATENT, ROPE, TinyLatent

INDEXER = 24
BOTH = pytest.mark.parametrize("tiny", [DEEPSEEK_V32, GLM_DSA], ids=["deepseek32", "glm-dsa"])


def with_settings(tiny: TinyLatent, **settings: Any) -> TinyLatent:
    return dataclasses.replace(tiny, settings={**tiny.settings, **settings})


def remembered(ours: LoadedModel) -> list[Any]:
    return [layer.remembers for layer in ours.model.options.layers]


def test_layers_that_use_anothers_choice_keep_no_keys_for_choosing(tmp_path: Path) -> None:
    ours = loaded(tmp_path, GLM_DSA)
    assert remembered(ours) == [Everything(), ChosenBy(0), Everything(), ChosenBy(2)]
    shapes = [ours.model.kv_shapes()[layer] for layer in range(4)]
    shared = KVShape(1, ROPE + LATENT, LATENT, values_in_keys=True)
    assert shapes == [dataclasses.replace(shared, indexer_dim=INDEXER), shared] * 2
    cache = ours.make_cache(sequences=2, context=100)
    assert cache.allocated_bytes == 200 * (4 * (ROPE + LATENT) + 2 * INDEXER) * 2
    assert places_to_cut(remembered(ours)) == [2]


@BOTH
def test_saved_keys_are_restored(tmp_path: Path, tiny: TinyLatent) -> None:
    ours = loaded(tmp_path, tiny)
    check_restored(ours, random_tokens(ours, 60, 5), saved=40)


@BOTH
def test_shifted_keys_equal_those_computed_at_the_new_positions(tmp_path: Path, tiny: TinyLatent) -> None:
    types = {"indexer_types": ["full"]} if tiny is GLM_DSA else {}
    tiny = with_settings(tiny, num_hidden_layers=1, first_k_dense_replace=1, **types)
    check_shifted(loaded(tmp_path, tiny), original(tiny))


@BOTH
def test_rows_have_the_same_bits_in_any_batch(tmp_path: Path, tiny: TinyLatent) -> None:
    """A prompt in one batch, in pieces beside others, and after a shared prefix."""
    ours = loaded(tmp_path, tiny)
    tokens = random_tokens(ours, 70, 6)
    whole = our_log_probabilities(ours, tokens, [70])
    assert torch.equal(our_log_probabilities(ours, tokens, [1, 30, 20, 19]), whole)
    cache = ours.make_cache(sequences=2, context=128, types=FLOATS)
    read(ours, cache, 0, [*tokens[:50], *range(20)])
    cache.copy_prefix(0, 1, 50)
    assert torch.equal(read(ours, cache, 1, tokens[50:]), whole[50:])


def test_choosing_all_positions_is_attention_to_all(tmp_path: Path) -> None:
    """The bits are those of a context too short for a choice, and the choice of fewer changes them."""
    found = []
    for most in (12, 70, 4096):
        folder = tmp_path / str(most)
        folder.mkdir()
        ours = loaded(folder, DEEPSEEK_V32, attention__indexer__top_k=most)
        found.append(our_log_probabilities(ours, random_tokens(ours, 70, 7), [70]))
    check_few_chosen(*found, same=12)


def test_keys_of_few_bits_choose_nearly_the_same_positions(tmp_path: Path) -> None:
    """Queries are rotated like the stored keys: otherwise, most rows attend to other positions."""
    sizes = {"qk_rope_head_dim": 32, "index_head_dim": 32}  # whole blocks
    tiny = with_settings(DEEPSEEK_V32, num_hidden_layers=1, first_k_dense_replace=1, **sizes)
    check_rounded_keys(loaded(tmp_path, tiny))


def test_a_pass_keeps_the_latest_choice_and_is_counted_with_the_one_before(tmp_path: Path) -> None:
    counted, rows = [], 20
    for most, width in ((12, 512), (2000, 2048)):
        folder = tmp_path / str(most)
        folder.mkdir()
        ours = loaded(folder, GLM_DSA, attention__indexer__top_k=most, context_length=4096)
        cache = ours.make_cache(sequences=1, context=64)
        batch = Batch.of([7] * rows, list(range(rows)), [0] * rows, list(range(rows)))
        cache.start_forward(batch)
        arrays = batch.on(ours.model.ops)
        ours.model.hidden(arrays, cache)
        assert {layer: len(lists) for layer, (lists, _, _) in arrays.choices.items()} == {2: rows * width}
        counted.append(ours.model.options.layers[0].mixing_values)
    assert counted[1] - counted[0] == 2 * (2048 - 512)


def test_files_of_glm_5_2_without_kinds_of_indexers_share_in_fours(tmp_path: Path) -> None:
    missing = {"attention__indexer__types": None}
    tiny = with_settings(GLM_DSA, num_hidden_layers=8, indexer_types=["full"] * 8)
    (tmp_path / "short").mkdir()
    assert remembered(loaded(tmp_path / "short", tiny, **missing)) == [Everything()] * 8
    shared = remembered(loaded(tmp_path, tiny, **missing, context_length=1 << 20))
    assert shared == [Everything()] * 3 + [ChosenBy(2)] * 3 + [Everything(), ChosenBy(6)]


@pytest.mark.parametrize(
    ("key", "value", "complaint"),
    [
        ("attention.indexer.top_k", None, "metadata key 'glm-dsa.attention.indexer.top_k' is missing"),
        ("attention.indexer.top_k", 0, "top_k' should be positive, but is 0"),
        ("attention.indexer.key_length", 2**31 - 1, "is 2147483647, but tensor 'blk.0.indexer.k_norm"),
        ("attention.indexer.key_length", 8, "is 16, more than the 8 numbers of an indexer's key"),
        ("attention.indexer.head_count", 7, "is 7 x 24, but tensor 'blk.[01].indexer.attn_q_b"),
        ("attention.indexer.types", [True] * 4, "tensor 'blk.1.indexer.attn_q_b.weight' is missing"),
        ("attention.indexer.types", [False, True, True, True], "has no indexer for the first layer"),
        ("attention.indexer.types", [True, True], "should have true or false for each of the 4 layers"),
        ("attention.q_lora_rank", 0, "q_lora_rank' should be positive, but is 0"),
    ],
)  # fmt: skip
def test_settings_that_do_not_fit_are_refused(tmp_path: Path, key: str, value: Any, complaint: str) -> None:
    with pytest.raises(ModelError, match=complaint):
        loaded(tmp_path, GLM_DSA, **{key: value})

"""Attention to blocks of positions: its cache, its choice, and files whose settings do not fit."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from puna.convert import convert
from puna.errors import ConversionError, ModelError
from puna.gguf import FileType
from puna.kvcache.storage import KVShape
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
from tests.tiny.converted import contents_of, converted
from tests.tiny.decoders import TinyDecoder
from tests.tiny.minimax import MINIMAX_M3, save_published

INDEXER = 12


def with_settings(**settings: Any) -> TinyDecoder:
    return dataclasses.replace(MINIMAX_M3, settings={**MINIMAX_M3.settings, **settings})


ONE_LAYER = with_settings(num_hidden_layers=1, mlp_layer_types=["sparse"], layer_types=["minimax_m3_sparse"])


def test_only_layers_with_an_indexer_keep_its_keys(tmp_path: Path) -> None:
    ours = loaded(tmp_path, MINIMAX_M3)
    plain = KVShape(2, 16, 16)
    indexed = dataclasses.replace(plain, indexer_dim=INDEXER)
    assert [ours.model.kv_shapes()[layer] for layer in range(3)] == [plain, indexed, indexed]
    cache = ours.make_cache(sequences=2, context=100)
    assert cache.allocated_bytes == 200 * (3 * 2 * (16 + 16) + 2 * INDEXER) * 2


def test_saved_keys_are_restored(tmp_path: Path) -> None:
    ours = loaded(tmp_path, MINIMAX_M3)
    check_restored(ours, random_tokens(ours, 60, 5), saved=40)


def test_shifted_keys_equal_those_computed_at_the_new_positions(tmp_path: Path) -> None:
    """Blocks are those of the new positions, too."""
    check_shifted(loaded(tmp_path, ONE_LAYER), original(ONE_LAYER))


def test_rows_have_the_same_bits_in_any_batch(tmp_path: Path) -> None:
    """A prompt in one batch, in pieces beside others, and after a shared prefix that ends within a block."""
    ours = loaded(tmp_path, MINIMAX_M3)
    tokens = random_tokens(ours, 70, 6)
    whole = our_log_probabilities(ours, tokens, [70])
    assert torch.equal(our_log_probabilities(ours, tokens, [1, 32, 18, 19]), whole)
    cache = ours.make_cache(sequences=2, context=128, types=FLOATS)
    read(ours, cache, 0, [*tokens[:53], *range(20)])
    cache.copy_prefix(0, 1, 53)
    assert torch.equal(read(ours, cache, 1, tokens[53:]), whole[53:])


def test_choosing_all_blocks_is_attention_to_all_positions(tmp_path: Path) -> None:
    """The bits are those of a context too short for a choice, and the choice of fewer changes them."""
    found = []
    for most in (3, 14, 4096):
        folder = tmp_path / str(most)
        folder.mkdir()
        ours = loaded(folder, MINIMAX_M3, attention__indexer__top_k=most)
        found.append(our_log_probabilities(ours, random_tokens(ours, 70, 7), [70]))
    check_few_chosen(*found, same=15)


def test_keys_of_few_bits_choose_nearly_the_same_blocks(tmp_path: Path) -> None:
    """Queries are rotated like the stored keys: otherwise, most rows attend to other blocks."""
    sizes = {"head_dim": 32, "index_head_dim": 32, "rotary_dim": 16}  # whole blocks of numbers
    tiny = dataclasses.replace(ONE_LAYER, settings={**ONE_LAYER.settings, **sizes})
    check_rounded_keys(loaded(tmp_path, tiny))


def test_lists_of_chosen_cells_are_counted(tmp_path: Path) -> None:
    counted = []
    for most in (3, 300):
        folder = tmp_path / str(most)
        folder.mkdir()
        ours = loaded(folder, MINIMAX_M3, attention__indexer__top_k=most, context_length=4096)
        counted.append(ours.model.options.layers[1].mixing_values)
    assert counted[1] - counted[0] == 2 * (1536 - 512)


@pytest.mark.parametrize(
    ("key", "value", "complaint"),
    [
        ("top_k", None, "metadata key 'minimax-m3.attention.indexer.top_k' is missing"),
        ("top_k", 0, "top_k' should be positive, but is 0"),
        ("block_size", None, "metadata key 'minimax-m3.attention.indexer.block_size' is missing"),
        ("local_blocks", 4, "local_blocks' is 4, of the 3 blocks attended to"),
        ("local_blocks", -1, "local_blocks' is -1, of the 3 blocks attended to"),
        ("key_length", 2**31 - 1, "is 2147483647, but tensor 'blk.1.indexer.k_norm"),
        ("key_length", 6, "is 8, more than the 6 numbers of an indexer's key"),
        ("head_count", 4, "head_count' is 4, but layer 1 has 2 key/value heads"),
    ],
)
def test_settings_that_do_not_fit_are_refused(tmp_path: Path, key: str, value: Any, complaint: str) -> None:
    with pytest.raises(ModelError, match=complaint):
        loaded(tmp_path, MINIMAX_M3, **{f"attention__indexer__{key}": value})


def test_published_folders_become_the_same_file(tmp_path: Path) -> None:
    expected = converted(original(MINIMAX_M3))
    convert(
        save_published(tmp_path / "published", original(MINIMAX_M3)),
        tmp_path / "model.gguf",
        FileType.F32,
        name="Tiny",
    )
    found = contents_of(tmp_path / "model.gguf")
    assert found.architecture == expected.architecture == "minimax-m3"
    assert found.keys == expected.keys
    assert found.tensors.keys() == expected.tensors.keys()
    assert all(np.array_equal(found.tensors[name], expected.tensors[name]) for name in expected.tensors)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"sparse": {"sparse_init_block": 1}}, "sparse_init_block' is 1, but"),
        ({"sparse": {"sparse_score_type": "mean"}}, "sparse_score_type' is 'mean', but"),
        ({"sparse": {"sparse_disable_index_value": [0, 0, 1]}}, "sparse_disable_index_value' is"),
        ({"sparse": {"use_sparse_attention": False}}, "use_sparse_attention' is False, but"),
        ({"sparse": {"sparse_attention_freq": [0, 0, 1]}}, "sparse attention in the same layers"),
        ({"sparse": {"sparse_attention_freq": None}}, "sparse attention in the same layers"),
        ({"moe_layer_freq": [1, 0, 1]}, "sparse attention in the same layers"),
        ({"layer_types": ["full_attention"] * 3}, "sparse attention in the same layers"),
        ({"sparse": {"sparse_num_index_heads": 1}}, "'index_n_heads' is 1, but there are 2 key/value heads"),
        ({"sparse": {"sparse_index_dim": 6}}, "'index_head_dim' is 6, fewer than the 8 values that rotate"),
        ({"sparse": {"sparse_local_block": 4}}, "'index_local_blocks' is 4, of the 3 blocks"),
        ({"shared_intermediate_size": 40}, "'shared_intermediate_size' is 40, not a multiple of"),
        ({"n_shared_experts": 1}, "n_shared_experts' is 1, but"),
        ({"swiglu_limit": 6.0}, "swiglu_limit' is 6.0, but"),
        ({"swiglu_alpha": 1.5}, "swiglu_alpha' is 1.5, but"),
        ({"rotary_dim": 16}, "rotary_dim' is 16, but"),
        ({"qk_norm_type": "per_layer"}, "qk_norm_type' is 'per_layer', but"),
        ({"use_gemma_norm": False}, "use_gemma_norm' is False, but"),
        ({"attention_output_gate": True}, "attention_output_gate' is True, but"),
        ({"scoring_func": "softmax"}, "scoring_func' is 'softmax', but"),
    ],
)
def test_settings_that_files_cannot_carry_are_refused(
    tmp_path: Path, changes: dict[str, Any], complaint: str
) -> None:
    folder = save_published(tmp_path / "published", original(MINIMAX_M3), **changes)
    with pytest.raises(ConversionError, match=complaint):
        convert(folder, tmp_path / "model.gguf", FileType.F32)

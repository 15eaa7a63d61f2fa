"""DeepSeek V4's window and entries: any split of a prompt, prefixes, drafts, and files that do not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from puna.batch import Batch
from puna.errors import ModelError, NotSupportedError
from puna.kvcache.types import KVTypes
from puna.model.layer_cache import Window, WindowAndEntries
from puna.model.load import LoadedModel, load_model
from puna.model.stages import places_to_cut
from tests.model.models.parity import (
    FLOATS,
    check_restored,
    original,
    our_log_probabilities,
    random_tokens,
    read,
)
from tests.model.models.test_deepseek2 import loaded
from tests.model.models.test_deepseek32 import with_settings
from tests.tiny.compressed import DEEPSEEK_V4
from tests.tiny.forward import logits_of

WINDOW = 9


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return loaded(tmp_path_factory.mktemp("deepseek4"), DEEPSEEK_V4)


@pytest.fixture(scope="module")
def whole(ours: LoadedModel) -> torch.Tensor:
    return our_log_probabilities(ours, random_tokens(ours, 75, 6), [75])


def test_layers_remember_windows_and_entries(ours: LoadedModel) -> None:
    kept = [layer.remembers for layer in ours.model.options.layers]
    sparse = WindowAndEntries(WINDOW, 4, True)
    assert kept == [Window(WINDOW), WindowAndEntries(WINDOW, 7, False), sparse, sparse]
    assert places_to_cut(kept) == [1, 2, 3]


@pytest.mark.parametrize("parts", [[1, 1, 17, 2, 30, 5, 1, 18], [28, 28, 19]], ids=str)
def test_rows_have_the_same_bits_however_a_prompt_is_split(
    ours: LoadedModel, whole: torch.Tensor, parts: list[int]
) -> None:
    assert torch.equal(our_log_probabilities(ours, random_tokens(ours, 75, 6), parts), whole)


@pytest.mark.parametrize("cut", range(49, 57))
def test_a_prefix_goes_on_beside_another_sequence_after_drafts_were_removed(
    ours: LoadedModel, whole: torch.Tensor, cut: int
) -> None:
    """The drafts complete groups of both sizes; the pass is undone and repeated."""
    tokens = random_tokens(ours, 75, 6)
    cache = ours.make_cache(sequences=2, context=128, types=FLOATS)
    read(ours, cache, 0, tokens[: cut - 1])
    read(ours, cache, 0, [tokens[cut - 1], 1, 2, 3])
    cache.remove(0, cut)
    cache.copy_prefix(0, 1, cut)
    assert cache.can_resume(1, cut)
    rows = 75 - cut
    batch = Batch.of(
        [9, 9, 9, *tokens[cut:]],
        [*range(cut, cut + 3), *range(cut, 75)],
        [0] * 3 + [1] * rows,
        list(range(3, 3 + rows)),
    )
    for _ in range(2):
        with torch.inference_mode():
            cache.start_forward(batch)
            found = torch.log_softmax(logits_of(ours.model, batch, cache), dim=-1)
        assert torch.equal(found, whole[cut:])
        cache.undo_forward()


def test_a_prefix_that_the_window_forgot_is_read_again(ours: LoadedModel, whole: torch.Tensor) -> None:
    tokens = random_tokens(ours, 75, 6)
    cache = ours.make_cache(sequences=2, context=128, types=FLOATS)
    read(ours, cache, 0, tokens[:60])
    read(ours, cache, 0, tokens[60:])
    assert cache.resume_point(0, 40) == 0
    assert cache.forgets


def test_saved_entries_are_restored(ours: LoadedModel) -> None:
    check_restored(ours, random_tokens(ours, 60, 5), saved=42)


def test_cells_move_together_without_a_change(ours: LoadedModel, whole: torch.Tensor) -> None:
    tokens = random_tokens(ours, 75, 6)
    cache = ours.make_cache(sequences=2, context=128, types=FLOATS)
    read(ours, cache, 0, tokens[:40])
    read(ours, cache, 1, tokens[:33])
    cache.remove(0, 0)
    moved = 0
    while cache.compact(7):  # type: ignore[attr-defined]
        moved += 1
    assert moved
    assert torch.equal(read(ours, cache, 1, tokens[33:]), whole[33:])


def test_the_middle_of_a_sequence_cannot_be_removed(ours: LoadedModel) -> None:
    cache = ours.make_cache(sequences=1, context=128, types=FLOATS)
    read(ours, cache, 0, random_tokens(ours, 30, 6))
    with pytest.raises(NotSupportedError):
        cache.remove(0, 3, 9)
    assert cache.length(0) == 30


@pytest.mark.parametrize(("types", "limit"), [("f16", 0.05), ("q8_0", 0.5)])
def test_entries_of_fewer_bits_change_little(tmp_path: Path, types: str, limit: float) -> None:
    """Inputs of entries are not rounded, and the indexer's queries are transformed like its stored keys."""
    other = loaded(tmp_path, with_settings(DEEPSEEK_V4, index_head_dim=32))  # whole blocks
    tokens = random_tokens(other, 75, 6)
    exact, rounded = (
        read(other, other.make_cache(sequences=1, context=128, types=each), 0, tokens)
        for each in (FLOATS, KVTypes.parse(types))
    )
    assert (rounded - exact).abs().amax(1).mean() < limit


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("swiglu_clamp_exp", None), ("swiglu_clamp_shexp", [0.5, 0.5, 0.5, 0.0]),
        ("hyper_connection.epsilon", 1e-6), ("hyper_connection.sinkhorn_iterations", 1),
        ("attention.compress_rope_freq_base", 160000.0), ("rope.freq_base", 500.0),
        ("rope.scaling.factor", 1.5), ("attention.indexer.top_k", 5), ("attention.sliding_window", 8),
        ("expert_gating_func", 2), ("expert_weights_scale", 1.0), ("rope.dimension_count", 4),
    ],
)  # fmt: skip
def test_each_setting_changes_the_result(
    tmp_path: Path, ours: LoadedModel, whole: torch.Tensor, key: str, value: Any
) -> None:
    other = loaded(tmp_path, DEEPSEEK_V4, **{key.replace(".", "__"): value})
    found = our_log_probabilities(other, random_tokens(ours, 75, 6), [75])
    assert (found - whole).abs().max() > 1e-2


@pytest.mark.parametrize("key", ["rope.scaling.attn_factor", "swiglu_clamp_shexp"])
def test_settings_that_other_files_lack_have_no_effect(
    tmp_path: Path, ours: LoadedModel, whole: torch.Tensor, key: str
) -> None:
    """YaRN's magnitude does not apply, and the shared expert's limit is that of the others."""
    other = loaded(tmp_path, DEEPSEEK_V4, **{key.replace(".", "__"): 1.7 if "factor" in key else None})
    assert torch.equal(our_log_probabilities(other, random_tokens(ours, 75, 6), [75]), whole)


def test_ratios_of_further_layers_are_left_out(tmp_path: Path, whole: torch.Tensor) -> None:
    """Published files state those of the layers that predict further tokens."""
    other = loaded(tmp_path, DEEPSEEK_V4, attention__compress_ratios=[0, 7, 4, 4, 0])
    assert torch.equal(our_log_probabilities(other, random_tokens(other, 75, 6), [75]), whole)


@pytest.mark.parametrize(
    ("key", "value", "complaint"),
    [
        ("attention.compress_ratios", None, "metadata key 'deepseek4.attention.compress_ratios' is missing"),
        ("attention.compress_ratios", [0, 7, 4], "a number of positions for each of the 4 layers"),
        ("attention.compress_ratios", 4, "a number of positions for each of the 4 layers"),
        ("attention.compress_ratios", [0, 7, 4, -4], "for each of the 4 layers, not .*-4"),
        ("attention.compress_ratios", [0, 8, 4, 4], "compress_ratios' is 8, but tensor 'blk.1.attn_compr"),
        ("attention.compress_ratios", [0, 0, 4, 4], "compress_ratios' is 0, but tensor 'blk.1.attn_compr"),
        ("hyper_connection.count", 2, "tensor 'blk.0.hc_attn_fn.weight' has 15x192 values, expected 8x128"),
        ("hyper_connection.count", 1000, "is 1000, more than 64"),
        ("hyper_connection.sinkhorn_iterations", 0, "sinkhorn_iterations' should be positive, but is 0"),
        ("hyper_connection.sinkhorn_iterations", 1001, "is 1001, more than 1000"),
        ("attention.head_count_kv", 2, "head_count_kv' should be 1, but is 2"),
        ("attention.value_length", 16, "is 16, but keys of 32 numbers are the values"),
        ("attention.key_length", 16, "is 32, but keys of 16 numbers are the values"),
        ("attention.output_group_count", 4, "is 4, which does not divide 6 heads"),
        ("attention.output_group_count", 3, "tensor 'blk.0.attn_output_a.weight' has 40x96 values"),
        ("attention.indexer.key_length", 6, "is 8, more than the 6 numbers of an indexer's key"),
        ("attention.indexer.key_length", 26, "indexer.key_length' is 26, but tensor"),
        ("attention.compress_rope_freq_base", 0.5, "should be above 1, but is 0.5"),
        ("attention.sliding_window", None, "metadata key 'deepseek4.attention.sliding_window' is missing"),
        ("expert_count", None, "metadata key 'deepseek4.feed_forward_length' is missing"),
        ("expert_shared_count", 0, "should be a number of experts in every layer, and a shared one"),
        ("swiglu_clamp_exp", [1.0], "should have a limit for each of the 4 layers"),
        ("hash_layer_count", 3, "tensor 'blk.2.ffn_gate_tid2eid.weight' is missing"),
        ("hash_layer_count", 1, "tensor 'blk.1.exp_probs_b.weight' is missing"),
    ],
)  # fmt: skip
def test_settings_that_do_not_fit_are_refused(tmp_path: Path, key: str, value: Any, complaint: str) -> None:
    with pytest.raises(ModelError, match=complaint):
        loaded(tmp_path, DEEPSEEK_V4, **{key.replace(".", "__"): value})


@pytest.mark.parametrize("wrong", [-1.0, 7.0, 0.5])
def test_tables_of_experts_that_do_not_exist_are_refused(tmp_path: Path, wrong: float) -> None:
    found = DEEPSEEK_V4.contents(original(DEEPSEEK_V4))
    name = "blk.1.ffn_gate_tid2eid.weight"
    found.tensors[name] = found.tensors[name].copy()
    assert np.array_equal(np.unique(found.tensors[name]), np.arange(7))
    found.tensors[name][5, 2] = wrong
    with pytest.raises(ModelError, match=f"tensor '{name}' names experts beyond the 7"):
        load_model(found.write(tmp_path / "model.gguf"))

"""Qwen 3.8 Flash Next: any split of a text with n-grams and blocks, and files that do not fit."""

from __future__ import annotations

import dataclasses
import json
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from puna.convert import convert
from puna.errors import ConversionError, ModelError
from puna.gguf import FileType
from puna.kvcache.storage import KVShape
from puna.model.load import LoadedModel
from tests.convert.checkpoints import saved
from tests.model.models.parity import (
    FLOATS,
    check_close,
    check_restored,
    check_rounded_keys,
    original,
    our_log_probabilities,
    random_tokens,
    read,
    reference_log_probabilities,
)
from tests.model.models.test_deepseek2 import loaded
from tests.tiny.converted import contents_of, converted
from tests.tiny.hybrids import QWEN4

BOUNDARY = QWEN4.settings["eos_token_id"]
#: Ways to read 70 tokens.
SPLITS = ([70], [1, 30, 20, 19], [1] * 70, [2, 1, 4, 63])
needs_our_products = pytest.mark.skipif(
    os.environ.get("PUNA_OPS") == "gpu", reason="the bits of torch's products depend on the batch"
)


def with_boundaries(ours: LoadedModel, seed: int) -> list[int]:
    """Return 70 tokens, every third of which ends a text."""
    dice, tokens = random.Random(seed), random_tokens(ours, 70, seed)
    return [BOUNDARY if dice.random() < 0.3 else token for token in tokens]


@needs_our_products
def test_rows_have_the_same_bits_in_any_batch(tmp_path: Path) -> None:
    """A prompt in one batch, and in pieces of which some end within a block and an n-gram."""
    ours = loaded(tmp_path, QWEN4)
    for tokens in (random_tokens(ours, 70, 6), with_boundaries(ours, 7)):
        whole = our_log_probabilities(ours, tokens, SPLITS[0])
        for parts in SPLITS[1:]:
            assert torch.equal(our_log_probabilities(ours, tokens, parts), whole)


@needs_our_products
def test_two_texts_in_one_batch_do_not_mix(tmp_path: Path) -> None:
    """Neither their n-grams nor their blocks."""
    from puna.batch import Batch
    from tests.tiny.forward import logits_of

    ours = loaded(tmp_path, QWEN4)
    texts = [random_tokens(ours, 33, 8), random_tokens(ours, 21, 9)]
    cache = ours.make_cache(sequences=2, context=64, types=FLOATS)
    found: list[list[torch.Tensor]] = [[], []]
    for begin, end in ((0, 11), (11, 19), (19, 33)):
        parts = [text[begin:end] for text in texts]
        tokens, sequences = [*parts[0], *parts[1]], [0] * len(parts[0]) + [1] * len(parts[1])
        positions = [begin + row for part in parts for row in range(len(part))]
        cache.start_forward(batch := Batch.of(tokens, positions, sequences, list(range(len(tokens)))))
        logits = torch.log_softmax(logits_of(ours.model, batch, cache), dim=-1)
        for number, rows in enumerate(logits.split([len(part) for part in parts])):
            found[number].append(rows)
    for text, rows in zip(texts, found, strict=True):
        assert torch.equal(torch.cat(rows), our_log_probabilities(ours, text, [len(text)]))


@pytest.mark.parametrize("parts", SPLITS, ids=lambda parts: str(len(parts)))
def test_n_grams_begin_anew_after_the_end_of_a_text(tmp_path: Path, parts: list[int]) -> None:
    ours, theirs = loaded(tmp_path, QWEN4), original(QWEN4)
    tokens = with_boundaries(ours, 10)
    check_close(ours, our_log_probabilities(ours, tokens, parts), reference_log_probabilities(theirs, tokens))


def test_saved_states_are_restored(tmp_path: Path) -> None:
    ours = loaded(tmp_path, QWEN4)
    check_restored(ours, random_tokens(ours, 60, 5), saved=38)


@needs_our_products
def test_a_shared_prefix_may_end_within_a_block_and_an_n_gram(tmp_path: Path) -> None:
    ours = loaded(tmp_path, QWEN4)
    tokens = random_tokens(ours, 70, 12)
    whole = our_log_probabilities(ours, tokens, [70])
    cache = ours.make_cache(sequences=2, context=128, types=FLOATS)
    read(ours, cache, 0, tokens[:53])
    cache.copy_prefix(0, 1, 53)
    assert cache.length(1) == 53
    assert torch.equal(read(ours, cache, 1, tokens[53:]), whole[53:])


def test_layers_keep_what_they_need(tmp_path: Path) -> None:
    ours = loaded(tmp_path, QWEN4)
    options = ours.model.options
    shapes = [layer.kv_shape for layer in options.layers if layer.kv_heads]
    assert shapes == [KVShape(2, 16, 16, indexer_dim=12)] * 2
    cache = ours.make_cache(sequences=1, context=64)
    kept = {index: set(cache.state(index).states) for index in range(4)}
    delta = {"conv.0", "conv.1", "conv.2", "memory"}
    indexer = {"indexer.keys", "indexer.turns"}
    assert kept == {0: delta, 1: indexer, 2: delta | {"ngrams.tokens", "ngrams.inputs"}, 3: indexer}


def test_choosing_all_blocks_is_attention_to_all_positions(tmp_path: Path) -> None:
    """The bits are those of layers that do not choose, and the choice of fewer changes them."""
    found = []
    for most, size in ((12, 4), (72, 4), (72, 0)):
        folder = tmp_path / f"{most} {size}"
        folder.mkdir()
        sizes = {"attention__compress_ratios": [0, size] * 2}
        ours = loaded(folder, QWEN4, attention__indexer__top_k=most, **sizes)
        found.append(our_log_probabilities(ours, random_tokens(ours, 70, 7), [70]))
    assert torch.equal(found[1], found[2])
    assert torch.equal(found[0][:15], found[1][:15])
    assert (found[0][20:] - found[1][20:]).abs().amax(1).median() > 1e-3


def test_keys_of_few_bits_choose_nearly_the_same_blocks(tmp_path: Path) -> None:
    """Queries are rotated like the stored keys: otherwise, most rows attend to other blocks."""
    tiny = dataclasses.replace(QWEN4, settings={**QWEN4.settings, "head_dim": 32, "indexer_head_dim": 32})
    check_rounded_keys(loaded(tmp_path, tiny))


def test_lists_of_chosen_cells_are_counted(tmp_path: Path) -> None:
    counted = []
    for most in (12, 1532, 1536):  # and up to 3 more
        folder = tmp_path / str(most)
        folder.mkdir()
        ours = loaded(folder, QWEN4, attention__indexer__top_k=most, context_length=4096)
        counted.append(ours.model.options.layers[1].mixing_values)
    assert [each - counted[0] for each in counted] == [0, 1024, 1536]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("ple.eos_token_id", 7), ("ple.layer_multipliers", [3, 5, 9]), ("ple.head_offsets", [1] * 6),
        ("ple.head_vocab_sizes", [11] * 6), ("attention.indexer.top_k", 8),
    ],
)  # fmt: skip
def test_each_setting_changes_the_result(tmp_path: Path, key: str, value: Any) -> None:
    ours = loaded(tmp_path, QWEN4)
    tokens = with_boundaries(ours, 11)
    (tmp_path / "other").mkdir()
    other = loaded(tmp_path / "other", QWEN4, **{key.replace(".", "__"): value})
    found = [our_log_probabilities(each, tokens, [70]) for each in (ours, other)]
    assert (found[0] - found[1]).abs().max() > 1e-2


@pytest.mark.parametrize(
    ("key", "value", "complaint"),
    [
        ("hyper_connection.count", None, "hyper_connection.count' is missing"),
        ("hyper_connection.count", 65, "is 65, more than 64"),
        ("hyper_connection.count", 2, "hyper_connection.count' x .* is 2 x 64, but tensor 'output_hc_norm"),
        ("hyper_connection.low_rank", None, "hyper_connection.low_rank' is missing"),
        ("hyper_connection.low_rank", 19, "hc_attn_down.weight' has 20x192 values, expected 19x192"),
        ("attention.indexer.top_k", None, "attention.indexer.top_k' is missing"),
        ("attention.indexer.top_k", 10, "is 10, which is not a whole number of blocks of 4"),
        ("attention.indexer.key_length", 6, "is 8, more than the 6 numbers of an indexer's key"),
        ("attention.indexer.key_length", 40, "is 40, but tensor 'blk.1.indexer.k_norm.weight'"),
        ("attention.indexer.head_count", 3, "tensor 'blk.1.indexer.q_proj.weight' has"),
        ("attention.compress_ratios", None, "attention.compress_ratios' is missing"),
        ("attention.compress_ratios", [4, 4, 4], "has 3 values for 4 layers"),
        ("attention.compress_ratios", [0, 4, 0, 4100], "is 4100 for layer 3, more than the 4096"),
        ("ple.layers", None, "7 tensors are unknown for qwen4exp"),
        ("ple.layers", [0], "tensor 'blk.0.ple_key.weight' is missing"),
        ("ple.layers", [0, 2], "ple.layers' should have 1 numbers"),
        ("ple.layers", [1], "has 1, which is not a layer with a delta network"),
        ("ple.layers", [4], "has 4, which is not a layer with a delta network"),
        ("ple.ngram_size", 1, "should be from 2 to 4096, but is 1"),
        ("ple.ngram_size", 4, "ple.layer_multipliers' should have 4 numbers"),
        ("ple.heads_per_ngram", 2, "ple.head_vocab_sizes' should have 4 numbers"),
        ("ple.conv_kernel", 4, "ple.conv_kernel' is 4, but tensor 'blk.2.ple_conv1d.weight' has 192x3"),
        ("ple.eos_token_id", None, "ple.eos_token_id' is missing"),
        ("ple.eos_token_id", 2**24, "is 16777216; that, 16777216 for images and all tokens must be below"),
        ("ple.image_token_id", 2**25, "is 3; that, 33554432 for images"),
        ("ple.layer_multipliers", [1, 2, 2**58], "whose products with tokens are too large"),
        ("ple.head_offsets", [0, 50, 100, 150, 200, 100000], "from row 100000 on, of a table with"),
        ("ple.head_vocab_sizes", [50, 50, 50, 50, 50, 0], "has 0 from row"),
        ("embedding_length_per_layer_input", 7, "tensor 'per_layer_token_embd.weight' has"),
        ("expert_count", None, "expert_count' is 0, but tensor 'blk.0.ffn_gate_inp.weight' has"),
    ],
)
def test_settings_that_do_not_fit_are_refused(tmp_path: Path, key: str, value: Any, complaint: str) -> None:
    with pytest.raises(ModelError, match=complaint):
        loaded(tmp_path, QWEN4, **{key.replace(".", "__"): value})


def save_published(folder: Path, **changes: Any) -> Path:
    """Save a folder as it is published: settings and tensors of the text within those of the whole."""
    saved(folder, original(QWEN4))
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    found = {
        name if name.startswith("lm_head") else name.replace("model.", "model.language_model.", 1): values
        for name, values in tensors.items()
    }
    ignored = ("mtp.fc.weight", "model.visual.blocks.0.attn.qkv.weight")
    save_file(found | {name: torch.zeros(4) for name in ignored}, folder / "model.safetensors")
    text = json.loads((folder / "config.json").read_text())
    kinds = [kind.replace("indexed", "full") for kind in text["layer_types"]]
    text |= {"layer_types": kinds, "mtp_num_hidden_layers": 1, "attn_output_gate": True} | changes
    text = {name: value for name, value in text.items() if value is not ...}
    whole = {
        "architectures": ["Qwen4ExpForConditionalGeneration"], "model_type": "qwen4_exp",
        "text_config": text, "vision_config": {"hidden_size": 32}, "image_token_id": 9,
        "tie_word_embeddings": False,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(whole))
    return folder


def test_published_folders_become_the_same_file(tmp_path: Path) -> None:
    expected = converted(original(QWEN4))
    convert(save_published(tmp_path / "published"), tmp_path / "model.gguf", FileType.F32, name="Tiny")
    found = contents_of(tmp_path / "model.gguf")
    assert found.keys.pop("ple.image_token_id") == 9
    assert found.architecture == expected.architecture == "qwen4exp"
    assert found.keys == expected.keys
    assert found.tensors.keys() == expected.tensors.keys()
    assert all(np.array_equal(found.tensors[name], expected.tensors[name]) for name in expected.tensors)


def test_constants_of_hashes_are_exact() -> None:
    """They have more digits than floats, and are those of transformers' module."""
    keys, model = converted(original(QWEN4)).keys, original(QWEN4)
    module = model.model.layers[2].ple.ple_embedding
    assert keys["ple.layer_multipliers"] == module.layer_multipliers.tolist()
    assert max(keys["ple.layer_multipliers"]) > 2**53
    assert keys["ple.head_offsets"] == module.ngram_heads_offsets.tolist()
    assert keys["ple.head_vocab_sizes"] == module.ngram_heads_vocab_sizes.tolist()
    assert keys["ple.layers"] == [2]


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"output_gate_type": "silu"}, "'output_gate_type' is 'silu', but"),
        ({"output_gate_type": None}, "'output_gate_type' is None, but"),
        ({"output_gate_type": ...}, "'output_gate_type' is None, but"),
        ({"hidden_act": "gelu"}, "hidden_act' is 'gelu', but"),
        ({"norm_topk_prob": False}, "norm_topk_prob' is False, but"),
        ({"indexer_kv_heads": 2}, "indexer_kv_heads' is 2, but"),
        ({"indexer_n_heads": None}, "'indexer_n_heads' is None, not a number of at least 1"),
        ({"indexer_budget": None}, "config.json lacks 'indexer_budget'"),
        ({"linear_value_head_dim": 16}, "linear_value_head_dim' is 16, but"),
        ({"ple_layer_ids": [1, 3]}, r"'ple_layer_ids' is \[1, 3\], but a file has one table"),
        ({"eos_token_id": None}, "lacks 'eos_token_id', before which"),
        ({"moe_something_factor": 2.0}, "moe_something_factor' is 2.0, which no file"),
    ],
)
def test_settings_that_files_cannot_carry_are_refused(
    tmp_path: Path, changes: dict[str, Any], complaint: str
) -> None:
    folder = save_published(tmp_path / "published", **changes)
    with pytest.raises(ConversionError, match=complaint):
        convert(folder, tmp_path / "model.gguf", FileType.F32)


@pytest.mark.parametrize(
    ("part", "complaint"),
    [
        ("shard_1", "'per_layer_token_embd.weight' lacks some of its 3 parts"),
        ("shard_2", "a file of tensors is missing"),
    ],
)
def test_tables_without_one_of_their_parts_are_refused(tmp_path: Path, part: str, complaint: str) -> None:
    folder = save_published(tmp_path / "published")
    path = folder / "model.safetensors"
    tensors = {name: values.clone() for name, values in load_file(path).items() if part not in name}
    path.unlink()
    save_file(tensors, path)
    with pytest.raises(ConversionError, match=complaint):
        convert(folder, tmp_path / "model.gguf", FileType.F32)

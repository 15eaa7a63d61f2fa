"""GLM 5.3 Flash: attention to groups of positions, what its layers keep, and files that do not fit."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from puna.batch import Batch
from puna.convert import convert
from puna.errors import ConversionError, ModelError, NotSupportedError, UnsupportedModelError
from puna.gguf import FileType
from puna.kvcache.storage import KVShape
from puna.model.layer_cache import ChosenBy, Everything, State, StateAnd
from puna.model.load import LoadedModel, load_model
from puna.model.stages import places_to_cut
from tests.convert.checkpoints import saved
from tests.model.models.parity import (
    FLOATS,
    check_few_chosen,
    check_restored,
    check_rounded_keys,
    original,
    our_log_probabilities,
    random_tokens,
    read,
)
from tests.model.models.test_deepseek2 import loaded
from tests.tiny.converted import contents_of
from tests.tiny.glm5_next import GLM5_NEXT, TinyGlm5Next

LATENT, INDEXER, GROUP = 32, 24, 4


def with_settings(**settings: Any) -> TinyGlm5Next:
    return dataclasses.replace(GLM5_NEXT, settings={**GLM5_NEXT.settings, **settings})


def remembered(ours: LoadedModel) -> list[Any]:
    return [layer.remembers for layer in ours.model.options.layers]


def test_layers_that_choose_keep_keys_of_groups_and_the_rows_of_the_newest(tmp_path: Path) -> None:
    ours = loaded(tmp_path, GLM5_NEXT)
    first, *others = remembered(ours)
    group = StateAnd(State((("group", (GROUP - 1, 2 * INDEXER)),)), Everything())
    assert isinstance(first, State)
    assert others == [group, ChosenBy(1), first, group]
    latents = KVShape(1, LATENT, LATENT, values_in_keys=True)
    indexed = dataclasses.replace(latents, indexer_dim=INDEXER)
    assert [ours.model.kv_shapes()[layer] for layer in (1, 2, 4)] == [indexed, latents, indexed]
    assert places_to_cut(remembered(ours)) == [1, 3, 4]


def test_rows_have_the_same_bits_in_any_batch(tmp_path: Path) -> None:
    """A prompt in one batch, in pieces that end within groups, and after a shared prefix."""
    ours = loaded(tmp_path, GLM5_NEXT)
    tokens = random_tokens(ours, 70, 6)
    whole = our_log_probabilities(ours, tokens, [70])
    assert torch.equal(our_log_probabilities(ours, tokens, [1, 30, 2, 1, 17, 19]), whole)
    cache = ours.make_cache(sequences=2, context=128, types=FLOATS)
    read(ours, cache, 0, tokens[:50])
    cache.copy_prefix(0, 1, 50)
    assert cache.can_resume(1, 50)
    read(ours, cache, 0, [*range(20)])
    assert torch.equal(read(ours, cache, 1, tokens[50:]), whole[50:])


def test_rejected_drafts_leave_no_trace(tmp_path: Path) -> None:
    """They end a group whose key is then that of other positions."""
    ours = loaded(tmp_path, GLM5_NEXT)
    tokens = random_tokens(ours, 70, 6)
    whole = our_log_probabilities(ours, tokens, [70])
    cache = ours.make_cache(sequences=1, context=128, types=FLOATS)
    read(ours, cache, 0, tokens[:40])
    for end in range(40, 56):
        given = [tokens[end], 3, 1, 4, 1]
        batch = Batch.of(given, list(range(end, end + 5)), [0] * 5, list(range(5)))
        batch.drafts = {0: 4}
        cache.start_forward(batch)
        ours.model.forward(batch.on(ours.model.ops), cache)
        cache.remove(0, end + 1)
    assert torch.equal(read(ours, cache, 0, tokens[56:]), whole[56:])


def test_a_sequence_goes_on_from_where_a_state_was_kept(tmp_path: Path) -> None:
    ours = loaded(tmp_path, GLM5_NEXT)
    tokens = random_tokens(ours, 70, 6)
    whole = our_log_probabilities(ours, tokens, [70])
    cache = ours.make_cache(sequences=1, context=128, types=FLOATS)
    for part in (tokens[:23], tokens[23:24], [*range(30)]):
        read(ours, cache, 0, part)
    begin = cache.resume_point(0, 24)
    assert begin % GROUP
    cache.remove(0, begin)
    assert torch.equal(read(ours, cache, 0, tokens[begin:]), whole[begin:])


def test_positions_in_the_middle_cannot_be_removed(tmp_path: Path) -> None:
    ours = loaded(tmp_path, with_settings(
        num_hidden_layers=2, layer_types=["indexed_attention"] * 2, indexer_types=["full", "shared"],
        mlp_layer_types=["dense"] * 2,
    ))  # fmt: skip
    cache = ours.make_cache(sequences=1, context=128, types=FLOATS)
    tokens = random_tokens(ours, 50, 6)
    found = read(ours, cache, 0, tokens[:40])
    assert len(found) == 40
    with pytest.raises(NotSupportedError, match="cannot forget positions 3 to 9"):
        cache.remove(0, 3, 10)
    assert torch.equal(read(ours, cache, 0, tokens[40:]), our_log_probabilities(ours, tokens, [50])[40:])


def test_saved_sequences_are_restored(tmp_path: Path) -> None:
    ours = loaded(tmp_path, GLM5_NEXT)
    check_restored(ours, random_tokens(ours, 60, 5), saved=42)


def test_choosing_all_groups_is_attention_to_all_positions(tmp_path: Path) -> None:
    """The bits are those of a context too short for a choice, and the choice of fewer changes them."""
    found = []
    for most in (12, 72, 4096):
        folder = tmp_path / str(most)
        folder.mkdir()
        ours = loaded(folder, GLM5_NEXT, attention__indexer__top_k=most)
        found.append(our_log_probabilities(ours, random_tokens(ours, 70, 7), [70]))
    check_few_chosen(*found, same=15)


def test_keys_of_few_bits_choose_nearly_the_same_groups(tmp_path: Path) -> None:
    """Queries are rotated like the stored keys: otherwise, most rows attend to other groups."""
    tiny = with_settings(
        num_hidden_layers=1,
        layer_types=["indexed_attention"],
        indexer_types=["full"],
        index_head_dim=32,
        mlp_layer_types=["dense"],
    )
    check_rounded_keys(loaded(tmp_path, tiny))


def test_lists_of_chosen_cells_are_counted_with_the_positions_after_the_groups(tmp_path: Path) -> None:
    counted = []
    for most in (508, 512):
        folder = tmp_path / str(most)
        folder.mkdir()
        ours = loaded(folder, GLM5_NEXT, attention__indexer__top_k=most, context_length=4096)
        counted.append(ours.model.options.layers[1].mixing_values)
    assert counted[1] - counted[0] == 2 * 512


def test_layers_that_borrow_may_have_an_indexer_of_their_own(tmp_path: Path) -> None:
    """Its tensors are read and not used."""
    tiny = with_settings(indexer_types=["full"] * 5)
    chosen = loaded(tmp_path, tiny, attention__indexer__types=[True, True, False, True, True])
    assert remembered(chosen)[2] == ChosenBy(1)


def test_a_choice_is_borrowed_across_delta_networks(tmp_path: Path) -> None:
    """Files may say of these that they have an indexer."""
    tiny = with_settings(indexer_types=["full"] * 5)
    ours = loaded(tmp_path, tiny, attention__indexer__types=[True, True, True, True, False])
    assert remembered(ours)[4] == ChosenBy(2)
    assert our_log_probabilities(ours, random_tokens(ours, 30, 2), [20, 10]).isfinite().all()


def test_limits_and_decays_may_be_left_out_of_a_file(tmp_path: Path) -> None:
    """A limit of experts is that of the shared one, too, unless it has its own."""
    results = {}
    changes: dict[str, dict[str, Any]] = {
        "as published": {}, "one limit": {"swiglu_clamp_shexp": None},
        "no limit": {"swiglu_clamp_shexp": None, "swiglu_clamp_exp": None},
        "shared only": {"swiglu_clamp_exp": None}, "no bound": {"kda__gate_lower_bound": None},
    }  # fmt: skip
    for name, keys in changes.items():
        folder = tmp_path / name
        folder.mkdir()
        ours = loaded(folder, GLM5_NEXT, **keys)
        results[name] = our_log_probabilities(ours, random_tokens(ours, 20, 7), [20])
    published = results.pop("as published")
    assert torch.equal(results.pop("one limit"), published)
    for found in results.values():
        assert (found - published).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("key", "value", "complaint"),
    [
        ("attention.indexer.top_k", None, "metadata key 'glm5-next.attention.indexer.top_k' is missing"),
        ("attention.indexer.top_k", 0, "top_k' should be positive, but is 0"),
        ("attention.indexer.top_k", 14, "is 14, not a multiple of 'attention.indexer.kpool', 4"),
        ("attention.indexer.kpool", None, "metadata key 'glm5-next.attention.indexer.kpool' is missing"),
        ("attention.indexer.kpool", 1, "kpool' is 1, which is no group"),
        ("attention.indexer.kpool", 6, "indexer_compressor_ape.weight' has 4x24 values, expected 6x24"),
        ("attention.indexer.key_length", 2**31 - 1, "is 2147483647, but tensor 'blk.1.indexer.k_norm"),
        ("attention.indexer.head_count", 7, "is 7 x 24, but tensor 'blk.[01].indexer.attn_q_b"),
        ("attention.indexer.types", [True] * 5, "tensor 'blk.2.indexer.attn_q_b.weight' is missing"),
        ("attention.indexer.types", [True, False, True, True, True], "no indexer for the first layer with"),
        ("attention.indexer.types", [True], "should have true or false for each of the 5 layers"),
        ("attention.q_lora_rank", 0, "q_lora_rank' should be positive, but is 0"),
        ("attention.layer_norm_epsilon", 0.0, "layer_norm_epsilon' should be above 0, but is 0.0"),
        ("kda.gate_lower_bound", 0.0, "gate_lower_bound' should be below 0, but is 0.0"),
        ("hyper_connection.count", None, "metadata key 'glm5-next.hyper_connection.count' is missing"),
        ("hyper_connection.count", 65, "is 65, more than 64"),
        ("hyper_connection.count", 2, "hc_attn_fn.weight' has 15x192 values, expected 8x128"),
        ("hyper_connection.epsilon", 0.0, "epsilon' should be above 0, but is 0.0"),
        ("hyper_connection.sinkhorn_iterations", None, "iterations' is missing"),
        ("hyper_connection.sinkhorn_iterations", 1001, "is 1001, more than 1000"),
        ("swiglu_clamp_exp", [1.0], "should have a limit for each of the 5 layers"),
        ("swiglu_clamp_shexp", [-1.0] * 5, "should have a limit for each of the 5 layers"),
    ],
)  # fmt: skip
def test_settings_that_do_not_fit_are_refused(tmp_path: Path, key: str, value: Any, complaint: str) -> None:
    with pytest.raises(ModelError, match=complaint):
        loaded(tmp_path, GLM5_NEXT, **{key: value})


@pytest.mark.parametrize(
    ("key", "value", "complaint"),
    [
        ("attention.indexer.kpool_select_tail", False, "kpool_select_tail' is false"),
        ("rope.dimension_count", 8, "rope.dimension_count' is not 0"),
    ],
)
def test_files_that_compute_something_else_are_refused(
    tmp_path: Path, key: str, value: Any, complaint: str
) -> None:
    with pytest.raises(UnsupportedModelError, match=complaint):
        loaded(tmp_path, GLM5_NEXT, **{key: value})


def save_published(folder: Path, **changes: Any) -> Path:
    """Save the tiny model with settings as published; None removes one."""
    saved(folder, original(GLM5_NEXT))
    config = json.loads((folder / "config.json").read_text())
    text = config["text_config"]
    delta = {
        "head_dim": text.pop("linear_head_dim"), "num_heads": text.pop("linear_num_heads"),
        "short_conv_kernel_size": text.pop("linear_conv_kernel_dim"),
        "gate_lower_bound": text.pop("linear_lower_bound"),
    }  # fmt: skip
    linear = {name: changes.pop(name, value) for name, value in delta.items()}
    text |= {
        "linear_attn_config": linear, "mla_use_nope": True, "mhc": True, "first_k_dense_replace": 2,
        "scoring_func": "sigmoid", "num_nextn_predict_layers": 1,
    } | changes  # fmt: skip
    config["text_config"] = {name: value for name, value in text.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_published_folders_become_the_same_file(tmp_path: Path) -> None:
    for name, folder in (
        ("ours", saved(tmp_path / "saved", original(GLM5_NEXT))),
        ("published", save_published(tmp_path / "published")),
    ):
        convert(folder, tmp_path / f"{name}.gguf", FileType.F32, name="Tiny")
    ours, published = (contents_of(tmp_path / f"{name}.gguf") for name in ("ours", "published"))
    assert published.keys == ours.keys
    assert ours.keys["kda.gate_lower_bound"] == -5.0
    assert ours.tensors.keys() == published.tensors.keys()


def test_heads_that_predict_further_tokens_are_kept_and_not_read(tmp_path: Path) -> None:
    folder = saved(tmp_path / "saved", original(GLM5_NEXT))
    (weights,) = folder.glob("*.safetensors")
    tensors = load_file(weights)
    last = "model.language_model.layers.4."
    ahead = {
        name.replace(last, "model.language_model.layers.5."): values.clone()
        for name, values in tensors.items()
        if name.startswith(last) and ".hc_" not in name
    }
    for part, shape in {"eh_proj": (64, 128), "enorm": (64,), "hnorm": (64,)}.items():
        ahead[f"model.language_model.layers.5.{part}.weight"] = torch.ones(shape)
    save_file(tensors | ahead, weights)
    convert(folder, tmp_path / "model.gguf", FileType.F32)
    contents = contents_of(tmp_path / "model.gguf")
    assert contents.keys["nextn_predict_layers"] == 1
    assert contents.keys["attention.head_count_kv"] == [0, 1, 1, 0, 1, 1]
    assert contents.keys["swiglu_clamp_exp"] == contents.keys["swiglu_clamp_shexp"] == [0.5] * 6
    assert len(contents.keys["attention.indexer.types"]) == 5
    with_head, without = load_model(tmp_path / "model.gguf"), loaded(tmp_path, GLM5_NEXT)
    tokens = random_tokens(without, 30, 3)
    assert torch.equal(
        our_log_probabilities(with_head, tokens, [30]), our_log_probabilities(without, tokens, [30])
    )


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"qk_rope_head_dim": 8, "qk_head_dim": None}, "qk_rope_head_dim' is 8, but"),
        ({"mla_use_nope": False}, "mla_use_nope' is False, but"),
        ({"mhc": False}, "mhc' is False, but"),
        ({"index_kpool_always_select_tail": False}, "index_kpool_always_select_tail' is False, but"),
        ({"num_heads": 3}, "linear_attn_config.num_heads' is 3, but"),
        ({"num_heads": None}, "lacks 'linear_attn_config.num_heads'"),
        ({"gate_lower_bound": 0.5}, "lower bound of log decays is 0.5, not below 0"),
        ({"swiglu_limit": 0.0}, "'swiglu_limit' is 0.0, but should be above 0"),
        ({"scoring_func": "softmax"}, "scoring_func' is 'softmax', but"),
        ({"layer_types": ["linear_attention"] * 4 + ["sliding_attention"]}, "layer_types' has .*sliding"),
        ({"layer_types": ["linear_attention"] * 5}, "no layer has attention"),
        ({"first_k_dense_replace": 1}, "first_k_dense_replace' is 1, but"),
        ({"indexer_types": ["full"] * 4}, "for each of 5 layers"),
    ],
)
def test_settings_that_files_cannot_carry_are_refused(
    tmp_path: Path, changes: dict[str, Any], complaint: str
) -> None:
    folder = save_published(tmp_path / "published", **changes)
    with pytest.raises(ConversionError, match=complaint):
        convert(folder, tmp_path / "model.gguf", FileType.F32)


@pytest.mark.parametrize(
    ("linear", "bound"),
    [
        ({"gate_lower_bound": None}, -5.0),
        ({"gate_lower_bound": -2.5}, -2.5),
        ({"gate_lower_bound": None, "safe_gate": False}, None),
    ],
)
def test_the_bound_of_decays_is_that_of_transformers(
    tmp_path: Path, linear: dict[str, Any], bound: float | None
) -> None:
    from transformers import AutoConfig

    folder = save_published(tmp_path / "published")
    config = json.loads((folder / "config.json").read_text())
    config["text_config"]["linear_attn_config"] |= linear
    (folder / "config.json").write_text(json.dumps(config))
    assert AutoConfig.from_pretrained(folder).text_config.linear_lower_bound == bound
    convert(folder, tmp_path / "model.gguf", FileType.F32)
    assert contents_of(tmp_path / "model.gguf").keys.get("kda.gate_lower_bound") == bound

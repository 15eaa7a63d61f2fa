"""Options: sizes that differ by layer, and errors for invalid values."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from puna.errors import ModelError, UnsupportedModelError
from puna.gguf import GGUFWriter, open_gguf
from puna.model.layer_cache import Everything, Window
from puna.model.load import load_model
from puna.model.options import TextDefaults, TextOptions, read_windows
from puna.ops import Backend, Routing
from tests.model.models.parity import (
    log_probabilities_after_reuse,
    our_log_probabilities,
    random_tokens,
    reference_log_probabilities,
)
from tests.tiny.converted import Contents
from tests.tiny.decoders import TinyDecoder, tiny_decoder_gguf

PLAIN: dict[str, Any] = {
    "block_count": 4, "embedding_length": 64, "feed_forward_length": 96, "attention.head_count": 4,
}  # fmt: skip
GROUPED: dict[str, Any] = {
    "expert_count": 4, "expert_used_count": 2, "expert_group_count": 2, "expert_group_used_count": 1,
}  # fmt: skip


def written(path: Path, metadata: dict[str, Any]) -> Path:
    writer = GGUFWriter(path, "some")
    for key, value in (PLAIN | metadata).items():
        if value is not None:
            writer.add(f"some.{key}", value)
    count = metadata.get("block_count", 4)
    for layer in range(count if isinstance(count, int) else 4):
        writer.add_tensor(f"blk.{layer}.placeholder", np.zeros(1, np.float32))
    writer.write()
    return path


def options_of(path: Path, metadata: dict[str, Any], **defaults: Any) -> TextOptions:
    with open_gguf(written(path / "some.gguf", metadata)) as file:
        return TextOptions.read(file, TextDefaults(**defaults))


class NarrowLayer(TinyDecoder):
    """Model whose second layer has fewer heads and a narrower network than the first."""

    def build(self) -> Any:
        model = super().build()
        with torch.no_grad():
            model.model.layers[1].self_attn.o_proj.weight[:, 32:] = 0
            model.model.layers[1].mlp.down_proj.weight[:, 40:] = 0
        return model

    def change(self, found: Contents, model: Any) -> None:
        """Remove the weights that are multiplied by zeros."""
        rows = {"attn_q": 32, "attn_k": 16, "attn_v": 16, "ffn_gate": 40, "ffn_up": 40}
        columns = {"attn_output": 32, "ffn_down": 40}
        for name, array in found.tensors.items():
            if name.startswith("blk.1."):
                part = name.split(".")[2]
                found.tensors[name] = array[: rows.get(part)][..., : columns.get(part)]


def test_layers_may_differ_in_size(tmp_path: Path, ops: Backend) -> None:
    arrays = {
        "attention.head_count": [4, 2], "attention.head_count_kv": [2, 1], "feed_forward_length": [96, 40],
        "attention.key_length": 16, "attention.value_length": 16,
    }  # fmt: skip
    tiny = NarrowLayer("qwen2", {}, arrays, seed=20)
    theirs = tiny.build()
    ours = load_model(tiny_decoder_gguf(tmp_path / "some.gguf", tiny, model=theirs), ops=ops)
    tokens = random_tokens(ours, 60, 5)
    expected = reference_log_probabilities(theirs, tokens)
    for parts in ([60], [25, 1, 34]):
        assert (our_log_probabilities(ours, tokens, parts) - expected).abs().max() < 1e-3
    found = log_probabilities_after_reuse(ours, tokens, 40)
    assert (found - expected[-len(found) :]).abs().max() < 1e-3


@pytest.mark.parametrize(
    ("metadata", "complaint"),
    [
        ({"block_count": None}, "metadata key 'some.block_count' is missing"),
        ({"block_count": 0}, "'some.block_count' should be positive, but is 0"),
        ({"block_count": [2, 3]}, r"'some.block_count' should not differ between layers, but is [2, 3]"),
        ({"embedding_length": "wide"}, "'some.embedding_length' should be a size, but is 'wide'"),
        ({"attention.head_count": [4, 4]}, "'some.attention.head_count' has 2 values for 4 layers"),
        (
            {"attention.head_count": [4, 4, 0, 4]},
            "'some.attention.head_count' should be positive, but is 0 for layer 2",
        ),
        (
            {"attention.head_count_kv": [4, 4, 3, 4]},
            "'some.attention.head_count_kv' is 3 for layer 2, whose 4",
        ),
        ({"attention.head_count_kv": [4, 4, 0, 4]}, "'some.attention.head_count_kv' is 0 for layer 2"),
        ({"attention.key_length": -1}, "'some.attention.key_length' should be positive, but is -1"),
        ({"attention.scale": -1.0}, "'some.attention.scale' should be 0, which means none, or above"),
        (
            {"attn_logit_softcapping": float("inf")},
            "'some.attn_logit_softcapping' should be a number, but is inf",
        ),
        ({"attention.layer_norm_epsilon": 0.0}, "'some.attention.layer_norm_epsilon' should be above 0"),
        ({"feed_forward_length": [96, 96, 0, 96]}, "'some.feed_forward_length' should be positive, but is 0"),
        ({"feed_forward_length": None}, "metadata key 'some.feed_forward_length' is missing"),
        ({"expert_count": -1}, "'some.expert_count' should be a number of experts, but is -1"),
        ({"expert_count": 4}, "metadata key 'some.expert_used_count' is missing"),
        ({"expert_count": 4, "expert_used_count": 5}, "is 5, but there are only 4 experts"),
        (
            {"expert_count": 4, "expert_used_count": 2, "expert_group_count": 2},
            "expert_group_used_count' is missing",
        ),
        (GROUPED | {"expert_group_count": 3}, "'some.expert_group_count' is 3, which does not divide 4"),
        (
            GROUPED | {"expert_group_used_count": 3},
            "'some.expert_group_used_count' is 3, but there are only 2",
        ),
        (GROUPED | {"expert_used_count": 3}, "'some.expert_used_count' is 3, but there are only 2 in the"),
        ({"residual_scale": 0.0}, "'some.residual_scale' should be above 0, but is 0"),
        ({"logit_scale": -1.0}, "'some.logit_scale' should be above 0, but is -1"),
        ({"embedding_scale": "big"}, "'some.embedding_scale' should be a number, but is 'big'"),
        ({"expert_count": 4, "expert_used_count": 2, "expert_gating_func": 9}, "gating_func' 9 is not"),
        ({"rope.scaling.type": "stretchy"}, "rope scaling 'stretchy' is not supported"),
        ({"rope.scaling.attn_factor": 0.0}, "'some.rope.scaling.attn_factor' should be above 0"),
    ],
    ids=str,
)
def test_invalid_metadata_is_named_with_its_value(
    tmp_path: Path, metadata: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ModelError) as caught:
        options_of(tmp_path, metadata)
    assert complaint in str(caught.value)
    assert str(tmp_path / "some.gguf") in str(caught.value)


def test_the_file_states_which_layers_have_experts(tmp_path: Path) -> None:
    keys = {
        "expert_count": 8, "expert_used_count": 2, "expert_feed_forward_length": 24, "expert_gating_func": 2,
        "expert_weights_norm": False, "expert_weights_scale": 2.5, "leading_dense_block_count": 1,
    }  # fmt: skip
    layers = options_of(tmp_path, keys).layers
    assert [layer.expert_count for layer in layers] == [0, 8, 8, 8]
    assert layers[1].expert_feed_forward_size == 24
    assert layers[1].routing == Routing(2, sigmoid=True, normalize=False, scale=2.5)
    layers = options_of(tmp_path, {**keys, "interleave_moe_layer_step": 2}).layers
    assert [layer.expert_count for layer in layers] == [0, 8, 0, 8]
    only_experts = {"expert_count": 8, "expert_used_count": 2, "expert_feed_forward_length": 24}
    assert options_of(tmp_path, {**only_experts, "feed_forward_length": None}).layers[0].expert_count == 8


def test_the_files_settings_override_the_architectures(tmp_path: Path) -> None:
    said = {"attention.key_length": 8, "attention.scale": 0.5, "rope.freq_base": 7.0}
    defaults = {"head_dim": 24, "rope_base": 5.0, "attention_softcap": 3.0}
    for metadata, expected in ((said, (8, 8, 0.5, 7.0, 3.0)), ({}, (24, 24, 1 / math.sqrt(24), 5.0, 3.0))):
        layer = options_of(tmp_path, metadata, **defaults).layers[0]
        assert layer.rope is not None
        found = (layer.head_dim, layer.value_dim, layer.attention_scale, layer.rope.base)
        assert (*found, layer.attention_softcap) == expected
    assert options_of(tmp_path, {}, rotates=False).layers[0].rope is None


@pytest.mark.parametrize(
    ("metadata", "windowed"),
    [
        ({}, [False] * 4),
        ({"attention.sliding_window": 8}, [True, True, False, True]),
        ({"attention.sliding_window": 8, "attention.sliding_window_pattern": 2}, [True, False, True, False]),
        (
            {"attention.sliding_window": 8, "attention.sliding_window_pattern": [False, True, True, False]},
            [False, True, True, False],
        ),
    ],
    ids=str,
)
def test_the_file_states_which_layers_have_windows(
    tmp_path: Path, metadata: dict[str, Any], windowed: list[bool]
) -> None:
    with open_gguf(written(tmp_path / "some.gguf", metadata)) as file:
        found = read_windows(file, 4, period=3)
    assert list(found) == [Window(8) if each else Everything() for each in windowed]


def test_an_unknown_gating_is_refused_as_unsupported(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match=r"'some\.expert_gating_func' 9"):
        options_of(tmp_path, GROUPED | {"expert_gating_func": 9})


def test_experts_may_be_grouped(tmp_path: Path) -> None:
    assert options_of(tmp_path, GROUPED).layers[0].routing == Routing(2, groups=2, used_groups=1)
    one = GROUPED | {"expert_group_count": 1, "expert_group_used_count": 1}
    assert options_of(tmp_path, one).layers[0].routing == Routing(2)


def test_the_softmax_over_the_chosen_experts_is_normalised(tmp_path: Path) -> None:
    routing = Routing(0, sigmoid=True, normalize=False)
    for gating, expected in ((1, False), (3, True)):
        found = options_of(tmp_path, GROUPED | {"expert_gating_func": gating}, routing=routing)
        assert found.layers[0].routing == Routing(2, normalize=expected, groups=2, used_groups=1)


@pytest.mark.parametrize(
    ("keys", "size"),
    [({}, 24), ({"expert_shared_count": 2}, 48), ({"expert_shared_feed_forward_length": 40}, 40)],
    ids=str,
)
def test_the_shared_expert_may_have_another_size(tmp_path: Path, keys: dict[str, Any], size: int) -> None:
    experts = {"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 24}
    assert options_of(tmp_path, experts | keys).layers[0].shared_feed_forward_size == size


def test_scales_are_read_and_default_to_the_architectures(tmp_path: Path) -> None:
    found = options_of(tmp_path, {"residual_scale": 0.25, "logit_scale": 8.0, "embedding_scale": 12.0})
    assert {layer.residual_scale for layer in found.layers} == {0.25}
    assert (found.logit_scale, found.embedding_scale) == (8.0, 12.0)
    plain = options_of(tmp_path, {}, embedding_scale=3.0)
    assert (plain.layers[0].residual_scale, plain.logit_scale, plain.embedding_scale) == (1, 1, 3)

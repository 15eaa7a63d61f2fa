"""Files of Gemma 4 with an audio tower beside its vision tower: keys, tensors, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from puna.chat.templates.model_facts import facts_at
from puna.convert import convert_tower
from puna.errors import ConversionError, ModelError
from puna.model.load import load_model
from tests.audio.refused import check_refused
from tests.model.models.parity import original
from tests.tiny.audio.gemma4 import TinyGemma4Audio
from tests.tiny.audio.gemma4_unified import TinyGemma4UnifiedAudio
from tests.tiny.converted import contents_of
from tests.tiny.llama import TinyLlama
from tests.tiny.vision.common import Layout


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory) -> Layout:
    config = TinyGemma4Audio(TinyLlama())
    return config.write(tmp_path_factory.mktemp("gemma4"), original(config))


def test_both_towers_are_in_one_file_as_llama_cpp_expects(layout: Layout) -> None:
    assert layout.projector is not None
    tower = contents_of(layout.projector)
    expected = {
        "has_vision_encoder": True, "has_audio_encoder": True, "vision.projector_type": "gemma4v",
        "audio.projector_type": "gemma4a", "audio.block_count": 2, "audio.embedding_length": 48,
        "audio.feed_forward_length": 192, "audio.attention.head_count": 4, "audio.num_mel_bins": 16,
        "audio.projection_dim": 64, "audio.attention.layer_norm_epsilon": pytest.approx(1e-5),
    }  # fmt: skip
    assert {key: tower.keys.get(key) for key in expected} == expected
    assert "projector_type" not in tower.keys
    bounds = {f"a.blk.1.conv_pw1.{bound}" for bound in ("input_min", "input_max", "output_min", "output_max")}
    assert bounds < tower.tensors.keys()
    assert tower.tensors["a.blk.0.conv_dw.weight"].shape == (48, 5)
    assert (tower.tensors["a.blk.0.per_dim_scale.weight"] > 0).all()
    assert {"a.conv1d.0.norm.weight", "a.pre_encode.out.bias", "mm.a.input_projection.weight"} < (
        tower.tensors.keys()
    )
    loaded = load_model(layout.model, projector=layout.projector)
    assert loaded.vision is not None
    assert loaded.audio is not None
    facts = facts_at(layout.projector)
    assert facts is not None
    assert (facts.projector, facts.hearing) == ("gemma4v", "gemma4a")


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "heads": ({"audio.attention.head_count": 5}, {}, r"head_count.* is 5, which does not divide"),
    "bands": ({"audio.num_mel_bins": 1 << 20}, {}, r"num_mel_bins.* at most 1024 make sense"),
    "odd size": (
        {"audio.embedding_length": 49, "audio.attention.head_count": 7}, {}, r"is 49, and distances need"
    ),
    "taps": (
        {}, {"a.blk.0.conv_dw.weight": np.ones((48, 80), np.float32)}, r"shape \[48, 80\], and should have 1"
    ),
    "no taps": ({}, {"a.blk.0.conv_dw.weight": None}, r"conv_dw.weight' has the shape \[\], and should"),
    "missing": ({}, {"a.blk.1.norm_conv.weight": None}, r"'a.blk.1.norm_conv.weight' is missing"),
    "unknown": ({}, {"a.odd.weight": np.ones((2, 2), np.float32)}, r"1 tensors are unknown .*a\.odd\.weight"),
    "layers": ({"audio.block_count": 3}, {}, r"a\.blk\.2\..* is missing"),
    "bounds": (
        {}, {"a.blk.0.attn_q.input_min": np.full(1, 9, np.float32)}, r"'a.blk.0.attn_q.weight' leave nothing"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_tower_that_cannot_be_read_is_refused(name: str, layout: Layout) -> None:
    check_refused(layout, *REFUSED[name])


@pytest.fixture(scope="module")
def unified(tmp_path_factory: pytest.TempPathFactory) -> Layout:
    config = TinyGemma4UnifiedAudio(TinyLlama())
    return config.write(tmp_path_factory.mktemp("unified"), original(config))


def test_a_model_without_layers_for_recordings_has_their_keys_nevertheless(unified: Layout) -> None:
    assert unified.projector is not None
    tower = contents_of(unified.projector)
    expected = {
        "vision.projector_type": "gemma4uv", "vision.block_count": 0, "vision.embedding_length": 24,
        "audio.projector_type": "gemma4ua", "audio.block_count": 0, "audio.embedding_length": 640,
        "audio.feed_forward_length": 0, "audio.attention.head_count": 0, "audio.num_mel_bins": 640,
        "audio.attention.layer_norm_epsilon": pytest.approx(1e-6),
    }  # fmt: skip
    assert {key: tower.keys.get(key) for key in expected} == expected
    assert tower.tensors["v.position_embd.weight"].shape == (2, 32, 24)
    loaded = load_model(unified.model, projector=unified.projector)
    assert loaded.vision is not None
    assert loaded.audio is not None


def test_too_many_samples_for_a_row_are_refused(unified: Layout) -> None:
    assert unified.projector is not None
    found = contents_of(unified.projector)
    found.tensors["mm.a.input_projection.weight"] = np.ones((64, 1 << 15), np.float32)
    with pytest.raises(ModelError, match=r"shape \[64, 32768\], and should have columns for 1 to 16384"):
        load_model(unified.model, projector=found.write(unified.projector.with_name("changed.gguf")))


def test_a_processor_that_takes_other_rows_is_refused(unified: Layout, tmp_path: Path) -> None:
    folder = with_settings(
        unified, tmp_path, "preprocessor_config.json", "feature_extractor", {"feature_size": 320}
    )
    with pytest.raises(ConversionError, match=r"feature_size' is 320.*gemma4ua can only have 640"):
        convert_tower(folder, tmp_path / "tower.gguf")


def with_settings(layout: Layout, into: Path, file: str, part: str, changes: dict[str, Any]) -> Path:
    """Return a checkpoint as that of `layout`, with `changes` to a part of one of its settings files."""
    folder = into / "checkpoint"
    folder.mkdir()
    for each in (layout.model.parent / "checkpoint").iterdir():
        (folder / each.name).symlink_to(each)
    settings = json.loads((folder / file).read_text())
    settings[part] |= changes
    (folder / file).unlink()
    (folder / file).write_text(json.dumps(settings))
    return folder


#: Settings in a file of the folder that no key carries, and the complaint.
SETTINGS: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "context": ("config.json", "audio_config", {"attention_context_left": 9}, "attention_context_left' is 9"),
    "activation": ("config.json", "audio_config", {"hidden_act": "gelu"}, "hidden_act' is 'gelu'"),
    "epsilon": ("config.json", "audio_config", {"rms_norm_eps": 1e-5}, "rms_norm_eps' is 1e-05"),
    "frames": (
        "preprocessor_config.json", "feature_extractor", {"frame_length": 512}, "frame_length' is 512"
    ),
    "means": (
        "preprocessor_config.json", "feature_extractor", {"per_bin_mean": [0.0] * 16}, "per_bin_mean' is"
    ),
    "bands": (
        "preprocessor_config.json", "feature_extractor", {"feature_size": 0}, "feature_size' is 0, not a"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_that_no_key_carries_are_refused(name: str, tmp_path: Path, layout: Layout) -> None:
    file, part, changes, complaint = SETTINGS[name]
    folder = with_settings(layout, tmp_path, file, part, changes)
    with pytest.raises(ConversionError, match=complaint):
        convert_tower(folder, tmp_path / "tower.gguf")

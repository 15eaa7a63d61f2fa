"""Files of Gemma 3n with an audio tower beside its vision tower: keys, tensors, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from puna.chat.templates.model_facts import facts_at
from puna.convert import convert_tower
from puna.errors import ConversionError
from puna.model.load import load_model
from tests.audio.hearing import Pair, sound
from tests.audio.refused import check_refused
from tests.model.models.parity import original
from tests.tiny.audio.gemma3n import TinyGemma3nAudio
from tests.tiny.converted import contents_of
from tests.tiny.llama import TinyLlama
from tests.tiny.vision.common import Layout


@pytest.fixture(scope="module")
def pair_and_layout(tmp_path_factory: pytest.TempPathFactory) -> tuple[Pair, Layout]:
    config = TinyGemma3nAudio(TinyLlama())
    theirs = original(config)
    layout = config.write(tmp_path_factory.mktemp("gemma3n"), theirs)
    return Pair(load_model(layout.model, projector=layout.projector), theirs, config), layout


@pytest.fixture(scope="module")
def layout(pair_and_layout: tuple[Pair, Layout]) -> Layout:
    return pair_and_layout[1]


#: Names of llama.cpp's table.
NAMES = {
    "a.conv1d.0.weight", "a.conv1d.1.norm.weight", "a.pre_encode.out.weight", "a.blk.0.linear_pos.weight",
    "a.blk.1.per_dim_scale", "a.blk.0.ln1.weight", "a.blk.0.ln2.weight", "a.blk.1.layer_pre_norm.weight",
    "a.blk.0.conv_norm.weight", "a.blk.0.norm_conv.weight", "a.blk.0.conv_pw1.weight",
    "a.blk.0.conv_dw.weight", "a.blk.0.ffn_norm.weight", "a.blk.0.ffn_post_norm_1.weight",
    "mm.a.embedding.weight", "mm.a.hard_emb_norm.weight", "mm.a.soft_emb_norm.weight",
    "mm.a.input_projection.weight",
}  # fmt: skip


def test_both_towers_are_in_one_file_as_llama_cpp_writes_them(layout: Layout) -> None:
    assert layout.projector is not None
    tower = contents_of(layout.projector)
    expected = {
        "has_vision_encoder": True, "has_audio_encoder": True, "vision.projector_type": "gemma3nv",
        "audio.projector_type": "gemma3na", "audio.block_count": 2, "audio.embedding_length": 48,
        "audio.feed_forward_length": 192, "audio.attention.head_count": 4, "audio.num_mel_bins": 20,
    }  # fmt: skip
    assert {key: tower.keys.get(key) for key in expected} == expected
    assert tower.tensors.keys() > NAMES
    assert tower.tensors["a.blk.0.conv_dw.weight"].shape == (48, 1, 5)
    loaded = load_model(layout.model, projector=layout.projector)
    assert loaded.vision is not None
    assert loaded.audio is not None
    facts = facts_at(layout.projector)
    assert facts is not None
    assert (facts.projector, facts.hearing) == ("gemma3nv", "gemma3na")


def test_the_input_projection_may_have_its_right_name(pair_and_layout: tuple[Pair, Layout]) -> None:
    pair, layout = pair_and_layout
    assert layout.projector is not None
    found = contents_of(layout.projector)
    found.tensors["a.input_projection.weight"] = found.tensors.pop("a.pre_encode.out.weight")
    renamed = found.write(layout.projector.with_name("renamed.gguf"))
    ours = Pair(load_model(layout.model, projector=renamed), pair.theirs, pair.config)
    heard = sound(1)
    rows = ours.encoded(ours.inputs(ours.run(), "[img-0]", heard), slice_rows=50)
    assert rows.equal(pair.encoded(pair.inputs(pair.run(), "[img-0]", heard), slice_rows=50))


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "uneven": (
        {"audio.embedding_length": 49, "audio.attention.head_count": 7}, {}, r"is 49, and distances need"
    ),
    "taps": ({}, {"a.blk.0.conv_dw.weight": np.ones((48, 1, 80), np.float32)}, r"\[48, 1, 80\], and should"),
    "own words": ({}, {"mm.a.embedding.weight": None}, r"mm\.a\.embedding\.weight"),
    "missing": ({}, {"a.blk.1.per_dim_scale": None}, r"'a.blk.1.per_dim_scale.weight' is missing"),
    "layers": ({"audio.block_count": 3}, {}, r"a\.blk\.2\..* is missing"),
    "unknown": ({}, {"a.odd.weight": np.ones((2, 2), np.float32)}, r"1 tensors are unknown .*a\.odd\.weight"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_tower_that_cannot_be_read_is_refused(name: str, layout: Layout) -> None:
    check_refused(layout, *REFUSED[name])


#: Settings in a file of the folder that no key carries, and the complaint.
SETTINGS: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "context": ("config.json", "audio_config", {"conf_attention_context_left": 9}, "context_left' is 9"),
    "cap": ("config.json", "audio_config", {"conf_attention_logit_cap": 30.0}, "logit_cap' is 30.0"),
    "steps": ("config.json", "audio_config", {"conf_reduction_factor": 2}, "reduction_factor' is 2"),
    "kernel": ("config.json", "audio_config", {"sscp_conv_kernel_size": [[3, 3], [5, 5]]}, "kernel_size' is"),
    "rows": ("config.json", "", {"audio_soft_tokens_per_image": 100}, "tokens_per_image' is 100"),
    "end": ("config.json", "", {"eoa_token_id": 7}, "'eoa_token_id', is 7"),
    "words": ("config.json", "audio_config", {"vocab_size": 2}, "the last token, 'vocab_size' - 1, is"),
    "frames": ("preprocessor_config.json", "", {"frame_length": 320}, "frame_length' is 320"),
    "emphasis": ("preprocessor_config.json", "", {"preemphasis": 0.9}, "preemphasis' is 0.9"),
    "means": ("preprocessor_config.json", "", {"per_bin_mean": [0.0] * 20}, "per_bin_mean' is"),
    "bands": ("preprocessor_config.json", "", {"feature_size": 40}, "feature_size' is 40"),
}  # fmt: skip


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_that_no_key_carries_are_refused(name: str, tmp_path: Path, layout: Layout) -> None:
    file, part, changes, complaint = SETTINGS[name]
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    for each in (layout.model.parent / "checkpoint").iterdir():
        (folder / each.name).symlink_to(each)
    settings = json.loads((folder / file).read_text())
    (settings[part] if part else settings).update(changes)
    (folder / file).unlink()
    (folder / file).write_text(json.dumps(settings))
    with pytest.raises(ConversionError, match=complaint):
        convert_tower(folder, tmp_path / "tower.gguf")

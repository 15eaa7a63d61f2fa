"""Files of models that hear: their keys and tensors, and what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from puna.audio import registry
from puna.audio.towers.lfm2_audio import Lfm2Audio
from puna.chat.templates.choose import chat_template
from puna.chat.templates.messages import Message
from puna.chat.templates.model_facts import facts_at, projector_for
from puna.cli import local
from puna.convert import convert, convert_tower
from puna.errors import ConversionError, ModelError, UnsupportedModelError
from puna.gguf import open_gguf
from puna.model.load import load_model
from puna.store.facts import facts_of
from tests.model.models.parity import original
from tests.tiny.audio.models import HEARING_MODELS
from tests.tiny.converted import contents_of
from tests.tiny.vision.common import Layout
from tests.tiny.vision.models import VISION_MODELS

#: Models that only hear, and those that also see; for Gemma 3n and 4 see `test_gemma3n_files.py` and
#: `test_gemma4_files.py`.
ALONE = ("granite-speech", "lfm2-audio", "qwen2-audio", "qwen3-asr", "ultravox", "voxtral")
OMNI = ("qwen2.5-omni", "qwen3-omni")


def written(request: pytest.FixtureRequest, factory: pytest.TempPathFactory) -> Layout:
    config = HEARING_MODELS[request.param]()
    return config.write(factory.mktemp(request.param), original(config))


@pytest.fixture(scope="module", params=[*ALONE, *OMNI])
def layout(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Layout:
    return written(request, tmp_path_factory)


@pytest.fixture(scope="module", params=ALONE)
def alone(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Layout:
    """Return the files of a model that hears and does not see."""
    return written(request, tmp_path_factory)


def changed(layout: Layout, keys: dict[str, Any], tensors: dict[str, Any] | None = None) -> Path:
    assert layout.projector is not None
    found = contents_of(layout.projector)
    found.set(keys)
    for name, values in (tensors or {}).items():
        if values is None:
            del found.tensors[name]
        else:
            found.tensors[name] = values
    return found.write(layout.projector.with_name("changed.gguf"))


#: Some names of llama.cpp's table.
OF_GRANITE = {
    "a.input_projection.bias", "a.enc_ctc_out.weight", "a.enc_ctc_out_mid.bias", "a.proj_query",
    "a.proj_norm.weight", "a.proj_linear.bias", "a.blk.1.attn_rel_pos_emb", "a.blk.1.conv_norm.bias",
    "a.blk.1.ffn_down_1.bias", "a.proj_blk.1.cross_attn_norm.weight", "a.proj_blk.0.self_attn_out.bias",
}  # fmt: skip
#: The same of LFM2-Audio's, of which the last are embeddings of the sounds that it says.
OF_LFM2 = {
    "a.conv1d.0.bias", "a.conv1d.5.weight", "a.pre_encode.out.bias", "a.blk.1.linear_pos.weight",
    "a.blk.1.pos_bias_u", "a.blk.0.pos_bias_v", "a.blk.1.conv_norm.bias", "a.blk.1.ffn_down_1.bias",
    "mm.a.mlp.0.bias", "mm.a.mlp.3.weight", "a.position_embd.weight", "a.position_embd_norm.weight",
    "a.embd_to_logits.weight",
}  # fmt: skip


def test_a_tower_is_laid_out_as_llama_cpp_expects(layout: Layout) -> None:
    assert layout.projector is not None
    tower = contents_of(layout.projector)
    assert tower.architecture == "clip"
    assert tower.keys["has_audio_encoder"] is True
    kind = tower.keys.get("audio.projector_type", tower.keys.get("projector_type"))
    if kind in ("granite_speech", "lfm2a"):
        assert tower.tensors.keys() > (OF_LFM2 if kind == "lfm2a" else OF_GRANITE)
        assert (
            tower.tensors["a.blk.0.conv_pw1.weight"].ndim == tower.tensors["a.blk.0.conv_dw.weight"].ndim == 2
        )
        return
    convolution, axes = ("conv2d", 3) if kind == "qwen3a" else ("conv1d", 2)
    bias = tower.tensors[f"a.{convolution}.1.bias"]
    assert bias.shape == (len(bias), *(1,) * (axes - 1))
    assert {"a.position_embd.weight", "a.post_ln.bias", "a.blk.1.ffn_down.weight"} < tower.tensors.keys()
    projector = (
        {"mm.a.fc.weight", "mm.a.fc.bias"} if kind in ("qwen2a", "qwen2.5o") else {"mm.a.mlp.1.weight"}
    )
    assert projector < tower.tensors.keys()


def test_the_store_and_chats_know_the_tower(layout: Layout) -> None:
    assert layout.projector is not None
    assert facts_of(layout.projector).kind == "projector"
    facts = facts_at(layout.projector)
    assert facts is not None
    assert (facts.sees, facts.hears) == (False, False)
    assert facts.projector == {"qwen2.5o": "qwen2.5o", "qwen3omni": "qwen3vl_merger"}.get(facts.hearing, "")
    model = facts_at(layout.model)
    assert model is not None
    assert model.senses_by(facts) == [*(["vision"] if facts.projector else []), "audio"]
    assert projector_for([layout.projector], layout.model) == layout.projector


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "kind": ({"projector_type": "glma"}, {}, r"projectors of type 'glma' are not supported"),
    "heads": ({"audio.attention.head_count": 5}, {}, r"head_count.* is 5, which does not divide"),
    "bands": ({"audio.num_mel_bins": 1 << 20}, {}, r"num_mel_bins.* at most 1024 make sense"),
    "positions": ({}, {"a.position_embd.weight": None}, r"'a.position_embd.weight' has 0 rows"),
    "missing": ({}, {"a.blk.1.attn_q.weight": None}, r"tensor 'a.blk.1.attn_q.weight' is missing"),
    "unknown": ({}, {"a.odd.weight": np.ones((2, 2), np.float32)}, r"1 tensors are unknown .*a\.odd\.weight"),
    "layers": ({"audio.block_count": 5}, {}, r"a\.blk\.[24]\..* is missing"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_tower_that_cannot_be_read_is_refused(name: str, alone: Layout) -> None:
    keys, tensors, complaint = REFUSED[name]
    assert alone.projector is not None
    there = contents_of(alone.projector).tensors.keys() - set(Lfm2Audio.unread)
    if not tensors.keys() - {"a.odd.weight"} <= there:
        pytest.skip("it has no position vectors")
    with pytest.raises((ModelError, UnsupportedModelError), match=complaint):
        load_model(alone.model, projector=changed(alone, keys, tensors))


def test_a_tower_of_another_text_model_is_refused(alone: Layout, tmp_path: Path) -> None:
    config = VISION_MODELS["llama4"]()
    other = config.write(tmp_path, original(config), apart=True)
    readers = r"is for (granite|lfm2|llama|gemma3 or llama or qwen3|qwen2|qwen3 or qwen3vl), not for 'llama4'"
    with pytest.raises(UnsupportedModelError, match=readers):
        load_model(other.model, projector=alone.projector)


def test_an_audio_tower_beside_a_vision_tower_is_left_out_if_it_cannot_be_read(tmp_path: Path) -> None:
    config = VISION_MODELS["gemma3"]()
    layout = config.write(tmp_path, original(config), apart=True)
    more = {"audio.block_count": 2, "audio.projector_type": "voxtral", "vision.projector_type": "gemma3"}
    both = changed(layout, more, {"a.blk.0.ln1.weight": np.ones(4, np.float32)})
    loaded = load_model(layout.model, projector=both)
    assert loaded.vision is not None
    assert loaded.audio is None


def test_prompts_of_qwen3_asr_are_those_of_its_processor(tmp_path: Path) -> None:
    config = HEARING_MODELS["qwen3-asr"]()
    facts = facts_at(config.write(tmp_path, original(config)).model)
    assert facts is not None
    form = chat_template(facts).format()
    assert form.render([Message(role="user", content="[img-0]")]) == (
        "<|im_start|>system\n<|im_end|>\n<|im_start|>user\n[img-0]<|im_end|>\n<|im_start|>assistant\n"
    )


CHANGES: dict[str, tuple[str, dict[str, Any], str]] = {
    "activation": (
        "voxtral",
        {"activation_function": "silu"},
        "'audio_config.activation_function' is 'silu'",
    ),
    "window of Omni": ("qwen2.5-omni", {"n_window": 50}, "'audio_config.n_window' is 50"),
    "chunk": ("qwen3-omni", {"n_window": 25}, "'audio_config.n_window' is 25"),
    "distances": (
        "lfm2-audio",
        {"self_attention_model": "abs_pos"},
        "'encoder.self_attention_model' is",
    ),
    "reach": ("lfm2-audio", {"att_context_size": [128, 128]}, "'encoder.att_context_size' is [128, 128]"),
    "input": ("lfm2-audio", {"xscaling": True}, "'encoder.xscaling' is True"),
    "subsampling": ("lfm2-audio", {"subsampling_factor": 4}, "'encoder.subsampling_factor' is 4"),
    "norm of frames": ("lfm2-audio", {"normalize": "all_features"}, "'preprocessor.normalize' is 'all"),
    "frames": ("lfm2-audio", {"window_stride": 0.02}, "'preprocessor.window_stride' is 0.02"),
    "window": ("qwen3-asr", {"n_window_infer": 400}, "'audio_config.n_window_infer' is 400"),
    "projector": (
        "granite-speech",
        {"cross_attention_frequency": 2},
        "'projector_config.cross_attention_frequency' is 2",
    ),
    "activation of Whisper": (
        "ultravox",
        {"activation_function": "relu"},
        "'audio_config.activation_function' is 'relu'",
    ),
    "rows": ("voxtral", {"intermediate_size": 100}, "'audio_config.intermediate_size' is 100"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_settings_that_no_key_carries_are_refused(name: str, tmp_path: Path) -> None:
    kind, changes, complaint = CHANGES[name]
    config = HEARING_MODELS[kind]()
    folder = config.save(tmp_path / "checkpoint", original(config))
    whole = json.loads((folder / "config.json").read_text())
    whole.get("thinker_config", whole)[re.split(r"['.]", complaint)[1]] |= changes
    (folder / "config.json").write_text(json.dumps(whole))
    with pytest.raises(ConversionError, match=re.escape(complaint)):
        convert_tower(folder, tmp_path / "tower.gguf")


PROJECTOR: dict[str, Any] = {
    "projector_ln_mid": False, "projector_act": "gelu", "num_projector_layers": 2,
    "audio_latency_block_size": 50,
}  # fmt: skip


@pytest.mark.parametrize("name", PROJECTOR)
def test_other_projectors_of_ultravox_are_refused(name: str, tmp_path: Path) -> None:
    config = HEARING_MODELS["ultravox"]()
    folder = config.save(tmp_path / "checkpoint", original(config))
    settings = json.loads((folder / "config.json").read_text()) | {name: PROJECTOR[name]}
    (folder / "config.json").write_text(json.dumps(settings))
    with pytest.raises(ConversionError, match=f"'{name}' is {PROJECTOR[name]!r}, and a tower of type"):
        convert_tower(folder, tmp_path / "tower.gguf")


def test_a_projector_with_an_odd_row_is_refused(tmp_path: Path) -> None:
    config = HEARING_MODELS["ultravox"]()
    layout = config.write(tmp_path, original(config))
    odd = changed(layout, {}, {"mm.a.mlp.1.weight": np.ones((71, 384), np.float32)})
    with pytest.raises(ModelError, match="has 71 rows, and values and gates need an even number"):
        load_model(layout.model, projector=odd)


def test_an_even_kernel_and_an_odd_state_of_lfm2_audio_are_refused(tmp_path: Path) -> None:
    config = HEARING_MODELS["lfm2-audio"]()
    layout = config.write(tmp_path, original(config))
    even = changed(layout, {}, {"a.blk.0.conv_dw.weight": np.ones((48, 4), np.float32)})
    with pytest.raises(ModelError, match="has 4 values for each channel, and should have an odd number"):
        load_model(layout.model, projector=even)
    odd = changed(layout, {"audio.embedding_length": 45, "audio.attention.head_count": 5})
    with pytest.raises(ModelError, match="is 45, and distances need an even number"):
        load_model(layout.model, projector=odd)


def test_lfm2_audio_hears_with_another_file_s_size_and_without_sounds_to_say(tmp_path: Path) -> None:
    config = HEARING_MODELS["lfm2-audio"]()
    layout = config.write(tmp_path, original(config))
    assert layout.projector is not None
    assert contents_of(layout.projector).keys["audio.feed_forward_length"] == 96
    # llama.cpp's converter writes the size of a state.
    published = changed(layout, {"audio.feed_forward_length": 48}, dict.fromkeys(Lfm2Audio.unread))
    assert load_model(layout.model, projector=published).audio is not None


def test_a_folder_with_a_tower_alone_becomes_one_file(tmp_path: Path) -> None:
    config = HEARING_MODELS["ultravox"]()
    theirs = original(config)
    folder = config.save(tmp_path / "checkpoint", theirs)
    with pytest.raises(ConversionError, match="has a tower and no text model"):
        convert(folder, tmp_path / "text.gguf")
    local.convert(folder, tmp_path / "ears.gguf", "F32")
    assert facts_of(tmp_path / "ears.gguf").kind == "projector"
    whole = json.loads((folder / "config.json").read_text())
    del whole["audio_config"]  # its weights are Whisper's
    (folder / "config.json").write_text(json.dumps(whole))
    with pytest.raises(ConversionError, match="lacks settings of a tower: it is elsewhere"):
        local.convert(folder, tmp_path / "none.gguf", None)


def test_every_tower_has_a_tiny_model(tmp_path: Path) -> None:
    found = set()
    for name, make in HEARING_MODELS.items():
        (tmp_path / name).mkdir()
        layout = make().write(tmp_path / name, original(make()))
        assert layout.projector is not None
        with open_gguf(layout.projector) as file:
            found.add(registry.hearing_type(file))
    assert found == registry._PROJECTORS.keys()

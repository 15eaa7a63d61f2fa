"""EAGLE-3 heads are converted with the settings and the vocabulary of the model they draft for."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from puna.convert import convert
from puna.errors import ConversionError
from puna.gguf import FileType, open_gguf
from tests.convert.checkpoints import save_tokenizer, saved
from tests.model.models.parity import original
from tests.tiny.converted import Contents, contents_of
from tests.tiny.eagle import EAGLES, TinyEagle3, save_target_settings
from tests.tiny.llama import TinyLlama, vocabulary

TINY = EAGLES["part of the vocabulary"]
#: What a checkpoint lacks that does not name the layers or the size of its target.
UNSTATED = {"eagle_aux_hidden_state_layer_ids": None, "target_hidden_size": None}


def changed(folder: Path, tiny: TinyEagle3 = TINY, **settings: Any) -> Path:
    """Save a head with other settings in config.json; return the folder."""
    path = tiny.save(folder) / "config.json"
    merged = json.loads(path.read_text()) | settings
    path.write_text(json.dumps({name: value for name, value in merged.items() if value is not None}))
    return folder


def converted(checkpoint: Path, target: Path) -> Contents:
    path = checkpoint.with_name(f"{checkpoint.name}.gguf")
    convert(checkpoint, path, FileType.F32, name="Tiny", target_model=target)
    return contents_of(path)


def same(one: Contents, other: Contents) -> bool:
    return (
        one.architecture == other.architecture
        and one.keys == other.keys
        and one.tensors.keys() == other.tensors.keys()
        and all(np.array_equal(one.tensors[name], other.tensors[name]) for name in one.tensors)
    )


def test_all_published_forms_become_the_same_file(tmp_path: Path) -> None:
    target = save_target_settings(tmp_path / "target")
    expected = converted(TINY.save(tmp_path / "head"), target)
    speculator = dataclasses.replace(TINY, speculators=True)
    tied = {"transformer_layer_config": {**TINY.layer_settings(), "tie_word_embeddings": True}}
    checkpoint = changed(tmp_path / "s", speculator, tie_word_embeddings=None, **tied)
    assert same(converted(checkpoint, target), expected)
    for number, name in enumerate(("LlamaForCausalLM", "Eagle3LlamaForCausalLM", "Eagle3DraftModel")):
        checkpoint = changed(tmp_path / f"{number}", architectures=[name])
        assert same(converted(checkpoint, target), expected)


def test_numbers_of_logits_become_those_of_tokens(tmp_path: Path) -> None:
    found = converted(TINY.save(tmp_path / "head"), save_target_settings(tmp_path / "target"))
    stored = load_file(tmp_path / "head" / "model.safetensors")
    assert found.tensors["d2t"].tolist() == stored["t2d"].nonzero().flatten().tolist()
    assert "t2d" not in found.tensors
    assert found.keys["tokenizer.ggml.tokens"] == vocabulary()


@pytest.mark.parametrize(
    ("given", "layers"),
    [
        ({}, [2, 3, 4]),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [], "use_aux_hidden_state": True}}, [2, 3, 4]),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 6, 1]}}, [1, 7, 2]),
        ({"eagle_aux_hidden_state_layer_ids": [0, 6, 1]}, [0, 6, 1]),
    ],
)
@pytest.mark.parametrize("within", [True, False])
def test_layers_and_size_follow_from_the_target(
    tmp_path: Path, given: dict[str, Any], layers: list[int], within: bool
) -> None:
    sizes = {"num_hidden_layers": 7, "hidden_size": 64}
    settings = {"text_config": sizes, "num_hidden_layers": 3, "hidden_size": 8} if within else sizes
    target = save_target_settings(tmp_path / "target", **settings)
    found = converted(changed(tmp_path / "head", **UNSTATED | given), target)
    assert found.keys["target_layers"] == layers
    assert found.keys["target_hidden_size"] == 64


def test_a_head_may_have_an_output_without_numbers_of_tokens(tmp_path: Path) -> None:
    tiny = EAGLES["yarn, the target's output"]
    found = converted(tiny.save(tmp_path / "head"), save_target_settings(tmp_path / "target"))
    assert not {"d2t", "output.weight"} & found.tensors.keys()
    assert found.keys["rope.scaling.type"] == "yarn"


def test_numbers_of_tokens_are_integers(tmp_path: Path) -> None:
    target = save_target_settings(tmp_path / "target")
    convert(TINY.save(tmp_path / "head"), tmp_path / "head.gguf", target_model=target)
    with open_gguf(tmp_path / "head.gguf") as file:
        assert file.tensors["d2t"].type.name == "I64"
        assert file.tensors["fc.weight"].type.name == "F16"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_hidden_layers": 2}, "says that there are 2 layers"),
        ({"tie_word_embeddings": True}, "'tie_word_embeddings' is True"),
        ({"target_hidden_size": 60}, "it should read 3 states of 60 values"),
        ({"eagle_aux_hidden_state_layer_ids": [1, 2]}, "which should be 3 of 7"),
        ({"eagle_aux_hidden_state_layer_ids": [1, 2, 8]}, "which should be 3 of 7"),
        ({"eagle_aux_hidden_state_layer_ids": [-1, 2, 3]}, "which should be 3 of 7"),
        ({"eagle_config": {"use_mtp_layernorm": True}}, "'eagle_config.use_mtp_layernorm' is True"),
        ({"eagle_config": {"use_aux_hidden_state": False}}, "'eagle_config.use_aux_hidden_state' is False"),
        ({"fc_norm": True}, "'fc_norm' is True"),
        ({"hidden_act": "gelu"}, "'hidden_act' is 'gelu'"),
        ({"layer_types": ["sliding_attention"]}, "'layer_types'"),
        ({"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4}}, "'rope_type' is 'longrope'"),
    ],
)
def test_settings_that_a_file_cannot_have_are_refused(
    tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    target = save_target_settings(tmp_path / "target")
    with pytest.raises(ConversionError, match=message):
        converted(changed(tmp_path / "head", **settings), target)


@pytest.mark.parametrize("name", ["midlayer.self_attn.q_norm.weight", "mask_hidden", "fc_norm.0.weight"])
def test_tensors_that_a_file_cannot_have_are_refused(tmp_path: Path, name: str) -> None:
    path = TINY.save(tmp_path / "head") / "model.safetensors"
    tensors = load_file(path)
    save_file(tensors | {name: tensors["norm.weight"].clone()}, path)
    with pytest.raises(ConversionError, match=f"'{name}' has no place"):
        converted(tmp_path / "head", save_target_settings(tmp_path / "target"))


def test_a_head_needs_the_folder_of_its_target(tmp_path: Path) -> None:
    checkpoint = TINY.save(tmp_path / "head")
    save_tokenizer(checkpoint)
    with pytest.raises(ConversionError, match=r"head drafts for another model.*--target-model FOLDER"):
        convert(checkpoint, tmp_path / "head.gguf")
    (tmp_path / "nothing").mkdir()
    with pytest.raises(ConversionError, match=r"nothing has no config\.json"):
        convert(checkpoint, tmp_path / "head.gguf", target_model=tmp_path / "nothing")


def test_other_models_need_no_target(tmp_path: Path) -> None:
    checkpoint = saved(tmp_path / "llama", original(TinyLlama()))
    with pytest.raises(ConversionError, match="llama is no EAGLE-3 head"):
        convert(checkpoint, tmp_path / "llama.gguf", target_model=checkpoint)

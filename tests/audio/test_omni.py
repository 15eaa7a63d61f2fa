"""Omni models of Qwen: pictures and recordings in one text, and the folders they are published in."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from puna.batch import Input
from puna.convert import convert, convert_tower
from puna.engine.requests import read_text
from puna.gguf import FileType
from puna.model.load import load_model
from tests.audio.hearing import Pair, is_heard, sound
from tests.model.models.parity import check_close, original
from tests.tiny.audio.models import HEARING_MODELS
from tests.tiny.audio.omni import SEEN
from tests.tiny.converted import Contents, contents_of
from tests.tiny.vision.common import PART
from tests.vision.seeing import file_of, images_of, picture

OMNI = [name for name in HEARING_MODELS if "omni" in name]


@pytest.fixture(scope="module", params=OMNI)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    config = HEARING_MODELS[request.param]()
    theirs = original(config)
    layout = config.write(tmp_path_factory.mktemp(request.param), theirs)
    return Pair(load_model(layout.model, projector=layout.projector), theirs, config)


def test_a_text_with_pictures_and_recordings_agrees(pair: Pair) -> None:
    run, recordings = pair.run(), [sound(1), sound(2, 2.6)]
    images = run.engine.images
    assert images is not None
    shown = images.read([file_of(picture(number, *size)) for number, size in ((1, (90, 60)), (2, (60, 60)))])
    heard = [images.add_recording(number, each) for number, each in enumerate(recordings, 1)]
    text = "a[img-0] and [img-1] are it[img-2][img-3]b"
    inputs = read_text(text, [shown[0], heard[0], heard[1], shown[1]], pair.ours.tokenizer, images)
    run.submit_inputs(0, inputs, prompt_logprobs=True, logprobs=True, num_predict=4)
    run.finish()
    tokens = run.tokens(0)

    whole = [*inputs, *map(Input, tokens)]
    stand_ins = [SEEN if item.payload and not item.payload.image.heard else PART for item in whole]
    read = [
        stand_in if is_heard(item) else item.token for item, stand_in in zip(whole, stand_ins, strict=True)
    ]
    vision = pair.ours.vision
    assert vision is not None
    seen = [image for image in images_of(inputs) if not image.heard]
    assert len(seen) == len(shown)
    with torch.inference_mode():
        logits = pair.config.logits(pair.theirs, read, recordings, seen, vision.options)
        expected = torch.log_softmax(logits, dim=-1)
    scored = run.scored(0)[1:]
    found = torch.tensor([logprob for _, logprob in scored])
    wanted = expected[torch.arange(len(scored)), torch.tensor([token for token, _ in scored])]
    check_close(pair.ours, found, wanted)
    assert tokens == expected[len(inputs) - 1 : -1].argmax(dim=-1).tolist()


def as_thinker(folder: Path) -> None:
    """Let the folder be one that transformers writes of the part that reads alone."""
    whole = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(whole["thinker_config"]))
    tensors = load_file(folder / "model.safetensors")
    tensors = {
        name.removeprefix("thinker."): values
        for name, values in tensors.items()
        if name.startswith("thinker.")
    }
    save_file(tensors, folder / "model.safetensors")


def as_saved_by_transformers(folder: Path) -> None:
    """Let the architecture have the name of transformers' whole model."""
    whole = json.loads((folder / "config.json").read_text())
    whole["architectures"] = [whole["architectures"][0].replace("OmniModel", "OmniForConditionalGeneration")]
    (folder / "config.json").write_text(json.dumps(whole))


def with_the_vocabulary_in_two_files(folder: Path) -> None:
    model = json.loads((folder / "tokenizer.json").read_text())
    (folder / "vocab.json").write_text(json.dumps(model["model"]["vocab"]))
    merges = [each if isinstance(each, str) else " ".join(each) for each in model["model"]["merges"]]
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges, ""]))
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text()) if path.exists() else {}
    settings["added_tokens_decoder"] = {str(each["id"]): each for each in model["added_tokens"]}
    path.write_text(json.dumps(settings))
    (folder / "tokenizer.json").unlink()


#: Keys that `tokenizer.json` alone tells.
ONLY_IN_TOKENIZER_JSON = (
    "tokenizer.ggml.pre", *(f"tokenizer.ggml.add_{name}_token" for name in ("bos", "eos", "sep"))
)  # fmt: skip
FOLDERS = [as_thinker, as_saved_by_transformers, with_the_vocabulary_in_two_files]


def files_of(folder: Path, target: Path) -> list[Contents]:
    convert(folder, target / "text.gguf", FileType.F32, name="Tiny")
    assert convert_tower(folder, target / "mmproj.gguf", FileType.F32, name="Tiny")
    return [contents_of(target / "text.gguf"), contents_of(target / "mmproj.gguf")]


def check_alike(found: list[Contents], expected: list[Contents], *, unlike: tuple[str, ...] = ()) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.tensors.keys() == theirs.tensors.keys()
        assert all(np.array_equal(values, theirs.tensors[name]) for name, values in ours.tensors.items())
        kept = [{key: each.keys[key] for key in each.keys if key not in unlike} for each in (ours, theirs)]
        assert kept[0] == kept[1]


@pytest.mark.parametrize("kind", OMNI)
@pytest.mark.parametrize("change", FOLDERS, ids=lambda change: change.__name__.replace("_", "-"))
def test_every_layout_of_a_folder_gives_the_same_files(
    kind: str, change: Callable[[Path], None], tmp_path: Path
) -> None:
    config: Any = HEARING_MODELS[kind]()
    folder = config.save(tmp_path / "checkpoint", original(config))
    expected = files_of(folder, tmp_path)
    change(folder)
    check_alike(files_of(folder, tmp_path), expected, unlike=ONLY_IN_TOKENIZER_JSON)


def test_the_folder_of_qwen3_asr_as_its_authors_publish_it_gives_the_same_files(tmp_path: Path) -> None:
    config: Any = HEARING_MODELS["qwen3-asr"]()
    folder = config.save(tmp_path / "checkpoint", original(config))
    expected = files_of(folder, tmp_path)

    tensors = {}
    for name, values in load_file(folder / "model.safetensors").items():
        name = name.replace("multi_modal_projector.linear_", "audio_tower.proj")
        name = name.removeprefix("model.").replace("language_model.", "model.")
        tensors[f"thinker.{name}"] = values.clone()
    save_file(tensors, folder / "model.safetensors")
    settings = json.loads((folder / "config.json").read_text())
    sections = {"interleaved": True, "mrope_interleaved": True, "mrope_section": [4, 4, 4]}
    settings["text_config"]["rope_parameters"] |= sections
    settings["audio_config"] |= {"conv_chunksize": 500, "max_source_positions": 1500}
    whole = {"architectures": settings.pop("architectures"), "thinker_config": settings}
    (folder / "config.json").write_text(json.dumps(whole))
    found = files_of(folder, tmp_path)
    assert (found[0].architecture, expected[0].architecture) == ("qwen3vl", "qwen3")  # as llama.cpp names it
    check_alike(found, expected, unlike=("n_deepstack_layers", "rope.dimension_sections"))
    assert found[0].keys["n_deepstack_layers"] == 0

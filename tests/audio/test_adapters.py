"""The adapter that is published with a model, and used in prompts with recordings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import puna
from puna.convert import check_convertible, convert_adapters
from puna.convert.cache import converted
from puna.engine.requests import FittedPrompt
from puna.errors import ConversionError
from puna.gguf import open_gguf
from puna.model.load import load_model
from puna.options import AdapterFile, AdapterScale, Options
from puna.protocol import Generate
from puna.store.recipe import resolve
from tests.audio.hearing import Pair, sound
from tests.model.models.parity import check_close, original
from tests.tiny.audio.granite_speech import TinyGraniteSpeech, save_adapter
from tests.tiny.llama import TinyLlama


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a published folder whose adapter is saved beside the model."""
    config = TinyGraniteSpeech(TinyLlama(), layers=2, tied=False)
    place = tmp_path_factory.mktemp("granite")
    saved = config.save(place / "checkpoint", original(config))
    save_adapter(saved, original(config))
    settings = json.loads((saved / "config.json").read_text())
    (saved / "config.json").write_text(json.dumps(settings | {"has_lora_adapter": True}))
    return saved


@pytest.fixture(scope="module")
def pairs(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Pair, Pair]:
    """Return the model with transformers' as published, and with its adapter merged."""
    config, place = TinyGraniteSpeech(TinyLlama(), layers=2, tied=False), tmp_path_factory.mktemp("files")
    layout = config.write(place, original(config))
    made = convert_adapters(folder, lambda name: place / f"{name}.gguf", layout.model)
    adapters = [AdapterFile(str(path), name, 0.0) for name, path in made.items()]
    ours = load_model(layout.model, projector=layout.projector, adapters=adapters)
    merged = save_adapter(tmp_path_factory.mktemp("merged"), original(config))
    return Pair(ours, original(config), config), Pair(ours, merged, config)


#: What a request asks for, whether it has a recording, and whether the adapter is used.
REQUESTS: dict[str, tuple[list[AdapterScale] | None, bool, bool]] = {
    "recording": (None, True, True),
    "text": (None, False, False),
    "recording, no adapter": ([], True, False),
    "text, adapter": ([AdapterScale(name="audio")], False, True),
}


@pytest.mark.parametrize("name", REQUESTS, ids=lambda name: name.replace(" ", "-"))
def test_a_recording_switches_the_adapter_on(name: str, pairs: tuple[Pair, Pair]) -> None:
    lora, hears, adapted = REQUESTS[name]
    pair, recordings = pairs[adapted], [sound(1)] * hears
    run = pair.run()
    inputs = pair.inputs(run, "listen [img-0] well" if hears else "listen well", *recordings)
    asked = Generate(
        id=0, prompt=[0], options=Options.merge({"temperature": 0, "num_predict": 4}), ignore_eos=True,
        prompt_logprobs=True, lora=lora,
    )  # fmt: skip
    prompt = FittedPrompt([each.token for each in inputs], inputs=inputs)
    run.engine.submit(asked, run._sink(0), prompt)
    run.finish()
    scored = run.scored(0)[1:]
    expected = pair.reference(inputs, *recordings)
    places, tokens = torch.arange(len(scored)), torch.tensor([token for token, _ in scored])
    check_close(pair.ours, torch.tensor([value for _, value in scored]), expected[places, tokens])


@pytest.mark.slow
def test_a_folder_is_loaded_with_its_adapter(folder: Path) -> None:
    files = converted(folder)
    with open_gguf(files.adapters["audio"]) as file:
        assert file.metadata["adapter.lora.task_name"] == "audio"

    def answer(model: puna.Model, **more: Any) -> str:
        message = {"role": "user", "content": "what was said?", "audio": [sound(1)]}
        return model.chat([message], temperature=1, seed=1, num_predict=12, **more).text

    with puna.load(folder, num_ctx=256) as model:
        heard = answer(model)
        assert heard == answer(model, lora={"audio": 1.0}) != answer(model, lora={})


def test_the_adapters_files_belong_to_the_model(folder: Path) -> None:
    assert {"adapter_model.safetensors", "adapter_config.json"} < resolve("./.", folder).files.keys()


@pytest.mark.parametrize("name", ["adapter_model.safetensors", "adapter_config.json"])
def test_a_missing_file_of_the_adapter_is_named(name: str, folder: Path, tmp_path: Path) -> None:
    for path in folder.iterdir():
        if path.name != name:
            (tmp_path / path.name).symlink_to(path)
    with pytest.raises(ConversionError, match=f"{name} is missing: the model has an adapter for audio"):
        check_convertible(tmp_path)

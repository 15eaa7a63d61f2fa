"""Prediction heads against the published formula, in torch, on layers of transformers (arXiv:2412.19437)."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from puna.batch import KeptStates
from puna.errors import ModelError
from puna.gguf import open_gguf
from puna.model.decoder import Decoder
from puna.model.load import LoadedModel, LoadSettings, load_model
from puna.model.memory import Forecast
from puna.ops import Backend
from tests.model.models.heads import head_results
from tests.model.models.parity import FLOATS, random_tokens
from tests.tiny.converted import Contents
from tests.tiny.decoders import tiny_decoder_gguf
from tests.tiny.heads import MODELS, TinyHeads
from tests.tiny.heads_reference import Reference


@pytest.fixture(scope="module", params=MODELS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, ops: Backend) -> Any:
    """Return our model and the reference."""
    tiny = MODELS[request.param]
    reference = Reference(tiny)
    path = tiny_decoder_gguf(tmp_path_factory.mktemp("heads") / "model.gguf", tiny, model=reference.model)
    return load_model(path, ops=ops), reference


def our_logits(ours: LoadedModel, tokens: list[int], parts: list[int]) -> list[torch.Tensor]:
    """Return logits like `Reference.logits`, reading the tokens in `parts`."""
    assert isinstance(ours.model, Decoder)
    kept = KeptStates(ours.ops, 128, ours.model.options.hidden_size)
    found = head_results(ours, ours.model, kept, tokens, parts)
    return [torch.from_numpy(logits) for _, logits in found]


@pytest.mark.parametrize("parts", [[40], [15, 1, 24]], ids=str)
def test_logits_match_the_published_formula(pair: Any, parts: list[int]) -> None:
    ours, reference = pair
    tokens = random_tokens(ours, 40, 5)
    expected = reference.logits(tokens)
    for mine, theirs in zip(our_logits(ours, tokens, parts), expected, strict=True):
        difference = torch.log_softmax(mine, -1) - torch.log_softmax(theirs, -1)
        assert difference.abs().max() < 1e-3


@dataclasses.dataclass(frozen=True)
class Lacking(TinyHeads):
    """Model whose file lacks a tensor of the head."""

    tensor: str = ""

    def contents(self, model: Any) -> Contents:
        found = super().contents(model)
        kept = {name: array for name, array in found.tensors.items() if self.tensor not in name}
        return dataclasses.replace(found, tensors=kept)


def lacking(folder: Path, tensor: str) -> Path:
    tiny = MODELS["glm4moe"]
    model = Reference(tiny).model
    return tiny_decoder_gguf(folder / "model.gguf", Lacking(tiny.decoder, tensor=tensor), model=model)


def test_a_head_that_lacks_a_tensor_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"tensor 'blk\.2\.nextn\.hnorm\.weight' is missing"):
        load_model(lacking(tmp_path, "nextn.hnorm"))


def test_a_file_without_the_joint_projection_has_no_prediction_heads(tmp_path: Path) -> None:
    loaded = load_model(lacking(tmp_path, "nextn.eh_proj"))
    assert isinstance(loaded.model, Decoder)
    assert not loaded.model.prediction_heads
    assert loaded.model.options.block_count == len(loaded.model.layers) == 2


def test_heads_count_towards_memory_only_where_loaded(tmp_path: Path) -> None:
    path = lacking(tmp_path, "nothing")
    with open_gguf(path) as file:
        every, few = Forecast(file, FLOATS), Forecast(file, FLOATS, prediction_heads=False)
        own = sum(tensor.nbytes for name, tensor in file.tensors.items() if name.startswith("blk.2."))
    assert every.weight_bytes - few.weight_bytes == own
    tables = [each.table(context=64, parallel=2, batch=16) for each in (every, few)]
    assert [[part.name for part in table.parts] for table in tables] == [
        ["input", "layer 0", "layer 1", "layer 2", "output"],
        ["input", "layer 0", "layer 1", "output"],
    ]
    assert tables[0].parts[3].cache == tables[0].parts[2].cache > 0
    assert tables[0].activations - tables[1].activations >= 16 * every.options.hidden_size * 4
    loaded = load_model(path, LoadSettings(prediction_heads=False))
    assert loaded.weight_bytes == few.weight_bytes
    assert isinstance(loaded.model, Decoder)
    assert not loaded.model.prediction_heads

"""Models of which a process loads only some layers."""

from __future__ import annotations

from pathlib import Path

import pytest

from puna.errors import UnsupportedModelError
from puna.gguf import open_gguf
from puna.model.layer_cache import Everything, KeysOf
from puna.model.load import LoadSettings, forecast_for, load_stage
from puna.model.load import load_model as load
from puna.model.memory import Forecast
from puna.model.stages import places_to_cut
from tests.tiny.bert import TinyBert, tiny_bert_gguf
from tests.tiny.llama import TinyLlama, tiny_llama_gguf


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama_gguf(tmp_path_factory.mktemp("stages") / "model.gguf", TinyLlama(layers=4))


def test_stages_hold_all_of_a_model_together_and_nothing_twice(path: Path) -> None:
    first = load(path, LoadSettings(layers=(0, 1)))
    later = [load_stage(path, LoadSettings(layers=layers)) for layers in ((1, 3), (3, 4))]
    assert first.weight_bytes + sum(stage.weight_bytes for stage in later) == load(path).weight_bytes
    assert [layer.index for layer in later[0].model.layers] == [1, 2]
    assert later[0].model.token_embedding is None
    assert set(later[1].model.sample_cache(LoadSettings().cache_types).layers) == {3}


def test_memory_of_stages_is_that_of_their_layers(path: Path) -> None:
    with open_gguf(path) as file:
        tables = [
            forecast_for(file, layers=layers).table(context=64, parallel=2, batch=32)
            for layers in (None, (0, 1), (1, 4))
        ]
        assert isinstance(forecast_for(file), Forecast)
    whole, first, later = tables
    assert first.weights + later.weights == whole.weights
    assert first.cache + later.cache == whole.cache
    assert (first.tokenizer, later.tokenizer) == (whole.tokenizer, 0)


@pytest.mark.parametrize("layers", [(0, 5), (2, 2), (3, 1)])
def test_stages_have_layers_of_the_model(path: Path, layers: tuple[int, int]) -> None:
    with pytest.raises(UnsupportedModelError, match="are no part of a model with 4 layers"):
        load_stage(path, LoadSettings(layers=layers))


def test_models_whose_layers_need_each_other_are_not_split(path: Path, tmp_path: Path) -> None:
    bert = tiny_bert_gguf(tmp_path / "bert.gguf", TinyBert())
    with pytest.raises(UnsupportedModelError, match="bert cannot be split: its layers read a whole text"):
        load(bert, LoadSettings(layers=(0, 1)))


def test_cuts_do_not_separate_layers_from_the_keys_they_use() -> None:
    every = Everything()
    assert places_to_cut([every, every, every, KeysOf(1), every]) == [1, 4]
    assert places_to_cut([every, KeysOf(0)]) == []

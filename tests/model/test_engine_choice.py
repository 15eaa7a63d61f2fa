"""Choice of the engine that runs a model, and errors if none can."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from puna.errors import InsufficientMemoryError, ModelError, UnavailableError, UnsupportedModelError
from puna.gguf import GGMLType, GGUFWriter, open_gguf
from puna.kvcache.types import KVTypes
from puna.model.header import engine_for
from puna.model.load import forecast_for
from puna.model.memory import MemoryForecast
from puna.options import Placement
from tests.tiny.llama import add_tokenizer, tiny_llama_gguf
from tests.tiny.olmo import TinyOlmo, tiny_olmo_gguf


@pytest.fixture(scope="module")
def llama_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama_gguf(tmp_path_factory.mktemp("gguf") / "llama.gguf")


@pytest.fixture(scope="module")
def olmo_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_olmo_gguf(tmp_path_factory.mktemp("gguf") / "olmo.gguf", TinyOlmo())


@pytest.fixture(params=[True, False], ids=["installed", "missing"])
def installed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether llama-cpp-python is found."""
    spec = importlib.util.find_spec
    found = spec("json") if request.param else None
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: found if name == "llama_cpp" else spec(name)
    )
    return bool(request.param)


def chosen(path: Path, wanted: str = "auto") -> str:
    with open_gguf(path) as file:
        return engine_for(file, wanted)


def unknown(path: Path, architecture: str) -> Path:
    writer = GGUFWriter(path, architecture)
    add_tokenizer(writer)
    writer.add_tensor("token_embd.weight", np.zeros((4, 32), np.float32))
    writer.write()
    return path


def test_puna_runs_what_it_supports_unless_llama_cpp_is_chosen(installed: bool, llama_file: Path) -> None:
    assert chosen(llama_file) == chosen(llama_file, "puna") == "puna"
    if installed:
        assert chosen(llama_file, "llamacpp") == "llamacpp"
    else:
        with pytest.raises(UnavailableError, match=r"pip install 'puna\[llamacpp\]'"):
            chosen(llama_file, "llamacpp")


def test_llama_cpp_runs_the_rest_and_the_error_names_it_if_missing(installed: bool, olmo_file: Path) -> None:
    if installed:
        assert chosen(olmo_file) == "llamacpp"
    else:
        with pytest.raises(
            UnsupportedModelError, match=r"'olmo' is not supported; .*pip install 'puna\[llamacpp\]'"
        ):
            chosen(olmo_file)
    with pytest.raises(UnsupportedModelError, match="'olmo' is not supported"):
        chosen(olmo_file, "puna")


@pytest.mark.parametrize(
    ("architecture", "nearest"), [("gemma5", "gemma"), ("glm5", "glm4"), ("deepseek3", "deepseek")]
)
def test_the_nearest_architecture_is_named(tmp_path: Path, architecture: str, nearest: str) -> None:
    with pytest.raises(UnsupportedModelError, match=f"the nearest being {nearest}"):
        chosen(unknown(tmp_path / "new.gguf", architecture), "puna")


def test_a_file_that_is_not_a_model_is_refused_by_either_engine(installed: bool, tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "vision.gguf", "clip")
    writer.add("general.type", "mmproj")
    writer.write()
    with pytest.raises(UnsupportedModelError, match="a file of type 'mmproj', not a model"):
        chosen(tmp_path / "vision.gguf")


# --- memory on the processor: without llama.cpp nothing can be said about GPUs -----------------------------


def forecast(path: Path, types: str = "f16") -> MemoryForecast:
    with open_gguf(path) as file:
        return forecast_for(file, KVTypes.parse(types), engine="llamacpp", placement=Placement(num_gpu=0))


@pytest.mark.parametrize(("types", "bytes_per_value"), [("f16", 2), ("f32", 4)])
def test_memory_is_estimated_from_the_sizes_in_the_file(
    monkeypatch: pytest.MonkeyPatch, olmo_file: Path, types: str, bytes_per_value: int
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    made = forecast(olmo_file, types)
    table = made.table(context=100, parallel=3, batch=512)
    tiny = TinyOlmo()
    assert table.cache == tiny.layers * 2 * tiny.hidden * bytes_per_value * 300
    with open_gguf(olmo_file) as file:
        assert table.weights == made.weight_bytes == sum(tensor.nbytes for tensor in file.tensors.values())
    assert table.host == table.total > table.weights + table.cache
    assert made.vram_bytes == 0
    with pytest.raises(InsufficientMemoryError, match=r"num_ctx \d+ would fit"):
        made.check(table, table.host - 1)


def test_an_absurd_number_of_layers_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    writer = GGUFWriter(tmp_path / "deep.gguf", "olmo")
    writer.add("olmo.block_count", 2**30)
    writer.add_tensor("token_embd.weight", np.zeros((4, 32), np.float32), GGMLType.F32)
    writer.write()
    with pytest.raises(ModelError, match=r"'olmo\.block_count' is 1073741824"):
        forecast(tmp_path / "deep.gguf")

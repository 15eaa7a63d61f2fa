"""The place where a model is computed: the GPU if it fits, unless its settings say otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from puna.cli.manage import processor
from puna.engine.engine import Engine
from puna.engine.room import EngineSizes
from puna.errors import InsufficientMemoryError
from puna.model.load import LoadSettings, load_model
from puna.ops import backend_named
from puna.ops.gpu.torch_backend import TorchBackend
from puna.options import Placement
from puna.runner.process import _loaded
from tests.tiny.llama import TinyLlama, tiny_llama_gguf

PROCESSOR = backend_named("reference")


class Gpu(TorchBackend):
    """A GPU of a certain size, computed by torch on the processor."""

    def __init__(self, memory: int) -> None:
        super().__init__(torch.device("cpu"))
        self.device = "GPU 0"  # type: ignore[misc]
        self.memory = memory

    def available_memory(self, promised: int = 0) -> int:
        return self.memory


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama_gguf(tmp_path_factory.mktemp("placement") / "llama.gguf", TinyLlama())


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> list[Gpu]:
    """Return the machine's GPUs, of which tests may change the memory."""
    gpus = [Gpu(1 << 30)]

    def backends(*, gpu: bool = True) -> list[object]:
        return [*gpus, PROCESSOR] if gpu else [PROCESSOR]

    monkeypatch.setattr("puna.model.load.backends", backends)
    monkeypatch.setattr("puna.runner.process.may_use_gpu", lambda: True)
    return gpus


def test_a_model_that_fits_is_computed_by_the_gpu(path: Path, machine: list[Gpu]) -> None:
    loaded = load_model(path)
    assert loaded.ops is machine[0]
    assert (loaded.layers_on_gpu, loaded.warnings) == (loaded.model.options.block_count, ())


def test_a_model_that_does_not_fit_is_computed_by_the_processor(path: Path, machine: list[Gpu]) -> None:
    machine[0].memory = 1000
    loaded = load_model(path)
    assert (loaded.ops, loaded.layers_on_gpu, loaded.vram_bytes) == (PROCESSOR, 0, 0)
    (warning,) = loaded.warnings
    assert warning.startswith("the processor computes this model, which does not fit on the GPU: ")
    assert "requires more GPU 0 memory" in warning


def test_a_model_for_the_gpu_alone_is_refused(path: Path) -> None:
    with pytest.raises(InsufficientMemoryError, match="requires more GPU 0 memory"):
        load_model(path, ops=Gpu(1000))


def test_no_layers_on_the_gpu_means_the_processor(path: Path, machine: list[Gpu]) -> None:
    loaded = load_model(path, LoadSettings(placement=Placement(num_gpu=0)))
    assert (loaded.ops, loaded.layers_on_gpu, loaded.warnings) == (PROCESSOR, 0, ())
    assert load_model(path, LoadSettings(placement=Placement(num_gpu=1))).ops is machine[0]


def test_a_request_for_a_gpu_that_cannot_be_used_says_why(
    path: Path, machine: list[Gpu], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.clear()
    monkeypatch.setattr("puna.model.load.gpu_problem", lambda: "its driver is too old")
    loaded = load_model(path, LoadSettings(placement=Placement(num_gpu=99)))
    assert loaded.warnings == ("the processor computes this model: its driver is too old",)
    assert load_model(path).warnings == ()


@pytest.mark.parametrize(
    ("num_gpu", "memory", "share", "placed"),
    [
        (-1, 1 << 30, "100% GPU", True),
        (0, 1 << 30, "100% CPU", True),
        (-1, 1000, "100% CPU", False),  # no other num_gpu would help
    ],
)
def test_weights_and_caches_on_the_gpu_are_counted_there(
    path: Path, machine: list[Gpu], num_gpu: int, memory: int, share: str, placed: bool
) -> None:
    machine[0].memory = memory
    placement = Placement(num_gpu=num_gpu)
    engine = Engine(
        load_model(path, LoadSettings(placement=placement)), EngineSizes(context=64), growable=True
    )
    info = _loaded(engine, placement)
    assert processor(info.weight_bytes + info.cache_bytes, info.vram_bytes) == share
    assert (bool(info.on_gpu), info.placed, info.device) == (
        share == "100% GPU", placed, "GPU 0" if share == "100% GPU" else "CPU",
    )  # fmt: skip

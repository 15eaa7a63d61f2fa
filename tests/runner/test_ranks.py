"""Tensor parallelism with ranks in processes of their own; torch on the processor stands in for GPUs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest
import torch

from puna.batch import Batch
from puna.errors import (
    InsufficientMemoryError,
    ModelLostError,
    PunaError,
    RunnerError,
    UnavailableError,
    UnsupportedModelError,
)
from puna.gguf import GGMLType
from puna.kvcache.types import KVTypes
from puna.model.load import LoadedModel, LoadSettings, load_model
from puna.model.parallel.model import ParallelModel
from puna.model.parallel.ranks import OtherRanks
from puna.model.parallel.wire import LoadShare
from puna.model.placement import DeviceStage
from puna.ops.gpu.torch_backend import TorchBackend
from puna.options import AdapterFile, Options, Placement
from puna.protocol import Generate, Load
from puna.runner.client import LocalRunner
from tests.engine.runs import Run
from tests.model.parallel.test_model import decoder, llama
from tests.runner.running import tokens_of
from tests.stand_in_gpus import use_gpus
from tests.tiny.llama import TinyLlama, tiny_llama_gguf
from tests.waiting import PATIENCE_S, wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("PUNA_OPS" in os.environ, reason="the backend was chosen"),
]

PROMPTS = [[1, *range(3, 30)], [5, 6, 7], [1, *range(3, 20), 9]]
COUNT = 12


@pytest.fixture(autouse=True)
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PUNA_GPU_DEVICE", "cpu")
    monkeypatch.setenv("PUNA_GPU_MEMORY_GB", "1,1")
    monkeypatch.setenv("PUNA_TENSOR_PARALLEL", "2")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = TinyLlama(feed_forward=128)
    return tiny_llama_gguf(tmp_path_factory.mktemp("ranks") / "model.gguf", config, kind=GGMLType.Q8_0)


def load(path: Path, **options: object) -> Load:
    return Load(path=str(path), num_ctx=64, num_batch=32, parallel=3, num_thread=1, **options)  # type: ignore[arg-type]


@asynccontextmanager
async def running(path: Path, **options: object) -> AsyncIterator[LocalRunner]:
    runner = await LocalRunner.spawn()
    try:
        await runner.load(load(path, **options))
        yield runner
    finally:
        with contextlib.suppress(PunaError):
            await runner.close()


async def tokens(runner: LocalRunner, prompt: list[int], count: int = COUNT) -> list[int]:
    options = Options(num_predict=count, temperature=0.0)
    return await tokens_of(runner, Generate(prompt=prompt, options=options, ignore_eos=True))


def answered(loaded: LoadedModel) -> Run:
    """Return the engine of a model after it has answered several requests at once."""
    run = Run(loaded, context=64)
    for number, prompt in enumerate(PROMPTS):
        run.submit(number, prompt, num_predict=COUNT, temperature=0, ignore_eos=True)
    run.finish()
    return run


def alone(path: Path) -> list[list[int]]:
    """Return the answers of one process."""
    ops = TorchBackend(torch.device("cpu"), "GPU 0", 1 << 30)
    run = answered(load_model(path, stages=[DeviceStage(ops, 0, 0)]))
    found = [run.tokens(number) for number in range(len(PROMPTS))]
    run.engine.close()
    return found


def ranks_of(pid: int) -> list[psutil.Process]:
    return [each for each in psutil.Process(pid).children() if "puna.model.rank" in each.cmdline()]


def check(path: Path) -> None:
    """Have a model answer several requests at once, and then end one of its ranks."""

    async def answers() -> list[list[int]]:
        async with running(path) as runner:
            assert runner.info.device == "GPU 0 and GPU 1 (tensor parallel)"
            assert runner.info.vram_bytes > runner.info.weight_bytes
            found = await asyncio.gather(*(tokens(runner, prompt) for prompt in PROMPTS))
            [rank] = ranks_of(runner.pid)
            asking = asyncio.create_task(tokens(runner, PROMPTS[0], 10**6))
            while not (await runner.ping()).running:
                await asyncio.sleep(0)
            os.kill(rank.pid, signal.SIGKILL)
            with pytest.raises(
                RunnerError, match="a part of the model is lost: rank 1 was killed by signal 9"
            ):
                await asyncio.wait_for(asking, PATIENCE_S)
            return found

    assert asyncio.run(answers()) == alone(path)


def test_answers_are_those_of_one_process_until_a_rank_ends(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_gpus(monkeypatch, 1 << 30, 1 << 30)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    loaded = load_model(path, LoadSettings(context=64))
    assert isinstance(loaded.model, ParallelModel)
    run = answered(loaded)
    assert not list(tmp_path.iterdir()), "a process that is killed leaves no file"
    assert [run.tokens(number) for number in range(len(PROMPTS))] == alone(path)
    [rank] = ranks_of(os.getpid())
    rank.kill()
    run.submit(9, PROMPTS[0], num_predict=COUNT, temperature=0)
    run.finish()
    failed = run.failed(9)
    assert failed.kind == ModelLostError.__name__
    assert failed.message == "a part of the model is lost: rank 1 was killed by signal 9"
    run.engine.close()
    loaded.model.close()


@pytest.mark.thorough
def test_answers_of_a_runner_are_those_of_one_process_until_a_rank_ends(path: Path) -> None:
    check(path)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", [GGMLType.F32, GGMLType.Q4_K])
@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_the_same_of_other_models(name: str, kind: GGMLType, tmp_path: Path) -> None:
    sizes = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 128}
    made = decoder(name, kind, sizes) if name == "qwen3" else llama(kind, hidden=512, feed_forward=512)
    check(made(tmp_path / "model.gguf"))


@pytest.mark.thorough
@pytest.mark.parametrize("kill", [False, True])
def test_ranks_end_with_the_runner(path: Path, kill: bool) -> None:
    async def ended() -> list[psutil.Process]:
        async with running(path) as runner:
            found = ranks_of(runner.pid)
            if kill:
                os.kill(runner.pid, signal.SIGKILL)
            return found

    ranks = asyncio.run(ended())
    assert len(ranks) == 1
    wait_until(lambda: not any(each.is_running() for each in ranks), "the ranks end")


@pytest.mark.thorough
def test_model_can_be_loaded_again_in_the_same_process(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_gpus(monkeypatch, 1 << 30, 1 << 30)
    for _ in range(2):
        loaded = load_model(path, LoadSettings(context=64))
        assert isinstance(loaded.model, ParallelModel)
        with pytest.raises(UnavailableError, match="uses for something else"):
            load_model(path, LoadSettings(context=64))
        loaded.model.close()
    assert not ranks_of(os.getpid())


@pytest.mark.thorough
def test_rank_that_stands_still_ends_the_model_in_time(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_gpus(monkeypatch, 1 << 30, 1 << 30)
    monkeypatch.setattr("puna.model.load.PATIENCE_S", 5.0)
    loaded = load_model(path, LoadSettings(context=64))
    assert isinstance(loaded.model, ParallelModel)
    cache = loaded.make_cache(sequences=1, context=64)
    batch = Batch.of([1], [0], [0], [0])
    cache.start_forward(batch)
    [rank] = ranks_of(os.getpid())
    rank.suspend()
    with pytest.raises(ModelLostError, match="a part of the model is lost: rank 0: "):
        loaded.model.forward(batch.on(loaded.ops), cache)
    rank.resume()
    loaded.model.close()


@pytest.mark.thorough
def test_rank_without_memory_is_told_to_the_parent(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PUNA_GPU_MEMORY_GB", "1,0.0001")

    async def refused() -> None:
        async with running(path):
            pass

    with pytest.raises(InsufficientMemoryError, match="requires more GPU 1 memory"):
        asyncio.run(refused())


def test_what_cannot_be_computed_so_is_refused_before_ranks_start(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_gpus(monkeypatch, 1 << 30, 1 << 30)
    with pytest.raises(UnsupportedModelError, match="adapters do not work with PUNA_TENSOR_PARALLEL"):
        load_model(path, adapters=[AdapterFile(str(tmp_path / "none.gguf"), "none")])
    assert load_model(path, LoadSettings(placement=Placement(num_gpu=0))).layers_on_gpu == 0
    monkeypatch.setenv("PUNA_TENSOR_PARALLEL", "3")
    with pytest.raises(
        UnavailableError, match=r"PUNA_TENSOR_PARALLEL=3 needs 3 GPUs, and this model can use 2"
    ):
        load_model(path)
    use_gpus(monkeypatch, 1 << 30, 1 << 30, 1 << 30)
    with pytest.raises(
        UnsupportedModelError, match="2 heads of keys and values cannot be divided among 3 GPUs"
    ):
        load_model(path)


def test_ranks_are_told_what_the_model_is_loaded_for(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_gpus(monkeypatch, 1 << 30, 1 << 30)
    told: list[LoadShare] = []

    def started(orders: list[LoadShare]) -> OtherRanks:
        told.extend(orders)
        raise UnavailableError("enough")

    monkeypatch.setattr(OtherRanks, "started", started)
    settings = LoadSettings(
        context=48,
        parallel=3,
        batch_size=24,
        reserved=5,
        cache_types=KVTypes.parse("bf16"),
        prediction_heads=False,
        placement=Placement(main_gpu=1),
    )
    with pytest.raises(UnavailableError, match="enough"):
        load_model(path, settings)
    [order] = told
    assert (order.path, order.rank, order.count) == (str(path), 1, 2)
    assert order.device == 0, "rank 0 has the main GPU"
    for name in ("context", "parallel", "batch_size", "reserved", "prediction_heads"):
        assert getattr(order, name) == getattr(settings, name)
    assert KVTypes.parse(order.cache_types) == settings.cache_types

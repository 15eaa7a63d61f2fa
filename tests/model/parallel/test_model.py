"""A model that several ranks compute gives what one process does."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from puna.batch import Batch
from puna.engine.engine import Engine
from puna.engine.room import EngineSizes
from puna.errors import ModelLostError, UnsupportedModelError
from puna.gguf import GGMLType
from puna.kvcache.types import F16_TYPES, KVTypes
from puna.model.load import LoadedModel, LoadSettings, load_model
from puna.model.placement import DeviceStage
from puna.ops import Backend
from puna.ops.gpu.torch_backend import TorchBackend
from puna.options import LLAMACPP
from puna.runner.process import _loaded
from tests.engine.runs import Run
from tests.model.parallel.ranks import Parallel, SilentGroup, parallel
from tests.samples import sampled
from tests.tiny.decoders import TinyDecoder, tiny_decoder_gguf
from tests.tiny.llama import TinyLlama, tiny_llama_gguf
from tests.waiting import wait_until

CONTEXT = 64

#: Sizes whose halves and quarters are whole blocks of 32, and of 256.
SMALL: dict[str, Any] = {"hidden_size": 128, "intermediate_size": 256, "head_dim": 32}
WIDE: dict[str, Any] = {
    "hidden_size": 256, "intermediate_size": 512, "head_dim": 128,
}  # fmt: skip


def llama(kind: GGMLType, **sizes: Any) -> Callable[[Path], Path]:
    return lambda path: tiny_llama_gguf(path, TinyLlama(**sizes), kind=kind, endless=True)


def decoder(name: str, kind: GGMLType, settings: dict[str, Any]) -> Callable[[Path], Path]:
    return lambda path: tiny_decoder_gguf(path, TinyDecoder(name, settings), matrices=kind)


MODELS: dict[str, Callable[[Path], Path]] = {
    "llama, F32": llama(GGMLType.F32),
    "llama, Q8_0": llama(GGMLType.Q8_0, feed_forward=128),
    "llama, Q4_K": llama(GGMLType.Q4_K, hidden=512, feed_forward=512),
    "llama, F32, tied": llama(GGMLType.F32, tied=True),
    "qwen3, F32": decoder("qwen3", GGMLType.F32, SMALL),
    "qwen3, Q8_0": decoder("qwen3", GGMLType.Q8_0, SMALL),
    "qwen3, Q4_K": decoder("qwen3", GGMLType.Q4_K, WIDE),
    "qwen2, F32": decoder("qwen2", GGMLType.F32, SMALL),  # with biases
    "qwen2, Q8_0": decoder("qwen2", GGMLType.Q8_0, SMALL),
    "mistral3, F32": decoder("ministral3", GGMLType.F32, SMALL),
}


@pytest.fixture(scope="module")
def ops() -> Backend:
    return TorchBackend(torch.device("cpu"), "GPU 0", 1 << 30)


def passes(loaded: LoadedModel, types: KVTypes = F16_TYPES) -> list[np.ndarray]:
    """Return logits of sequences that are read in pieces, shared, shortened and continued."""
    cache = loaded.make_cache(sequences=4, context=CONTEXT, types=types)
    ops, found = loaded.ops, []

    def run(rows: list[tuple[int, int]], outputs: list[int] | None) -> None:
        """Read a number of rows of sequences."""
        positions = [cache.length(sequence) + i for sequence, count in rows for i in range(count)]
        owners = [sequence for sequence, count in rows for _ in range(count)]
        tokens = [(7 * at + 3 * owner) % 60 + 1 for at, owner in zip(positions, owners, strict=True)]
        batch = Batch.of(tokens, positions, owners, outputs or [])
        if outputs is None:
            batch.outputs = None
        cache.start_forward(batch)
        found.append(ops.numpy(loaded.model.forward(batch.on(ops), cache)).copy())

    run([(0, 18)], [17])
    run([(0, 1), (1, 21)], [0, 9, 21])
    run([(0, 1), (1, 1)], None)
    cache.copy_prefix(1, 2, 20)
    run([(2, 2), (0, 1)], None)
    cache.remove(0, 19)
    run([(0, 3)], [2])
    cache.start_forward(Batch.of([1], [cache.length(0)], [0], [0]))
    cache.undo_forward()
    run([(0, 2)], [1])
    cache.undo_forward()
    run([(0, 1)], None)
    cache.remove(1, 0)
    getattr(cache, "compact", int)()
    run([(3, 12), (2, 1)], [11, 12])
    cache.close()
    return found


@pytest.fixture(scope="module")
def path_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    found: dict[str, Path] = {}

    def path(name: str) -> Path:
        if name not in found:
            found[name] = MODELS[name](tmp_path_factory.mktemp("parallel") / "model.gguf")
        return found[name]

    return path


def alone(path: Path, ops: Backend) -> LoadedModel:
    return load_model(path, stages=[DeviceStage(ops, 0, 0)])


#: Linears of a layer.
DIVIDED = ("mixer.query", "mixer.value", "mixer.output", "feed_forward.up", "feed_forward.down")

SAMPLED = ("llama, Q8_0", "qwen3, F32")


@pytest.mark.parametrize("name", sampled(MODELS, SAMPLED))
def test_logits_are_those_of_one_process(name: str, path_of: Callable[[str], Path], ops: Backend) -> None:
    path = path_of(name)
    expected = passes(alone(path, ops))
    with parallel(path, 2, ops) as ranks:
        for ours, theirs in zip(passes(ranks.loaded), expected, strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-4, rtol=0)
        assert not ranks.losses


@pytest.mark.thorough
def test_four_ranks_share_a_model_whose_vocabulary_they_cannot_divide_evenly(
    tmp_path: Path, ops: Backend
) -> None:
    path = tiny_llama_gguf(tmp_path / "llama.gguf", TinyLlama(heads=8, kv_heads=4, tied=True))
    expected = passes(alone(path, ops))
    with parallel(path, 4, ops) as ranks:
        options = ranks.model.options
        assert options.vocab_size % 4
        for ours, theirs in zip(passes(ranks.loaded), expected, strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-4, rtol=0)


def test_each_rank_keeps_its_part_of_weights_and_caches(path_of: Callable[[str], Path], ops: Backend) -> None:
    path = path_of("llama, Q8_0")
    whole: Any = alone(path, ops).model
    with parallel(path, 2, ops) as ranks:
        shares: list[Any] = [ranks.model.first, *ranks.shares]
        for share in shares:
            for layer, complete in zip(share.layers, whole.layers, strict=True):
                for half in DIVIDED:
                    part, name = half.split(".")
                    ours = getattr(getattr(layer, part), name).weight
                    theirs = getattr(getattr(complete, part), name).weight
                    assert 2 * ours.nbytes == theirs.nbytes, half
            sizes = {"sequences": 1, "capacity": 64, "batch": 16}
            own, all_heads = (each.sample_cache(F16_TYPES).layer_bytes(**sizes) for each in (share, whole))
            assert [2 * size for size in own.values()] == list(all_heads.values())


def answers(loaded: LoadedModel) -> list[Any]:
    """Return what an engine answers to several requests at once, which share prefixes, evict and shift."""
    run = Run(loaded, parallel=3, context=CONTEXT, capacity=120, batch_size=32)
    prompt = [1, *range(3, 30)]
    for number in range(4):
        run.submit(number, [*prompt, 31 + number], num_predict=10, temperature=0)
    run.embed(4, prompt[:9])
    run.finish()
    run.submit(5, [1, *range(3, 60)], num_predict=16, temperature=0)  # until the context is full, and beyond
    run.finish()
    found = [run.tokens(number) for number in (0, 1, 2, 3, 5)]
    assert all(map(len, found))
    vectors = [np.frombuffer(event.vector, np.float32) for event in run.embedded(4)]
    run.engine.close()
    return [*found, *vectors]


def test_several_requests_at_once_get_the_answers_of_one_process(
    path_of: Callable[[str], Path], ops: Backend
) -> None:
    path = path_of("llama, Q8_0")
    *expected, vector = answers(alone(path, ops))
    with parallel(path, 2, ops) as ranks:
        *found, ours = answers(ranks.loaded)
        assert found == expected
        np.testing.assert_allclose(ours, vector, atol=1e-4)


def test_caches_of_all_ranks_are_counted_and_a_draft_model_once(
    path_of: Callable[[str], Path], ops: Backend
) -> None:
    path = path_of("llama, Q8_0")

    def counted(loaded: LoadedModel) -> int:
        loaded = dataclasses.replace(loaded, draft=alone(path, ops))
        engine = Engine(loaded, EngineSizes(context=CONTEXT, parallel=2))
        found = _loaded(engine).cache_bytes
        engine.close()
        return found

    expected = counted(alone(path, ops))
    with parallel(path, 2, ops) as ranks:
        assert counted(ranks.loaded) == expected


def test_room_for_caches_is_that_of_the_rank_with_the_least(
    path_of: Callable[[str], Path], ops: Backend
) -> None:
    with parallel(path_of("llama, Q8_0"), 2, ops) as ranks:
        ranks.shares[0].cache_room = lambda reserved: 1 << 20  # it had more before it met the others
        ranks.loaded.make_cache(sequences=1, context=CONTEXT)
        assert ranks.model.cache_room() == 1 << 20


# --- failures ---------------------------------------------------------------------------------------


def fail_in(model: Any, error: BaseException) -> None:
    """Let a model's pass raise an error after its first layer."""

    def forward(*_: Any) -> Any:
        raise error

    model.layers[1].forward = forward


def one_pass(ranks: Parallel) -> None:
    cache = ranks.loaded.make_cache(sequences=1, context=CONTEXT)
    batch = Batch.of([1, 2], [0, 1], [0, 0], [1])
    cache.start_forward(batch)
    ranks.model.forward(batch.on(ranks.loaded.ops), cache)


def test_models_of_llama_cpp_are_refused(
    path_of: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PUNA_TENSOR_PARALLEL", "2")
    monkeypatch.setattr("puna.model.load.engine_for", lambda *_: LLAMACPP)  # as if it were installed
    with pytest.raises(UnsupportedModelError, match=r"PUNA_TENSOR_PARALLEL says: llama\.cpp runs it"):
        load_model(path_of("llama, F32"), LoadSettings(engine=LLAMACPP))


def test_failure_of_a_rank_ends_the_model_with_its_reason(
    path_of: Callable[[str], Path], ops: Backend
) -> None:
    with parallel(path_of("llama, Q8_0"), 2, ops) as ranks:
        fail_in(ranks.shares[0], ValueError("a defect"))
        with pytest.raises(
            ModelLostError, match=r"^a part of the model is lost: rank 1: ValueError: a defect$"
        ):
            one_pass(ranks)
        wait_until(lambda: bool(ranks.losses), "the loss is reported")
        with pytest.raises(ModelLostError, match="a defect"):  # from then on
            ranks.loaded.make_cache(sequences=1, context=CONTEXT)


def test_failure_of_the_first_rank_keeps_no_other_waiting(
    path_of: Callable[[str], Path], ops: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("puna.model.parallel.ranks._NEWS_S", 0.01)
    with parallel(path_of("llama, Q8_0"), 2, ops) as ranks:
        fail_in(ranks.model.first, MemoryError("no more"))
        with pytest.raises(ModelLostError, match="rank 0: MemoryError: no more"):
            one_pass(ranks)


def test_interrupted_pass_ends_the_model(path_of: Callable[[str], Path], ops: Backend) -> None:
    """The other ranks are in the middle of it, and would take the next pass's results for its own."""
    with parallel(path_of("llama, Q8_0"), 2, ops) as ranks:
        fail_in(ranks.model.first, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            one_pass(ranks)
        with pytest.raises(ModelLostError, match="rank 0 was interrupted"):
            one_pass(ranks)


def test_pass_in_which_a_rank_was_lost_has_no_result(path_of: Callable[[str], Path], ops: Backend) -> None:
    with parallel(path_of("llama, Q8_0"), 2, ops, SilentGroup) as ranks:
        fail_in(ranks.shares[0], ValueError("a defect"))
        with pytest.raises(ModelLostError, match="rank 1: ValueError: a defect"):
            one_pass(ranks)


def test_pass_for_which_a_rank_waits_too_long_ends_the_model(
    path_of: Callable[[str], Path], ops: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("puna.model.parallel.ranks._PASS_S", 0.0)
    monkeypatch.setattr("puna.model.parallel.ranks._LOOK_S", 0.01)
    with parallel(path_of("llama, Q8_0"), 2, ops, SilentGroup) as ranks:
        go_on = threading.Event()
        ranks.shares[0].layers[1].forward = lambda *_: go_on.wait()
        try:
            with pytest.raises(ModelLostError, match="a rank has kept others waiting for 0 s"):
                one_pass(ranks)
            wait_until(lambda: bool(ranks.losses), "the loss is reported")
        finally:
            go_on.set()

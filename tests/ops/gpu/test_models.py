"""Models on the GPU's backends: the same numbers as transformers', and the same tokens.

Without a GPU, plain torch computes all of them on its CPU device, and Triton's interpreter a smaller one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from puna.batch import Batch
from puna.engine.executor import Replay
from puna.model.load import LoadedModel, load_model
from puna.ops import Backend, backend_named
from puna.ops.gpu.torch_backend import TorchBackend
from puna.ops.gpu.triton_backend import TritonBackend
from tests.engine.runs import Run
from tests.engine.test_replay import Pair
from tests.model.divisions import divided
from tests.model.models.parity import (
    check_greedy,
    original,
    our_log_probabilities,
    random_tokens,
    reference_log_probabilities,
)
from tests.ops.model_pairs import NAMES, check_pieces, check_reuse, pair_of
from tests.processors import NOT_BUILT
from tests.tiny.llama import TinyLlama, tiny_llama_gguf


@pytest.fixture(scope="module")
def backend(device: torch.device) -> Backend:
    return TorchBackend(device) if device.type == "cpu" else TritonBackend(device)


@pytest.fixture(scope="module", params=NAMES)
def pair(
    request: pytest.FixtureRequest, backend: Backend, tmp_path_factory: pytest.TempPathFactory
) -> tuple[LoadedModel, Any]:
    return pair_of(request.param, backend, tmp_path_factory.mktemp("gpu"))


def test_log_probabilities_agree(pair: tuple[LoadedModel, Any]) -> None:
    check_pieces(*pair)


def test_log_probabilities_agree_after_prefix_reuse(pair: tuple[LoadedModel, Any]) -> None:
    check_reuse(*pair)


def test_greedy_output_agrees_token_for_token(pair: tuple[LoadedModel, Any]) -> None:
    check_greedy(*pair, count=12)


def test_requests_together_get_the_answers_they_get_alone(pair: tuple[LoadedModel, Any]) -> None:
    """Sampled answers beyond the context, which shifts the keys."""
    ours, _ = pair
    prompts = [random_tokens(ours, length, length) for length in (3, 22)]

    def answers(*numbers: int) -> list[list[int]]:
        run = Run(ours, context=24)
        for number in numbers:
            run.submit(number, prompts[number], num_predict=6, temperature=0.7, seed=number)
        run.finish()
        return [run.tokens(number) for number in numbers]

    assert answers(0, 1) == [*answers(0), *answers(1)]


@pytest.mark.slow
def test_a_model_is_computed_by_the_kernels(device: torch.device, tmp_path: Path) -> None:
    """A prompt by the kernels for many rows, then tokens by those for few, and a step that is replayed."""
    config = TinyLlama(hidden=32, feed_forward=32, layers=1, heads=2, kv_heads=1)
    theirs = original(config)
    ours = load_model(
        tiny_llama_gguf(tmp_path / "llama.gguf", config, model=theirs), ops=TritonBackend(device)
    )
    tokens = random_tokens(ours, 20, 1)
    found = our_log_probabilities(ours, tokens, [17, 2, 1])
    assert (found - reference_log_probabilities(theirs, tokens)).abs().max() < 1e-3


def test_steps_of_a_model_divided_with_the_processor_are_replayed(
    backend: Backend, device: torch.device, tmp_path: Path
) -> None:
    pytest.importorskip("puna._native", reason=NOT_BUILT, exc_type=ImportError)
    processor = backend_named("cpu")
    path = tiny_llama_gguf(tmp_path / "model.gguf", TinyLlama(layers=3))
    loaded = divided(path, [2], [backend, processor])
    pair = Pair(loaded)
    for streams in (1, 3):
        for _ in range(5):
            pair.step(*range(streams))
    assert pair.proven == [1, 3]
    for step in pair.replay._steps.values():
        recorded = [piece.program is not None for piece in step.pieces]
        assert recorded == [device.type == "cuda", True, device.type == "cuda"]
    tokens = random_tokens(loaded, 40, 1)
    found = our_log_probabilities(loaded, tokens, [25, 1, 14])
    expected = our_log_probabilities(load_model(path, ops=processor), tokens, [25, 1, 14])
    assert (found - expected).abs().max() < 1e-2


@pytest.mark.parametrize("rows", [1, 3, 8, 17, 64])
def test_steps_of_decoding_are_replayed_on_a_gpu(rows: int, device: torch.device, tmp_path: Path) -> None:
    if device.type != "cuda":
        pytest.skip("set PUNA_GPU_DEVICE=cuda on a machine with a GPU")
    ours = load_model(tiny_llama_gguf(tmp_path / "llama.gguf", TinyLlama()), ops=TritonBackend(device))
    cache = ours.make_cache(sequences=rows, context=64)
    replay = Replay(ours.model, cache)
    replayed = 0
    for position in range(8):
        batch = Batch.of([3] * rows, [position] * rows, list(range(rows)), list(range(rows)))
        batch.outputs = None
        cache.start_forward(batch)
        replay.forward(batch)
        replayed = sum(step.proven for step in replay._steps.values())
    assert replayed == 1
    cache.close()

"""Weights that stay on the host beside a GPU: the processor computes with them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from puna.gguf import GGMLType
from puna.model.load import load_model
from puna.model.placement import DeviceStage
from puna.ops import Backend, ExpertNetworks, ExpertWeights, Weight, processor_backend
from puna.ops.gpu.torch_backend import TorchBackend
from puna.ops.gpu.triton_backend import TritonBackend
from tests.model.models.parity import our_log_probabilities, random_tokens
from tests.ops.block_bytes import random_bytes
from tests.tiny.decoders import GPT_OSS, tiny_decoder_gguf
from tests.tiny.latent import DEEPSEEK_V3
from tests.tiny.llama import TinyLlama, tiny_llama_gguf
from tests.tiny.llama4 import TinyLlama4, tiny_llama4_gguf

KIND = GGMLType.Q8_0
EXPERTS, INNER, WIDTH = 4, 96, 64


@pytest.fixture(params=[TorchBackend, TritonBackend])
def backend(request: pytest.FixtureRequest, device: torch.device) -> Backend:
    ops: Backend = request.param(device)
    return ops


def _weight(rows: int, columns: int, *, on_host: bool) -> Weight:
    data = random_bytes(KIND, rows, columns, np.random.default_rng(rows))
    return Weight("w", data, KIND, (rows, columns), on_host=on_host)


def _stack(rows: int, columns: int, *, on_host: bool) -> ExpertWeights:
    return ExpertWeights(_weight(EXPERTS * rows, columns, on_host=on_host), EXPERTS)


def _networks(ops: Backend, *, on_host: bool) -> ExpertNetworks:
    biases = np.random.default_rng(1).standard_normal((3, EXPERTS, INNER), np.float32)
    gate_bias, up_bias, down_bias = biases[0], biases[1], biases[2, :, :WIDTH].copy()
    return ExpertNetworks(
        _stack(INNER, WIDTH, on_host=on_host),
        _stack(INNER, WIDTH, on_host=on_host),
        _stack(WIDTH, INNER, on_host=on_host),
        *map(ops.host.array, (gate_bias, up_bias, down_bias)),
    )


def _calls(ops: Backend, rows: int, *, on_host: bool) -> dict[str, Callable[[], list[NDArray[np.float32]]]]:
    """Return every operation that takes weights, each with results on the host."""
    rng = np.random.default_rng(rows)
    x = ops.array(rng.standard_normal((rows, WIDTH), np.float32))
    heads = ops.array(rng.standard_normal((rows, 2, WIDTH), np.float32))
    bias = ops.array(rng.standard_normal(INNER, np.float32))
    chosen = ops.array(
        rng.permuted(np.tile(np.arange(EXPERTS, dtype=np.int32), (rows, 1)), axis=1)[:, :2].copy()
    )
    shares = ops.array(rng.random((rows, 2), np.float32))
    first = ops.array(rng.integers(0, EXPERTS, rows, np.int32))
    weight, other = _weight(INNER, WIDTH, on_host=on_host), _weight(32, WIDTH, on_host=on_host)

    def read(*results: object) -> list[NDArray[np.float32]]:
        return [ops.numpy(result) for result in results]  # type: ignore[arg-type]

    return {
        "embedding": lambda: read(ops.embedding(first, weight)),
        "linear": lambda: read(ops.linear(x, weight, bias)),
        "linear_many": lambda: read(*ops.linear_many(x, [weight, other], [bias, None])),
        "linear_heads": lambda: read(ops.linear_heads(heads, [other, _weight(32, WIDTH, on_host=on_host)])),
        "experts": lambda: read(ops.experts(x, chosen, shares, _networks(ops, on_host=on_host))),
        "expert_linear": lambda: read(
            ops.expert_linear(x, first, _stack(INNER, WIDTH, on_host=on_host),
                              ops.host.array(np.ones((EXPERTS, INNER), np.float32)))
        ),
    }  # fmt: skip


@pytest.mark.parametrize("rows", [0, 1, 20])
def test_the_processor_computes_with_weights_that_stay_on_the_host(backend: Backend, rows: int) -> None:
    expected = _calls(processor_backend(), rows, on_host=False)
    for name, call in _calls(backend, rows, on_host=True).items():
        for found, wanted in zip(call(), expected[name](), strict=True):
            assert found.shape == wanted.shape, name
            # A device adds biases after the product was rounded.
            np.testing.assert_allclose(found, wanted, atol=1e-5, rtol=1e-5, err_msg=name)


def test_weights_on_the_host_take_its_form(backend: Backend) -> None:
    weight, other = _weight(INNER, WIDTH, on_host=True), _weight(INNER, WIDTH, on_host=False)
    parts = [weight.row_range(0, 32), weight.chosen_rows(np.arange(32))]
    for each in (weight, other, *parts):
        backend.pack(each)
    like = _weight(INNER, WIDTH, on_host=False)
    backend.host.pack(like)
    assert type(weight.packed) is type(parts[0].packed) is type(parts[1].packed) is type(like.packed)
    assert type(other.packed) is not type(like.packed)


def test_products_with_weights_on_both_sides_are_what_they_are_apart(backend: Backend) -> None:
    x = backend.array(np.random.default_rng(0).standard_normal((3, WIDTH), np.float32))
    weights = [_weight(INNER, WIDTH, on_host=side) for side in (True, False)]
    together = backend.linear_many(x, weights)
    for found, weight in zip(together, weights, strict=True):
        assert np.array_equal(backend.numpy(found), backend.numpy(backend.linear(x, weight)))


def test_a_layers_experts_are_on_one_side(device: torch.device) -> None:
    stacks = _stack(INNER, WIDTH, on_host=True), _stack(INNER, WIDTH, on_host=True)
    with pytest.raises(ValueError, match="'w', 'w' alone cannot stay on the host"):
        ExpertNetworks(*stacks, _stack(WIDTH, INNER, on_host=False))


#: Shared experts, which stay on the device; experts with biases; inputs that are scaled.
MODELS: dict[str, tuple[Any, Callable[..., Path]]] = {
    "deepseek2": (DEEPSEEK_V3, tiny_decoder_gguf),
    "gpt-oss": (GPT_OSS, tiny_decoder_gguf),
    "llama4": (TinyLlama4(), tiny_llama4_gguf),
}


@pytest.mark.parametrize("name", MODELS)
def test_models_with_experts_on_the_host_compute_the_same(
    name: str, tmp_path: Path, device: torch.device
) -> None:
    config, write = MODELS[name]
    path = write(tmp_path / "model.gguf", config)
    ours, whole = (
        load_model(path, stages=[DeviceStage(TorchBackend(device), 0, 8, host_experts=layers)])
        for layers in (8, 0)
    )
    tokens = random_tokens(ours, 40, 1)
    found, expected = (our_log_probabilities(each, tokens, [25, 1, 14]) for each in (ours, whole))
    assert (found - expected).abs().max() < 1e-3
    assert (found != expected).any(), "the same kernels computed both"


def test_single_and_joined_experts_stay_on_the_host(tmp_path: Path, device: torch.device) -> None:
    for kind in ("single", "joined"):
        path = tiny_llama_gguf(tmp_path / f"{kind}.gguf", TinyLlama(experts=4, expert_tensors=kind))
        loaded = load_model(path, stages=[DeviceStage(TorchBackend(device), 0, 8, host_experts=1)])
        first, second = (layer.feed_forward.experts for layer in loaded.model.layers[:2])  # type: ignore
        assert first.gate.on_host
        assert first.down.on_host
        assert not second.up.on_host


def test_a_gpus_backend_sets_the_processors_threads(device: torch.device) -> None:
    ops = TorchBackend(device)
    before = ops.host.threads()
    try:
        ops.set_threads(1)
        assert ops.host.threads() == 1
    finally:
        ops.set_threads(before)

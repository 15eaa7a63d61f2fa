"""Log-probabilities beside llama.cpp's on the same files, both held against float32.

Run by `make test-peers`, which builds llama-cpp-python. The yardstick is llama.cpp itself: it gives
slightly different numbers when weights are repacked for other kernels, when attention is computed
another way, and when tokens come one at a time. Puna must be as close to the exact answer as
llama.cpp is, and about as close to llama.cpp as llama.cpp is to itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from puna import ops
from puna.demo import path as demo_path
from puna.gguf import GGMLType, GGUFWriter, open_gguf
from puna.kvcache.types import KVTypes
from puna.model.input import Batch
from puna.model.load import load_model
from puna.model.tokenizer import tokenizer_from_gguf
from tests.tiny import TinyLlama, tiny_llama_gguf

pytestmark = pytest.mark.peers
pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed: run make test-peers")

POSITIONS = 240
KINDS = [GGMLType.Q8_0, GGMLType.Q4_K, GGMLType.Q4_0, GGMLType.Q5_K, GGMLType.Q6_K, GGMLType.F16]
TEXT = (
    "Once upon a time there was a small fox who lived at the edge of a quiet forest. Every morning she "
    "walked to the river to look at the fish. One day she found a shiny key under a stone. "
)


@dataclass
class Case:
    path: Path
    tokens: list[int]


def requantised(source: Path, target: Path, kind: GGMLType) -> Path:
    """The model with every matrix whose rows allow it as `kind`."""
    with open_gguf(source) as file:
        writer = GGUFWriter(target, file.architecture)
        for key, value in file.metadata.items():
            if key not in ("general.architecture", "general.file_type"):
                writer.add(key, value)
        for name, tensor in file.tensors.items():
            matrix = len(tensor.shape) == 2 and tensor.shape[-1] % kind.block_size == 0
            writer.add_tensor(name, file.array(name), kind if matrix else GGMLType.F32)
        writer.write()
    return target


@pytest.fixture(scope="module", params=["random", "demo"])
def source(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if request.param == "demo":
        return demo_path()
    config = TinyLlama(hidden=256, feed_forward=512, layers=3, heads=8, kv_heads=2, scale=0.5)
    return tiny_llama_gguf(tmp_path_factory.mktemp("random") / "random.gguf", config)


@pytest.fixture(params=KINDS, ids=lambda kind: kind.name)
def case(request: pytest.FixtureRequest, source: Path, tmp_path: Path) -> Case:
    path = requantised(source, tmp_path / f"{request.param.name}.gguf", request.param)
    with open_gguf(path) as file:
        text = tokenizer_from_gguf(file).encode(TEXT * 8)
    return Case(path, text[:POSITIONS])


def log_softmax(logits: np.ndarray) -> np.ndarray:
    return torch.log_softmax(torch.from_numpy(np.asarray(logits)).double(), dim=-1).numpy()


def ours(case: Case, implementation: str, types: str) -> np.ndarray:
    with ops.use(implementation), torch.inference_mode():
        loaded = load_model(case.path)
        cache = loaded.make_cache(sequences=1, context=POSITIONS, types=KVTypes.parse(types))
        rows = list(range(len(case.tokens)))
        batch = Batch.of(case.tokens, rows, [0] * len(rows), rows)
        cache.start_forward(batch)
        return log_softmax(loaded.model.forward(batch, cache).numpy())


def divergence(exact: np.ndarray, other: np.ndarray) -> float:
    """Mean Kullback-Leibler divergence of `other` from `exact`, in nats."""
    return float((np.exp(exact) * (exact - other)).sum(axis=-1).mean())


def test_as_close_to_float32_as_llama_cpp_and_to_llama_cpp_as_it_is_to_itself(
    case: Case, record_property, capsys: pytest.CaptureFixture[str]
) -> None:
    from bench.llama_cpp_peer import LlamaCpp

    variants = {
        "default": ({}, POSITIONS),
        "one at a time": ({}, 1),
        "not repacked": ({"repack": False}, POSITIONS),
        "plain attention": ({"flash": False}, POSITIONS),
    }
    theirs = {}
    for name, (settings, at_once) in variants.items():
        peer = LlamaCpp(case.path, context=256, **settings)
        theirs[name] = log_softmax(peer.logits(case.tokens, at_once=at_once))
        peer.close()
    exact = ours(case, "reference", "f32")
    mine = ours(case, "cpu", "f16")

    their_divergences = [divergence(exact, other) for other in theirs.values()]
    among_themselves = max(
        np.abs(first - second).mean() for first in theirs.values() for second in theirs.values()
    )
    from_theirs = min(np.abs(mine - other).mean() for other in theirs.values())
    figures = {
        "KL to float32, Puna": divergence(exact, mine),
        "KL to float32, llama.cpp (least)": min(their_divergences),
        "KL to float32, llama.cpp (most)": max(their_divergences),
        "mean |difference| of log-probabilities, Puna to llama.cpp": from_theirs,
        "mean |difference|, llama.cpp to itself": among_themselves,
    }
    for name, value in figures.items():
        record_property(name, value)
    with capsys.disabled():
        print(f"\n{case.path.name}: " + "; ".join(f"{name} {value:.2e}" for name, value in figures.items()))

    # Both round activations to 8 bits; over a few hundred positions their mean errors differ by chance.
    noise = 1e-6  # below this the difference is float32 rounding
    assert figures["KL to float32, Puna"] <= 1.25 * max(their_divergences) + noise
    assert from_theirs <= 2 * among_themselves + 1e-3

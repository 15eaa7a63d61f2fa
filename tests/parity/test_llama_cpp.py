"""Log-probabilities beside llama.cpp's on the same files, both held against float32.

Run by `make test-peers`, which builds llama-cpp-python. How far a quantised evaluation is from float32
varies by orders of magnitude from position to position, and a few positions carry most of the mean: two
engines that round equally well differ by a third over 240 positions. So the same positions are compared in
pairs, sequence by sequence, and what is tested is whether Puna is worse beyond chance.

The other yardstick is llama.cpp itself: it gives slightly different numbers when weights are repacked for
other kernels, when attention is computed another way, and when tokens come one at a time. Puna must be
about as close to llama.cpp as llama.cpp is to itself.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from demo.generate import draw
from puna.batch import Batch
from puna.demo import path as demo_path
from puna.gguf import GGMLType, GGUFWriter, open_gguf
from puna.kvcache.types import KVTypes
from puna.model.load import load_model
from puna.model.tokenizer import tokenizer_from_gguf
from puna.ops import backend_named
from tests.forward import logits_of
from tests.tiny import TinyLlama, tiny_llama_gguf

pytestmark = pytest.mark.peers
pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed: run make test-peers")

SEQUENCES, LENGTH = 16, 120
KINDS = [
    GGMLType.Q4_0, GGMLType.Q4_1, GGMLType.Q5_0, GGMLType.Q5_1, GGMLType.Q8_0,
    GGMLType.Q2_K, GGMLType.Q3_K, GGMLType.Q4_K, GGMLType.Q5_K, GGMLType.Q6_K,
    GGMLType.IQ4_NL, GGMLType.IQ4_XS, GGMLType.MXFP4, GGMLType.F16, GGMLType.BF16,
]  # fmt: skip


@dataclass
class Case:
    path: Path
    sequences: list[list[int]]


def trained_like(name: str, values: np.ndarray) -> np.ndarray:
    """Norm weights as training leaves them: of different sizes, with a few channels far above the others."""
    if not name.endswith("norm.weight"):
        return values
    dice = np.random.default_rng(len(name) + len(values))
    spread = np.exp(0.4 * dice.standard_normal(len(values)))
    spread[dice.integers(0, len(values), 3)] *= 8
    return (values * spread / np.sqrt((spread**2).mean())).astype(np.float32)


def requantised(source: Path, target: Path, kind: GGMLType) -> Path:
    """The model with every matrix whose rows allow it as `kind`."""
    with open_gguf(source) as file:
        writer = GGUFWriter(target, file.architecture)
        for key, value in file.metadata.items():
            if key not in ("general.architecture", "general.file_type"):
                writer.add(key, value)
        for name, tensor in file.tensors.items():
            matrix = len(tensor.shape) == 2 and tensor.shape[-1] % kind.block_size == 0
            values = file.array(name) if source == demo_path() else trained_like(name, file.array(name))
            writer.add_tensor(name, values, kind if matrix else GGMLType.F32)
        writer.write()
    return target


@pytest.fixture(scope="module", params=["random", "demo"])
def source(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if request.param == "demo":
        return demo_path()
    config = TinyLlama(hidden=256, feed_forward=512, layers=3, heads=8, kv_heads=2, scale=0.5)
    return tiny_llama_gguf(tmp_path_factory.mktemp("random") / "random.gguf", config)


def texts() -> list[str]:
    """Stories, chats and the rest of what the demo model was trained to continue, strung together."""
    dice, found = random.Random(3), []
    for _ in range(SEQUENCES):
        text = ""
        while len(text) < 8 * LENGTH:
            document = draw(dice.choice(["plain", "story", "facts", "sums", "talk"]), dice)
            text += document.get("text") or " ".join(turn["content"] for turn in document["messages"])
        found.append(text)
    return found


@pytest.fixture(params=KINDS, ids=lambda kind: kind.name)
def case(request: pytest.FixtureRequest, source: Path, tmp_path: Path) -> Case:
    path = requantised(source, tmp_path / f"{request.param.name}.gguf", request.param)
    with open_gguf(path) as file:
        tokenizer = tokenizer_from_gguf(file)
        return Case(path, [tokenizer.encode(text)[:LENGTH] for text in texts()])


def log_softmax(logits: np.ndarray) -> np.ndarray:
    return torch.log_softmax(torch.from_numpy(np.asarray(logits)).double(), dim=-1).numpy()


def ours(case: Case, implementation: str, types: str) -> list[np.ndarray]:
    """Log-probabilities [tokens, vocab] of each sequence."""
    found = []
    loaded = load_model(case.path, ops=backend_named(implementation))
    for tokens in case.sequences:
        cache = loaded.make_cache(sequences=1, context=LENGTH, types=KVTypes.parse(types))
        rows = list(range(len(tokens)))
        batch = Batch.of(tokens, rows, [0] * len(rows), rows)
        cache.start_forward(batch)
        found.append(log_softmax(logits_of(loaded.model, batch, cache).numpy()))
        cache.close()
    return found


def divergences(exact: list[np.ndarray], other: list[np.ndarray]) -> np.ndarray:
    """Mean Kullback-Leibler divergence of `other` from `exact` over each sequence, in nats."""
    return np.array([(np.exp(e) * (e - o)).sum(axis=-1).mean() for e, o in zip(exact, other, strict=True)])


def distance(first: list[np.ndarray], second: list[np.ndarray]) -> float:
    """Mean difference of log-probabilities."""
    return float(np.mean([np.abs(f - s).mean() for f, s in zip(first, second, strict=True)]))


def test_as_close_to_float32_as_llama_cpp_and_to_llama_cpp_as_it_is_to_itself(
    case: Case, capsys: pytest.CaptureFixture[str]
) -> None:
    from bench.llama_cpp_peer import LlamaCpp, Setting

    variants = {
        "default": (Setting(), LENGTH),
        "one at a time": (Setting(), 1),
        "not repacked": (Setting(repack=False), LENGTH),
        "plain attention": (Setting(flash=False), LENGTH),
    }
    theirs = {}
    for name, (setting, at_once) in variants.items():
        peer = LlamaCpp(case.path, context=256, setting=setting)
        logits = [peer.logits(tokens, at_once=at_once) for tokens in case.sequences]
        theirs[name] = [log_softmax(each) for each in logits]
        peer.close()
    exact = ours(case, "reference", "f32")
    mine = ours(case, "cpu", "f16")

    our_divergences, their_divergences = divergences(exact, mine), divergences(exact, theirs["default"])
    # Below this the difference is float32 rounding, in the reference too.
    noise = 1e-7
    ratios = np.log((our_divergences + noise) / (their_divergences + noise))
    ratio, error = ratios.mean(), ratios.std(ddof=1) / len(ratios) ** 0.5
    variety = list(theirs.values())
    among_themselves = max(distance(first, second) for first in variety for second in variety)
    from_theirs = min(distance(mine, other) for other in variety)
    with capsys.disabled():
        print(
            f"\n{case.path.stem:7} KL to float32: Puna {our_divergences.mean():.2e}, "
            f"llama.cpp {their_divergences.mean():.2e}; ratio {np.exp(ratio):.2f} "
            f"(95 %: {np.exp(ratio - 2 * error):.2f} to {np.exp(ratio + 2 * error):.2f}); "
            f"difference: Puna to llama.cpp {from_theirs:.2e}, llama.cpp to itself {among_themselves:.2e}"
        )
    assert error < 0.15 or ratio + 2 * error < 0, "the sequences differ too much to tell"
    assert ratio - 2 * error <= 0.02, "further from float32 than llama.cpp, beyond chance"
    assert from_theirs <= 2 * among_themselves + 1e-3

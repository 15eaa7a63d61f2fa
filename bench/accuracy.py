"""Compare quantised files with float32, beside llama.cpp on the same files.

    make bench-accuracy        # builds llama-cpp-python the first time; writes docs/accuracy.json

Every type is evaluated on the demo model and on a random one, whose norm weights have outlier channels as
after training. The distance from float32 varies by orders of magnitude between positions, and a few positions
make up most of the mean: two engines that round equally well differ by a third over 240 positions. So the
same positions are compared in pairs, sequence by sequence.

The other yardstick is llama.cpp itself: its results differ slightly with weights repacked for other kernels,
with another way to compute attention, and with tokens evaluated one at a time.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

from accuracy_report import REPORT, Result, line
from llama_cpp_peer import LlamaCpp, Setting
from pages import DOCS

from demo.generate import draw
from puna.batch import Batch
from puna.demo import path as demo_path
from puna.gguf import GGMLType, GGUFWriter, open_gguf
from puna.kvcache.types import KVTypes
from puna.model.load import load_model
from puna.ops import backend_named
from puna.tokenizer import tokenizer_from_gguf
from tests.tiny.forward import logits_of
from tests.tiny.llama import TinyLlama, tiny_llama_gguf

SEQUENCES, LENGTH = 16, 120
MODELS = ("random", "demo")
KINDS = (
    GGMLType.Q4_0, GGMLType.Q4_1, GGMLType.Q5_0, GGMLType.Q5_1, GGMLType.Q8_0,
    GGMLType.Q2_K, GGMLType.Q3_K, GGMLType.Q4_K, GGMLType.Q5_K, GGMLType.Q6_K,
    GGMLType.IQ4_NL, GGMLType.IQ4_XS, GGMLType.MXFP4, GGMLType.F16, GGMLType.BF16,
)  # fmt: skip
#: Variants of llama.cpp with different results: its setting, and the tokens evaluated at a time.
WAYS = {
    "default": (Setting(), LENGTH),
    "one at a time": (Setting(), 1),
    "not repacked": (Setting(repack=False), LENGTH),
    "plain attention": (Setting(flash=False), LENGTH),
}


def measure(model: str, kind: GGMLType, count: int = SEQUENCES) -> Result:
    """Measure both engines' distance from float32 for a model in blocks of `kind`, on `count` sequences."""
    with tempfile.TemporaryDirectory() as folder:
        path = requantised(source(model, Path(folder)), Path(folder) / f"{kind.name}.gguf", kind)
        with open_gguf(path) as file:
            tokenizer = tokenizer_from_gguf(file)
            sequences = [tokenizer.encode(text)[:LENGTH] for text in texts(count)]
        theirs = {name: llama_cpp(path, sequences, *way) for name, way in WAYS.items()}
        exact, mine = ours(path, sequences, "reference", "f32"), ours(path, sequences, "cpu", "f16")
    our_divergences, their_divergences = divergences(exact, mine), divergences(exact, theirs["default"])
    noise = 1e-7  # below this the difference is float32 rounding, in the reference too
    ratios = np.log((our_divergences + noise) / (their_divergences + noise))
    variety = list(theirs.values())
    return Result(
        model, kind.name, len(sequences) * LENGTH,
        float(our_divergences.mean()), float(their_divergences.mean()),
        float(ratios.mean()), float(ratios.std(ddof=1) / len(ratios) ** 0.5),
        to_llama_cpp=min(distance(mine, other) for other in variety),
        llama_cpp_to_itself=max(distance(first, second) for first in variety for second in variety),
    )  # fmt: skip


def source(model: str, folder: Path) -> Path:
    """Return the file in float types."""
    if model == "demo":
        return demo_path()
    config = TinyLlama(hidden=256, feed_forward=512, layers=3, heads=8, kv_heads=2, scale=0.5)
    return tiny_llama_gguf(folder / "random.gguf", config)


def requantised(source: Path, target: Path, kind: GGMLType) -> Path:
    """Return the model with all matrices quantised to `kind` whose rows allow it."""
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


def trained_like(name: str, values: np.ndarray) -> np.ndarray:
    """Return norm weights as after training: of different sizes, with a few outlier channels."""
    if not name.endswith("norm.weight"):
        return values
    dice = np.random.default_rng(len(name) + len(values))
    spread = np.exp(0.4 * dice.standard_normal(len(values)))
    spread[dice.integers(0, len(values), 3)] *= 8
    return (values * spread / np.sqrt((spread**2).mean())).astype(np.float32)


@cache
def texts(count: int) -> list[str]:
    """Return stories, chats and other texts like those the demo model was trained on, strung together."""
    dice, found = random.Random(3), []
    for _ in range(count):
        text = ""
        while len(text) < 8 * LENGTH:
            document = draw(dice.choice(["plain", "story", "facts", "sums", "talk"]), dice)
            text += document.get("text") or " ".join(turn["content"] for turn in document["messages"])
        found.append(text)
    return found


def llama_cpp(path: Path, sequences: list[list[int]], setting: Setting, at_once: int) -> list[np.ndarray]:
    """Return llama.cpp's log-probabilities [tokens, vocab] of each sequence."""
    peer = LlamaCpp(path, context=256, threads=1, setting=setting)
    found = [log_softmax(peer.logits(tokens, at_once=at_once)) for tokens in sequences]
    peer.close()
    return found


def ours(path: Path, sequences: list[list[int]], implementation: str, types: str) -> list[np.ndarray]:
    """Return Puna's log-probabilities [tokens, vocab] of each sequence."""
    found = []
    loaded = load_model(path, ops=backend_named(implementation))
    for tokens in sequences:
        cache = loaded.make_cache(sequences=1, context=LENGTH, types=KVTypes.parse(types))
        rows = list(range(len(tokens)))
        batch = Batch.of(tokens, rows, [0] * len(rows), rows)
        cache.start_forward(batch)
        found.append(log_softmax(logits_of(loaded.model, batch, cache).numpy()))
        cache.close()
    return found


def log_softmax(logits: np.ndarray) -> np.ndarray:
    return torch.log_softmax(torch.from_numpy(np.asarray(logits)).double(), dim=-1).numpy()


def divergences(exact: list[np.ndarray], other: list[np.ndarray]) -> np.ndarray:
    """Return the mean Kullback-Leibler divergence of `other` from `exact` over each sequence, in nats."""
    return np.array([(np.exp(e) * (e - o)).sum(axis=-1).mean() for e, o in zip(exact, other, strict=True)])


def distance(first: list[np.ndarray], second: list[np.ndarray]) -> float:
    """Return the mean difference of log-probabilities."""
    return float(np.mean([np.abs(f - s).mean() for f, s in zip(first, second, strict=True)]))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", default=MODELS, choices=MODELS)
    parser.add_argument("--output", type=Path, default=DOCS, help="folder for the results")
    chosen = parser.parse_args()
    results = []
    for model in chosen.models:
        for kind in KINDS:
            results.append(measure(model, kind))
            print(line(results[-1]), flush=True)
    REPORT.write(results, chosen.output)


if __name__ == "__main__":
    main()

"""Speed of whole models on a GPU, and how near their logits are to those of the reference.

    python bench/gpu.py [--check] [--streams 1,8,64] MODEL...

MODEL is a shape and a mix of `bench/models.py`, such as 8b/q4_k_m. With --check, logits of a prompt and of
some decoding steps are compared with those of the reference on the CPU first. Prints a line of JSON for each
figure.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from pathlib import Path

import numpy as np
from models import random_model

from puna.batch import Batch
from puna.engine.bench import run_bench
from puna.model.load import LoadedModel, load_model
from puna.ops import backend_named

#: Tokens of the compared prompt: more than a decoding batch, and of an odd number.
_PROMPT = 37
_STEPS = 4


def logits_of(loaded: LoadedModel, tokens: list[int]) -> np.ndarray:
    """Return the logits after the prompt and after each token decoded behind it: float32 [steps, vocab]."""
    cache = loaded.make_cache(sequences=1, context=len(tokens))
    found = []
    for begin, end in [(0, _PROMPT), *((i, i + 1) for i in range(_PROMPT, len(tokens)))]:
        batch = Batch.of(tokens[begin:end], list(range(begin, end)), [0] * (end - begin), [end - begin - 1])
        cache.start_forward(batch)
        rows = loaded.ops.numpy(loaded.model.forward(batch.on(loaded.ops), cache))
        found.append(rows[-1].copy())
    cache.close()
    return np.stack(found)


def check(name: str, path: Path) -> None:
    """Print the distance between the logits of both backends, relative to their deviation."""
    dice = np.random.default_rng(5)
    results = []
    tokens: list[int] = []
    for backend in ("gpu", "reference"):
        loaded = load_model(path, ops=backend_named(backend))
        tokens = tokens or dice.integers(0, 1000, _PROMPT + _STEPS).tolist()
        results.append(logits_of(loaded, tokens))
    found, expected = results
    error = np.abs(found - expected).max(1) / expected.std(1)
    agree = (found.argmax(1) == expected.argmax(1)).tolist()
    print(json.dumps({"model": name, "check": [round(float(e), 5) for e in error], "same_choice": agree}))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("models", nargs="+", metavar="MODEL")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--streams", default="1,8,64")
    parser.add_argument("--prompts", default="512,4096")
    parser.add_argument("--repetitions", type=int, default=3)
    args = parser.parse_args()
    os.environ.setdefault("PUNA_OPS", "gpu")
    streams = [int(part) for part in args.streams.split(",")]
    for name in args.models:
        shape, _, mix = name.partition("/")
        path = random_model(shape, mix or "q4_k_m")
        if args.check:
            check(name, path)
        for prompt in (int(part) for part in args.prompts.split(",")):
            began = time.perf_counter()
            first = prompt == int(args.prompts.split(",")[0])
            for result in run_bench(
                path, prompt=prompt, generate=64 if first else 0, parallel=streams if first else [1],
                repetitions=args.repetitions,
            ):  # fmt: skip
                rates = result.pop("tokens_per_second")
                middle = statistics.median(rates)  # type: ignore[arg-type]
                took = time.perf_counter() - began
                row = {"model": name, **result, "tokens/s": round(middle, 1), "after_s": round(took, 1)}
                print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()

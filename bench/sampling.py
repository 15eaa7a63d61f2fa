"""Measure the cost of sampling a token, option by option: `make bench-sampling`.

Samples from one row of 128,256 random logits, as of a Llama 3, beside llama.cpp's chain with the same
options, which like ours starts by filling its candidates from the logits.
"""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Callable
from typing import Any

import llama_cpp
import numpy as np

from puna.ops import default_backend
from puna.options import Options
from puna.sample import Sampler

_SIZE = 128_256
_ROUNDS = 31
#: Options, and the initialisers of the corresponding llama.cpp samplers with their arguments.
CHAINS: dict[str, tuple[dict[str, Any], list[tuple[Any, ...]]]] = {
    "top-k 40, top-p, min-p": (
        {"top_p": 0.9, "min_p": 0.05},
        [("top_k", 40), ("top_p", 0.9, 1), ("min_p", 0.05, 1), ("temp", 0.8)],
    ),
    "top-p alone": ({"top_k": 0, "top_p": 0.9}, [("top_p", 0.9, 1), ("temp", 0.8)]),
    "top-n-sigma": ({"top_k": 0, "top_p": 1.0, "top_n_sigma": 1.0}, [("top_n_sigma", 1.0), ("temp", 0.8)]),
    "top-k 40, XTC": (
        {"top_p": 1.0, "xtc_probability": 0.5},
        [("top_k", 40), ("xtc", 0.5, 0.1, 1, 1), ("temp", 0.8)],
    ),
    "top-k 40, dynamic temperature": (
        {"top_p": 1.0, "dynatemp_range": 0.5},
        [("top_k", 40), ("temp_ext", 0.8, 0.5, 1.0)],
    ),
    "mirostat": ({"mirostat": 1}, [("temp", 0.8), ("mirostat", _SIZE, 1, 5.0, 0.1, 100)]),
    "mirostat 2": ({"mirostat": 2}, [("temp", 0.8), ("mirostat_v2", 1, 5.0, 0.1)]),
    "typical-p alone": (
        {"top_k": 0, "top_p": 1.0, "typical_p": 0.9},
        [("typical", 0.9, 1), ("temp", 0.8)],
    ),
}


def theirs(logits: np.ndarray, samplers: list[tuple[Any, ...]]) -> Callable[[], None]:
    """Sample a token with llama.cpp."""
    chain = llama_cpp.llama_sampler_chain_init(llama_cpp.llama_sampler_chain_default_params())
    for name, *arguments in samplers:
        made = getattr(llama_cpp, f"llama_sampler_init_{name}")(*arguments)
        llama_cpp.llama_sampler_chain_add(chain, made)
    if not samplers[-1][0].startswith("mirostat"):
        llama_cpp.llama_sampler_chain_add(chain, llama_cpp.llama_sampler_init_dist(1))
    candidates = (llama_cpp.llama_token_data * _SIZE)()
    table = np.frombuffer(candidates, np.dtype([("id", "<i4"), ("logit", "<f4"), ("p", "<f4")]))
    ids = np.arange(_SIZE, dtype=np.int32)

    def draw() -> None:
        table["id"], table["logit"], table["p"] = ids, logits, 0
        array = llama_cpp.llama_token_data_array(candidates, _SIZE, -1, False)
        llama_cpp.llama_sampler_apply(chain, ctypes.byref(array))

    return draw


def microseconds(draw: Callable[[], object]) -> float:
    times = []
    for _ in range(_ROUNDS):
        began = time.perf_counter()
        draw()
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1e6


def main() -> None:
    logits = (np.random.default_rng(0).normal(size=_SIZE) * 3).astype(np.float32)
    print(f"{'us per token':32}{'puna':>10}{'llama.cpp':>12}")
    for name, (options, samplers) in CHAINS.items():
        sampler = Sampler(Options(seed=1, **options), _SIZE, default_backend())
        ours = microseconds(lambda sampler=sampler: sampler.sample(logits))
        print(f"{name:32}{ours:10.0f}{microseconds(theirs(logits, samplers)):12.0f}")


if __name__ == "__main__":
    main()

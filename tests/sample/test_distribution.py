"""Frequencies of draws against exact distributions, and C++ against numpy, draw for draw."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from puna.ops import Backend, backend_named, sampling
from puna.options import Options
from puna.sample import Sampler
from tests.processors import NOT_BUILT, levels

OFF = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "typical_p": 1.0}


def distribution(logits: np.ndarray, options: dict[str, Any]) -> np.ndarray:
    """Return the probability of every token by the definitions, in torch and float64."""
    order = sorted(range(logits.size), key=lambda i: (-logits[i], i))
    if options["top_k"] > 0:
        order = order[: options["top_k"]]
    if options["typical_p"] < 1:
        plain = torch.softmax(torch.tensor(logits[order], dtype=torch.float64), 0)
        entropy = -(plain * plain.log()).sum()
        nearest = (-plain.log() - entropy).abs().argsort(stable=True).tolist()
        kept, mass = set(), 0.0
        for place in nearest:
            if mass > options["typical_p"]:
                break
            kept.add(place)
            mass += plain[place].item()
        order = [token for place, token in enumerate(order) if place in kept]
    shares = torch.softmax(
        torch.tensor(logits[order], dtype=torch.float64) / options["temperature"], 0
    ).tolist()
    kept_shares, mass = [], 0.0
    for share in shares:
        if mass > options["top_p"] and options["top_p"] < 1:
            break
        mass += share
        if share >= options["min_p"] * shares[0]:
            kept_shares.append(share)
    result = np.zeros(logits.size)
    result[order[: len(kept_shares)]] = np.array(kept_shares) / sum(kept_shares)
    return result


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"temperature": 0.5},
        {"temperature": 2.0},
        {"top_k": 5},
        {"top_p": 0.8},
        {"min_p": 0.1},
        {"typical_p": 0.6},
        {"temperature": 0.7, "top_k": 12, "top_p": 0.9, "min_p": 0.02, "typical_p": 0.9},
    ],
    ids=str,
)
def test_frequencies_match_the_distribution(ops: Backend, changes: dict[str, Any]) -> None:
    """A chi-square test with a fixed seed always gives the same result; a wrong distribution fails by far."""
    options = OFF | changes
    logits = np.random.default_rng(3).normal(size=30).astype(np.float32) * 1.5
    expected = distribution(logits, options)
    draws = 8000
    sampler = Sampler(Options(seed=9, **options), 30, ops)
    counts = np.bincount([sampler.sample(logits) for _ in range(draws)], minlength=30)
    assert not counts[expected == 0].any(), "a token was drawn that the options rule out"
    possible = expected * draws >= 5
    deviation = (counts - expected * draws)[possible] ** 2 / (expected * draws)[possible]
    freedom = max(int(possible.sum()) - 1, 1)
    assert deviation.sum() < freedom + 4 * math.sqrt(2 * freedom) + 6


@pytest.mark.parametrize("level", levels("choose"))
def test_kernels_draw_the_same_tokens_as_numpy(level: str) -> None:
    native = pytest.importorskip("puna._native", reason=NOT_BUILT, exc_type=ImportError)
    before = native.cpu_level()
    native.set_cpu_level(level)
    random = np.random.default_rng(11)
    different, rows = 0, []
    try:
        for size in [1, 2, 7, 16, 17, 31, 100, 1500, 4097, 9001] * 30:
            logits = (random.normal(size=size) * random.choice([0.1, 1, 6])).astype(np.float32)
            logits[random.random(size) < 0.1] = -np.inf
            logits[random.integers(size)] = 1.5
            options = {
                "temperature": float(random.choice([0, 1e-8, 0.3, 1, 4])),
                "top_n_sigma": float(random.choice([0, 0, 1])),
                "top_k": int(random.choice([0, 1, 5, 40, 2000])),
                "typical_p": float(random.choice([1, 1, 0.5])),
                "top_p": float(random.choice([1, 0.9, 0.4, 0])),
                "min_p": float(random.choice([0, 0, 0.05, 1])),
                "uniform": float(random.choice([0, random.random(), 1 - 2**-24])),
            }
            allowed = random.integers(-(2**31), 2**31, (size + 31) // 32).astype(np.int32)
            rows.append(sampling.Draw(logits, allowed=allowed if random.random() < 0.3 else None, **options))
        expected = backend_named("reference").choose(rows)
        for row, got, wanted in zip(rows, backend_named("cpu").choose(rows), expected, strict=True):
            if got != wanted:
                # A sum that ends exactly at the limit may, very rarely, fall on either side.
                ranks = sampling.top_k(row.logits, 0).tolist()
                assert got is not None, row
                assert wanted is not None, row
                assert abs(ranks.index(got) - ranks.index(wanted)) == 1, row
                different += 1
    finally:
        native.set_cpu_level(before)
    assert different <= 2


@pytest.mark.parametrize("kind", ["peaked", "flat", "equal", "ascending"])
def test_kernels_draw_the_same_tokens_from_a_large_vocabulary(kind: str) -> None:
    pytest.importorskip("puna._native", reason=NOT_BUILT, exc_type=ImportError)
    size = 128256
    random = np.random.default_rng(5)
    logits = {
        "peaked": random.normal(size=size) * 2 + (random.random(size) < 4e-4) * 12,
        "flat": random.normal(size=size) * 0.01,
        "equal": np.zeros(size),
        "ascending": np.arange(size) * 1e-4,
    }[kind].astype(np.float32)
    ranks = np.argsort(sampling.top_k(logits, 0))
    for options in (
        {},
        {"top_p": 0.9},
        {"top_k": 40},
        {"min_p": 0.3},
        {"top_k": 5000},
        {"typical_p": 0.2},
        {"typical_p": 0.9, "temperature": 0.6, "top_p": 0.95, "min_p": 0.01},
        {"top_n_sigma": 1.0},
    ):
        rows = [sampling.Draw(logits, uniform, **options) for uniform in (0.0, 0.123, 0.5, 0.95)]
        expected = backend_named("reference").choose(rows)
        for row, got, wanted in zip(rows, backend_named("cpu").choose(rows), expected, strict=True):
            assert got is not None
            assert wanted is not None
            # Neighbours in rank weigh 1e-5 each; sums in single precision are accurate to about 1e-7.
            assert abs(int(ranks[got]) - int(ranks[wanted])) <= 1, (options, row.uniform)

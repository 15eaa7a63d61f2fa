"""The less common options, compared with their formulas in plain Python."""

from __future__ import annotations

import math
import random
import statistics
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from puna.errors import GenerationError, OptionError
from puna.ops import Backend, sampling
from puna.options import Options
from puna.sample import Sampler
from puna.sample.sampler import Dry, Mirostat

#: Everything off except the draw.
PLAIN = {"temperature": 1.0, "top_k": 0, "top_p": 1.0}
SIZE = 60


def values(seed: int, size: int = SIZE) -> np.ndarray:
    return (np.random.default_rng(seed).normal(size=size) * 3).astype(np.float32)


def softmax(logits: list[float]) -> list[float]:
    weights = [math.exp(logit - max(logits)) for logit in logits]
    return [weight / sum(weights) for weight in weights]


def distribution(ops: Backend, logits: np.ndarray, **options: Any) -> dict[int, float]:
    sampler = Sampler(Options(**PLAIN | {"seed": 1} | options), logits.size, ops, keeps_distribution=True)
    sampler.sample(logits)
    found = sampler.distribution
    shares = found.probabilities / found.probabilities.sum()
    return dict(zip(found.ids.tolist(), shares.tolist(), strict=True))


# --- one formula each ----------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("seed", range(4))
def test_top_n_sigma_keeps_logits_within_n_deviations_of_the_best(ops: Backend, n: float, seed: int) -> None:
    logits = values(seed)
    logits[:5] = -np.inf  # impossible tokens do not count
    possible = [float(logit) for logit in logits if logit > -math.inf]
    least = max(possible) - n * statistics.pstdev(possible)
    assert set(distribution(ops, logits, top_n_sigma=n)) == {
        i for i, logit in enumerate(logits) if logit >= least
    }


@pytest.mark.parametrize(("spread", "exponent"), [(0.5, 1.0), (2.0, 0.7), (0.2, 3.0)])
@pytest.mark.parametrize("seed", range(4))
def test_dynamic_temperature_follows_the_entropy(
    ops: Backend, spread: float, exponent: float, seed: int
) -> None:
    logits = values(seed)
    best = sorted(logits.tolist(), reverse=True)[:20]
    entropy = -sum(p * math.log(p) for p in softmax(best))
    low, high = max(0.0, 0.9 - spread), 0.9 + spread
    temperature = low + (high - low) * (entropy / math.log(20)) ** exponent
    expected = softmax([logit / temperature for logit in best])
    found = distribution(
        ops, logits, temperature=0.9, top_k=20, dynatemp_range=spread, dynatemp_exponent=exponent
    )
    assert list(found.values()) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("threshold", [0.05, 0.1, 0.3, 0.6])
@pytest.mark.parametrize("seed", range(6))
def test_xtc_keeps_only_the_least_likely_top_choice(ops: Backend, threshold: float, seed: int) -> None:
    logits = values(seed)
    order = sorted(range(SIZE), key=lambda i: -logits[i])
    shares = softmax([float(logits[i]) for i in order])
    top = [i for i, share in zip(order, shares, strict=True) if share >= threshold]
    found = distribution(ops, logits, xtc_probability=1.0, xtc_threshold=threshold)
    assert set(found) == set(order) - set(top[:-1])


def test_xtc_applies_with_the_given_probability(ops: Backend) -> None:
    logits = np.array([2, 2, 0], np.float32)
    sampler = Sampler(Options(**PLAIN, seed=5, xtc_probability=0.3), 3, ops, keeps_distribution=True)
    hits = 0
    for _ in range(2000):
        sampler.sample(logits)
        hits += sampler.distribution.ids.size < 3
    assert 540 < hits < 660


def mirostat_1(logits: np.ndarray, mu: float, n_vocab: int) -> int:
    """Return how many candidates version 1 in llama.cpp keeps."""
    p = softmax(sorted(logits.tolist(), reverse=True))
    upper = lower = 0.0
    for i in range(min(99, len(p) - 1)):
        t, b = math.log((i + 2) / (i + 1)), math.log(p[i] / p[i + 1])
        upper += t * b
        lower += t * t
    s = upper / lower
    epsilon = s - 1
    k = ((epsilon * 2**mu) / (1 - n_vocab**-epsilon)) ** (1 / s)
    return min(max(int(k), 1), len(p))


def mirostat_2(logits: np.ndarray, mu: float, n_vocab: int) -> int:
    p = softmax(sorted(logits.tolist(), reverse=True))
    return max(next((i for i, share in enumerate(p) if -math.log2(share) > mu), len(p)), 1)


@pytest.mark.parametrize(("version", "keep"), [(1, mirostat_1), (2, mirostat_2)])
@pytest.mark.parametrize("tau", [1.0, 3.0])
def test_mirostat_follows_its_formulas(ops: Backend, version: int, keep: Any, tau: float) -> None:
    options = {"mirostat": version, "mirostat_tau": tau, "mirostat_eta": 0.2, "seed": 3}
    sampler = Sampler(Options(**PLAIN | options), 500, ops, keeps_distribution=True)
    mu = 2 * tau
    for step in range(30):
        logits = values(step, 500)
        token = sampler.sample(logits)
        found = sampler.distribution
        assert found.ids.size == keep(logits, mu, 500)
        share = softmax(logits[found.ids].tolist())[found.ids.tolist().index(token)]
        mu -= 0.2 * (-math.log2(share) - tau)


def test_mirostat_comes_near_its_target(ops: Backend) -> None:
    options = {"mirostat": 2, "mirostat_tau": 2.0, "mirostat_eta": 0.1, "seed": 3}
    sampler = Sampler(Options(**PLAIN | options), 1000, ops, keeps_distribution=True)
    surprises = []
    for step in range(500):
        token = sampler.sample(values(step, 1000))
        surprises.append(-sampler.distribution.log_probabilities(token, 0)[0] / math.log(2))
    assert statistics.mean(surprises[100:]) == pytest.approx(2.0, abs=0.15)


@pytest.mark.parametrize("others", [0.0, -np.inf, -1e30])
def test_mirostat_stays_finite_at_extremes(ops: Backend, others: float) -> None:
    logits = np.array([0.0] + [others] * 99, np.float32)
    for version in (1, 2):
        for tau in (0.0, 50.0):
            found = Mirostat(version, tau, 0.1).candidates(logits, ops)
            assert found[0] == 0
            assert np.isfinite(logits[found]).all()


# --- DRY -----------------------------------------------------------------------------------------------


def spelling(token: int) -> bytes:
    return bytes([97 + token])


def by_hand(history: list[int], allowed: int, window: int, breakers: str) -> dict[int, float]:
    """Compute the penalties by comparing each place with the end, token by token."""
    history = history if window < 0 else history[max(len(history) - window, 0) :]
    text = "".join(chr(97 + token) for token in history)
    limit = min([len(history)] + [len(text) - 1 - text.rfind(b) for b in breakers if b in text])
    found: dict[int, int] = {}
    for place in range(len(history) - 1):
        length = 0
        while length <= place and length < limit and history[place - length] == history[-1 - length]:
            length += 1
        if length >= allowed:
            token = history[place + 1]
            found[token] = max(found.get(token, 0), length)
    return {token: 0.8 * 1.75 ** (length - allowed) for token, length in found.items()}


@pytest.mark.parametrize("seed", range(60))
def test_dry_matches_a_comparison_of_every_place(seed: int) -> None:
    dice = random.Random(seed)
    allowed, window = dice.randint(1, 3), dice.choice([-1, 8, 25])
    breakers = dice.choice(["", "c"])
    dry = Dry(
        spelling, multiplier=0.8, base=1.75, allowed_length=allowed, window=window, breakers=list(breakers)
    )
    history: list[int] = []
    for _ in range(40):
        history.append(dice.randrange(3))
        dry.accept(history[-1])
        found = dict(zip(*(each.tolist() for each in dry.lowered(5)), strict=True))
        expected = by_hand(history, allowed, window, breakers)
        assert found == pytest.approx(expected, rel=1e-5)


def test_breakers_may_span_several_tokens() -> None:
    dry = Dry(spelling, multiplier=1.0, base=2.0, allowed_length=1, window=-1, breakers=["cd"])
    for token in (0, 1, 2, 3, 0, 1):  # "abcdab": after the breaker only "ab" counts
        dry.accept(token)
    assert [each.tolist() for each in dry.lowered(5)] == [[2], [2.0]]


def test_endless_repetition_stays_finite() -> None:
    dry = Dry(spelling, multiplier=1.0, base=2.0, allowed_length=1, window=-1, breakers=[])
    for _ in range(3000):
        dry.accept(0)
    assert np.isfinite(dry.lowered(2)[1]).all()


def test_dry_can_be_switched_on_by_an_option(ops: Backend) -> None:
    tokenizer: Any = SimpleNamespace(piece=spelling, eos_ids=frozenset())
    sampler = Sampler(Options(temperature=0.0, dry_multiplier=5.0), 5, ops, tokenizer)
    for token in (0, 1, 2, 3, 0, 1):
        sampler.accept(token)
    assert sampler.sample(np.array([0, 0, 4, 3, 0], np.float32)) == 3


# --- bans and minimum lengths --------------------------------------------------------------------------


def test_banned_tokens_are_never_drawn(ops: Backend) -> None:
    logits = np.array([9, 8, 7, 6], np.float32)
    assert Sampler(Options(temperature=0.0, banned_tokens=(0, 2)), 4, ops).sample(logits) == 1
    assert set(distribution(ops, logits, banned_tokens=(0, 2), xtc_threshold=0.5)) >= {1, 3}
    with pytest.raises(GenerationError):
        Sampler(Options(seed=1, banned_tokens=(0, 1, 2, 3)), 4, ops).sample(logits)
    with pytest.raises(OptionError, match='"banned_tokens" must have ids below 4'):
        Sampler(Options(banned_tokens=(4,)), 4, ops)


def test_the_end_waits_for_min_tokens(ops: Backend) -> None:
    tokenizer: Any = SimpleNamespace(piece=spelling, eos_ids=frozenset((0,)))
    sampler = Sampler(Options(temperature=0.0, min_tokens=2), 3, ops, tokenizer)
    drawn = []
    for _ in range(4):
        sampler.accept(1)  # a prompt token does not count
        drawn.append(sampler.sample(np.array([9, 5, 1], np.float32)))
        sampler.accept(drawn[-1], generated=True)
    assert drawn == [1, 1, 0, 0]


# --- the distribution drawn from -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"top_k": 7, "top_p": 0.9, "min_p": 0.05, "typical_p": 0.9, "temperature": 0.7},
        {"temperature": 0.0},
    ],
)
def test_the_kept_distribution_is_the_one_used_for_drawing(ops: Backend, options: dict[str, Any]) -> None:
    logits = values(1, 12)
    chosen = Options(**PLAIN | options | {"seed": 4})
    sampler = Sampler(chosen, 12, ops, keeps_distribution=True)
    plain = Sampler(chosen, 12, ops)
    drawn = [sampler.sample(logits) for _ in range(1000)]
    assert drawn == [plain.sample(logits) for _ in range(1000)]  # keeping it changes nothing
    found = sampler.distribution
    shares = found.probabilities / found.probabilities.sum()
    counts = np.bincount(drawn, minlength=12)
    for token, share in zip(found.ids.tolist(), shares.tolist(), strict=True):
        assert counts[token] / 1000 == pytest.approx(share, abs=0.06)
        assert found.log_probabilities(token, 0)[0] == pytest.approx(math.log(share))
    assert counts.sum() == counts[found.ids].sum()


def test_single_steps_draw_the_same_as_the_fused_call(ops: Backend) -> None:
    """An option without effect here forces the single steps; the draws equal those of the fused call."""
    for seed in range(30):
        logits = values(seed, 300)
        common = PLAIN | {"seed": seed, "top_k": 40, "top_p": 0.9, "min_p": 0.01, "typical_p": 0.95}
        whole = Sampler(Options(**common), 300, ops)
        steps = Sampler(Options(**common, dynatemp_range=1e-9), 300, ops)
        assert [whole.sample(logits) for _ in range(5)] == [steps.sample(logits) for _ in range(5)]


@pytest.mark.parametrize(
    "options",
    [
        {"top_k": 20, "dynatemp_range": 0.7, "dynatemp_exponent": 1.4},
        {"dynatemp_range": 2.0, "top_p": 0.9},
        {"xtc_probability": 0.6, "xtc_threshold": 0.05, "min_p": 0.01},
        {"top_n_sigma": 1.0, "top_k": 20, "xtc_probability": 1.0, "xtc_threshold": 0.1, "typical_p": 0.9},
    ],
)
def test_a_known_distribution_changes_no_draw(ops: Backend, options: dict[str, float]) -> None:
    for seed in range(20):
        logits = values(seed, 300)
        first, second = (
            Sampler(Options(**PLAIN | {"seed": seed} | options), 300, ops, keeps_distribution=known)
            for known in (False, True)
        )
        assert [first.sample(logits) for _ in range(5)] == [second.sample(logits) for _ in range(5)]


@pytest.mark.parametrize("p", [0.0, 0.05, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("spread", [0.01, 1.0, 8.0])
def test_typical_tokens_are_found_without_sorting_all(p: float, spread: float) -> None:
    """The definition, which sorts, gives the same tokens."""
    for seed in range(10):
        logits = values(seed, 400) * np.float32(spread)
        logits[:3] = -np.inf
        order = sampling.top_k(logits, 397)
        expected = order[sampling.typical_p(sampling.softmax(logits[order]), p)]
        assert sampling.typical_tokens(logits, p).tolist() == expected.tolist()


def test_one_of_equally_likely_top_choices_is_kept() -> None:
    assert sampling.exclude_top_choices(np.array([0.5, 0.5]), 0.5) == 1
    assert sampling.exclude_top_choices(np.array([0.4, 0.4, 0.2]), 0.5) == 0

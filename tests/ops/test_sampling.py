"""Each step of sampling on its own."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from puna.ops import sampling

#: Probabilities 0.6439, 0.2369, 0.0871, 0.0321.
FOUR = sampling.softmax(np.array([2, 1, 0, -1], np.float32))

logits_of_any_size = arrays.arrays(
    np.float32,
    st.integers(1, 60),
    elements=st.floats(-30, 30, width=32) | st.sampled_from([0.0, 1.0, -5.0]),
)


@pytest.mark.parametrize(
    ("temperature", "expected"),
    [(0.5, [2, 8, -4, 0]), (1, [1, 4, -2, 0]), (0, [1e7, 4e7, -2e7, 0])],
)
def test_temperature_divides_logits(temperature: float, expected: list[float]) -> None:
    tempered = sampling.temper(np.array([1, 4, -2, 0], np.float32), temperature)
    np.testing.assert_allclose(tempered, expected, rtol=1e-6)


def test_softmax_gives_published_probabilities() -> None:
    probabilities = sampling.softmax(np.array([1, -2, 3, 0], np.float32))
    np.testing.assert_allclose(probabilities, [0.113550, 0.005653, 0.839024, 0.041773], atol=1e-6)


@pytest.mark.parametrize("logits", [[1000, 2000, 3000], [7], [0.25] * 9])
def test_softmax_sums_to_one(logits: list[float]) -> None:
    assert sampling.softmax(np.array(logits, np.float32)).sum() == pytest.approx(1, abs=1e-6)


TWELVE = np.array(
    [0.03, 0.04, 0.02, 0.27755, 0.005, 0.08582, 0.20410, 0.004, 0.15721, 0.04505, 0.003, 0.017], np.float32
)


def test_top_k_returns_the_largest_in_descending_order() -> None:
    kept = TWELVE[sampling.top_k(TWELVE, 5)]
    np.testing.assert_allclose(kept, [0.27755, 0.20410, 0.15721, 0.08582, 0.04505], atol=5e-6)


@pytest.mark.parametrize("k", [20, 12, -1, 0])
def test_top_k_of_all_sorts(k: int) -> None:
    ids = sampling.top_k(TWELVE, k)
    assert sorted(ids) == list(range(12))
    assert (np.diff(TWELVE[ids]) <= 0).all()


@pytest.mark.parametrize(("p", "kept"), [(0, 1), (0.64, 1), (0.65, 2), (0.88, 2), (0.95, 3), (1, 4)])
def test_top_p_keeps_the_fewest_tokens_that_reach_p(p: float, kept: int) -> None:
    np.testing.assert_allclose(FOUR, [0.6439, 0.2369, 0.0871, 0.0321], atol=5e-5)
    assert sampling.top_p(FOUR, p) == kept


@pytest.mark.parametrize(
    ("p", "kept"), [(0, 4), (0.04, 4), (0.05, 3), (0.1, 3), (0.14, 2), (0.37, 1), (1, 1)]
)
def test_min_p_keeps_tokens_relative_to_the_likeliest(p: float, kept: int) -> None:
    assert sampling.min_p(FOUR, p) == kept


def test_min_p_keeps_every_token_as_likely_as_the_likeliest() -> None:
    assert sampling.min_p(np.full(3, 1 / 3), 1.0) == 3


def test_typical_p_prefers_tokens_of_expected_surprise() -> None:
    spiked = np.array([0.6, 0.1, 0.1, 0.1, 0.1])  # entropy 1.2275: ln 10 is 1.0751 off, -ln 0.6 is 0.7167 off
    assert sampling.typical_p(spiked, 0.5).tolist() == [True, False, False, False, False]
    assert sampling.typical_p(spiked, 0.65).tolist() == [True, True, False, False, False]
    flat = np.array(
        [0.3, 0.14, 0.14, 0.14, 0.14, 0.14]
    )  # entropy 1.7375: -ln 0.14 is 0.2286 off, -ln 0.3 0.5336
    assert sampling.typical_p(flat, 0.5).tolist() == [False, True, True, True, True, False]
    assert sampling.typical_p(flat, 0.0).tolist() == [False, True, False, False, False, False]
    assert sampling.typical_p(flat, 1.0).all()


@given(logits_of_any_size, st.integers(-1, 70))
def test_top_k_is_the_start_of_all_sorted(logits: np.ndarray, k: int) -> None:
    by_hand = sorted(range(logits.size), key=lambda i: (-logits[i], i))
    assert sampling.top_k(logits, k).tolist() == (by_hand[:k] if k > 0 else by_hand)


@given(logits_of_any_size, st.floats(0, 1))
def test_top_p_keeps_the_shortest_prefix_beyond_p(logits: np.ndarray, p: float) -> None:
    probabilities = np.sort(sampling.softmax(logits))[::-1]
    kept = sampling.top_p(probabilities, p)
    assert 1 <= kept <= logits.size
    if p < 1:
        assert kept == 1 or probabilities[: kept - 1].sum() <= p + 1e-12
        assert kept == logits.size or probabilities[:kept].sum() > p - 1e-12


@given(logits_of_any_size, st.floats(0, 1))
def test_typical_p_keeps_a_mass_beyond_p_and_no_more(logits: np.ndarray, p: float) -> None:
    probabilities = sampling.softmax(logits)
    kept = sampling.typical_p(probabilities, p)
    assert kept.any()
    if p < 1:
        mass = probabilities[kept].sum()
        assert mass > p - 1e-12 or kept.all()
        surprise = -np.log(probabilities)
        away = np.abs(surprise - probabilities @ surprise)
        assert kept.all() or away[kept].max() <= away[~kept].min()


@given(logits_of_any_size, st.floats(0, 1, exclude_max=True))
def test_draw_inverts_the_distribution(logits: np.ndarray, uniform: float) -> None:
    probabilities = sampling.softmax(logits)
    index = sampling.draw(probabilities, uniform)
    assert probabilities[: index + 1].sum() >= uniform - 1e-12
    assert probabilities[:index].sum() <= uniform + 1e-12


@given(
    logits_of_any_size,
    st.floats(0, 1, exclude_max=True),
    st.sampled_from([0.3, 1.0, 2.0]),
    st.sampled_from([1.0, 0.9, 0.5, 0.0]),
    st.sampled_from([0.0, 0.05, 0.5, 1.0]),
    st.integers(1, 60),
)
def test_a_draw_from_leading_tokens_is_the_draw_from_all(
    logits: np.ndarray, uniform: float, temperature: float, top_p: float, min_p: float, count: int
) -> None:
    assume(count < logits.size)
    row = sampling.Draw(logits, uniform, temperature, top_p=top_p, min_p=min_p)
    ids = np.sort(sampling.top_k(logits, count))
    weights = sampling.softmax(sampling.temper(logits, temperature))
    found = sampling.among(logits[ids], weights[ids].sum(), 1, row)
    if found is not None and (token := ids[sampling.choose(found)]) != sampling.choose(row):
        sums = np.cumsum(np.sort(weights)[::-1])  # which may be rounded differently
        assert np.abs(np.subtract.outer(sums, [top_p, *(uniform * sums)])).min() < 1e-12, token


def test_leading_tokens_are_not_enough_for_what_needs_others() -> None:
    def choose_among(uniform: float, leading: int = 2, **options: float) -> int | None:
        best = np.array([2, 1, 0, -1], np.float32)[:leading]  # of FOUR
        row = sampling.Draw(best, uniform, **options)
        draw = sampling.among(best, FOUR[:leading].sum(), 1, row)
        return None if draw is None else sampling.choose(draw)

    assert choose_among(0.5) == 0
    assert choose_among(0.7) == 1
    assert choose_among(0.9) is None
    assert choose_among(0.5, top_p=0.9) is None
    assert choose_among(0.99, top_p=0.8) == 1
    assert choose_among(0.99, top_p=0.5) == 0
    assert choose_among(0.99, 3, top_p=0.65) == 1
    assert choose_among(0.5, min_p=0.1) is None
    assert choose_among(0.99, min_p=0.5) == 0
    assert choose_among(0.99, top_p=0.9, min_p=0.5) == 0
    assert choose_among(0.99, 3, top_p=0.5, min_p=0.2) == 0
    assert choose_among(0.99, 3, top_p=0.99, min_p=0.2) == 1


def test_changes_are_applied_in_order() -> None:
    changes = sampling.Changes(
        np.array([0, 1, 3, 4], np.int32),
        *np.array([[1, -3, 0, 0], [2, 2, 1, 1], [0.5, 0, np.inf, 1]], np.float32),
    )
    given = np.array([3, 1, 7, np.nan, -np.inf], np.float32)
    found = sampling.changed(given, changes)
    assert found.tolist() == [1.5, -4, 7, -np.inf, -np.inf]
    assert given[0] == 3

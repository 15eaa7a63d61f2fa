"""The sampler from logits to tokens, with masks of allowed tokens as grammars give them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from puna.errors import GenerationError, OptionError
from puna.ops import Backend, sampling
from puna.options import Options
from puna.sample import Sampler

#: Everything off except the draw.
PLAIN = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "seed": 1}


def logits(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def sample(ops: Backend, values: np.ndarray, **options: Any) -> int:
    return Sampler(Options(**options), values.size, ops).sample(values)


@pytest.mark.parametrize(("values", "token"), [((-10, 3, -10, -10), 1), ((-100, -10, 0, 10), 3)])
def test_greedy_takes_the_largest(ops: Backend, values: tuple[float, ...], token: int) -> None:
    assert sample(ops, logits(*values), temperature=0.0) == token


def test_greedy_takes_the_lowest_id_among_equals(ops: Backend) -> None:
    assert sample(ops, logits(5, 5, 1), temperature=0.0) == 0
    many = np.zeros(1000, np.float32)
    many[[333, 400, 999]] = 2
    assert sample(ops, many, temperature=0.0) == 333


def test_a_tiny_top_p_takes_the_largest(ops: Backend) -> None:
    values = logits(1, 0.9999999999999999, 0.5, 0.1)
    assert sample(ops, values, temperature=1.0, top_p=1e-10, top_k=0, seed=1) == 0


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("top_k", [0, 2])
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([np.nan] * 4, "NaN for 4 of 4 logits, first for token 0"),
        ([], "no logits"),
        ([-np.inf] * 4, "all 4 logits are -infinity"),
        ([0.0, 1.0, 2.0, np.nan], "NaN for 1 of 4 logits, first for token 3"),
        ([np.nan, 1.0, 2.0, 0.0], "NaN"),
        ([0.0, np.inf, 0.0, 0.0], r"\+infinity for 1 of 4 logits, first for token 1"),
        ([*np.zeros(1000), np.nan], "first for token 1000"),
    ],
    ids=["210-nan", "211-empty", "212-impossible", "nan-last", "nan-first", "infinite", "nan-far"],
)
def test_non_finite_logits_are_errors(
    ops: Backend, values: list[float], message: str, top_k: int, temperature: float
) -> None:
    with pytest.raises(GenerationError, match=message):
        sample(ops, logits(*values), temperature=temperature, top_k=top_k, seed=1)


def test_logits_of_another_size_or_type_are_errors(ops: Backend) -> None:
    sampler = Sampler(Options(), 4, ops)
    for wrong in (np.zeros(5, np.float32), np.zeros(4), np.zeros((1, 4), np.float32)):
        with pytest.raises(GenerationError, match=r"expected float32 \[4\]"):
            sampler.sample(wrong)


@pytest.mark.parametrize(("seed", "tokens"), [(42, "0101000001"), (0, "0200100020"), (1, "2010000210")])
def test_a_seed_gives_the_expected_draws(ops: Backend, seed: int, tokens: str) -> None:
    sampler = Sampler(Options(**PLAIN | {"seed": seed}), 4, ops)
    assert "".join(str(sampler.sample(logits(2, 1, 0, -1))) for _ in range(10)) == tokens


def test_requests_with_the_same_seed_draw_the_same(ops: Backend) -> None:
    values = np.random.default_rng(0).normal(size=500).astype(np.float32) * 3
    one, other = (Sampler(Options(seed=77), 500, ops) for _ in range(2))
    drawn = [one.sample(values) for _ in range(40)]
    assert drawn == [other.sample(values) for _ in range(40)]
    assert len(set(drawn)) > 3


def test_each_token_costs_one_draw_and_leaves_logits_unchanged(ops: Backend) -> None:
    values = logits(2, 1, 0, -1)
    sampler = Sampler(Options(**PLAIN, repeat_penalty=1.5), 4, ops)
    before = values.copy()
    uniforms = [0.96187139, 0.10556865, 0.70104867]
    assert [sampler.sample(values) for _ in range(3)] == [
        sampling.draw(sampling.softmax(values), uniform) for uniform in uniforms
    ]
    assert np.array_equal(values, before)


def test_a_rejected_token_is_drawn_again_among_the_allowed(ops: Backend) -> None:
    """A grammar rejects the first draw: seed 1 draws 0.96 (token 2), then 0.11 among 0 and 3."""
    sampler = Sampler(Options(**PLAIN), 4, ops)
    assert sampler.sample(logits(2, 1, 0, -1)) == 2
    assert sampler.sample(logits(2, 1, 0, -1), allowed=np.array([True, False, False, True])) == 0
    assert sampler.sample(logits(2, 1, 0, -1)) == 1  # 0.70: the third number of the stream


def test_penalties_follow_their_formulas(ops: Backend) -> None:
    """Logit 5 seen three times, presence 1.5, frequency 0.5 gives 2; 4 and -4 with repeat 2 give 2 and -8."""
    sampler = Sampler(Options(temperature=0.0, presence_penalty=1.5, frequency_penalty=0.5), 3, ops)
    for _ in range(3):
        sampler.accept(0)
    assert sampler.sample(logits(5, 1.99, 0)) == 0
    assert sampler.sample(logits(5, 2.01, 0)) == 1
    sampler = Sampler(Options(temperature=0.0, repeat_penalty=2.0), 3, ops)
    sampler.accept(0)
    assert sampler.sample(logits(4, 1.99, 0)) == 0
    assert sampler.sample(logits(4, 2.01, 0)) == 1
    assert sampler.sample(logits(-4, -7.99, -9)) == 1
    assert sampler.sample(logits(-4, -8.01, -9)) == 0


@pytest.mark.parametrize(("window", "count"), [(64, 1), (70, 2), (69, 1), (-1, 2), (0, 0), (5000, 2)])
def test_penalties_count_only_the_last_tokens(ops: Backend, window: int, count: int) -> None:
    """Our token is the first and last of seventy; each occurrence in the window takes 1 off its 5."""
    sampler = Sampler(Options(temperature=0.0, frequency_penalty=1.0, repeat_last_n=window), 200, ops)
    for token in [7, *range(100, 168), 7]:
        sampler.accept(token)
    values = np.full(200, -100, np.float32)
    values[7] = 5
    values[3] = 5 - count + 0.5
    assert sampler.sample(values) == 3
    values[3] = 5 - count - 0.5
    assert sampler.sample(values) == 7


def test_penalties_apply_to_greedy_choices(ops: Backend) -> None:
    sampler = Sampler(Options(temperature=0.0, presence_penalty=6.0), 3, ops)
    sampler.accept(1)
    assert sampler.sample(logits(0, 5, 0)) != 1
    sampler = Sampler(Options(temperature=0.0, frequency_penalty=1.0), 3, ops)
    for _ in range(3):
        sampler.accept(1)
    assert sampler.sample(logits(0, 5, 4)) == 2


def test_penalties_come_before_top_k(ops: Backend) -> None:
    sampler = Sampler(Options(**PLAIN | {"top_k": 1, "presence_penalty": 6.0}), 3, ops)
    sampler.accept(1)
    assert {sampler.sample(logits(0, 5, 4)) for _ in range(20)} == {2}


def test_penalties_apply_to_allowed_tokens_too(ops: Backend) -> None:
    sampler = Sampler(Options(temperature=0.0, presence_penalty=6.0), 3, ops)
    sampler.accept(1)
    assert sampler.sample(logits(9, 5, 4), allowed=np.array([False, True, True])) == 2


def test_repeat_penalty_is_off_by_default(ops: Backend) -> None:
    sampler = Sampler(Options(temperature=0.0), 2, ops)
    for _ in range(100):
        sampler.accept(1)
    assert sampler.sample(logits(1, 1.001)) == 1


def test_tokens_outside_the_vocabulary_count_in_the_window(ops: Backend) -> None:
    sampler = Sampler(Options(temperature=0.0, presence_penalty=6.0, repeat_last_n=2), 3, ops)
    for token in (1, -1, 99):
        sampler.accept(token)
    assert sampler.sample(logits(0, 5, 4)) == 1


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.integers(1, 200),
    st.integers(0, 2**32 - 1),
    st.booleans(),
    st.sampled_from([0.0, 0.3, 1.0, 5.0]),
    st.sampled_from([0, 1, 3, 40]),
    st.sampled_from([0.0, 0.7, 1.0]),
    st.sampled_from([0.3, 1.0]),
    st.sampled_from([0.0, 0.1]),
)
def test_only_allowed_tokens_are_drawn(
    ops: Backend,
    size: int,
    seed: int,
    packed: bool,
    temperature: float,
    k: int,
    top_p: float,
    typical_p: float,
    min_p: float,
) -> None:
    random = np.random.default_rng(seed)
    allowed = random.random(size) < 0.2
    allowed[random.integers(size)] = True
    mask = allowed
    if packed:
        octets = np.packbits(allowed, bitorder="little")
        mask = np.zeros((size + 31) // 32 * 4, np.uint8)
        mask[: octets.size] = octets
        mask = mask.view(np.int32 if seed % 2 else np.uint32)
    options = Options(
        seed=seed, temperature=temperature, top_k=k, top_p=top_p, typical_p=typical_p, min_p=min_p
    )
    sampler = Sampler(options, size, ops)
    for _ in range(10):
        assert allowed[sampler.sample((random.normal(size=size) * 4).astype(np.float32), mask)]


def test_a_mask_of_impossible_tokens_only_is_an_error(ops: Backend) -> None:
    sampler = Sampler(Options(seed=1), 3, ops)
    with pytest.raises(GenerationError, match="grammar"):
        sampler.sample(logits(1, 2, 3), allowed=np.zeros(3, bool))
    with pytest.raises(GenerationError, match="grammar"):
        sampler.sample(logits(1, 2, -np.inf), allowed=np.array([False, False, True]))


@pytest.mark.parametrize("mask", [np.ones(4, bool), np.ones(3), np.zeros(0, np.int32)], ids=str)
def test_a_mask_of_another_size_is_refused(ops: Backend, mask: np.ndarray) -> None:
    with pytest.raises(ValueError, match="vocabulary of 3"):
        Sampler(Options(), 3, ops).sample(logits(1, 2, 3), allowed=mask)


def test_a_bias_is_added_to_the_logits_first(ops: Backend) -> None:
    values = logits(3, 2, 1, 0)
    assert sample(ops, values, temperature=0.0, logit_bias=((0, -100.0), (3, 1.5))) == 1
    assert sample(ops, values, temperature=0.0, logit_bias=((3, 3.5),)) == 3
    assert values.tolist() == [3, 2, 1, 0]
    drawn = {sample(ops, values, **PLAIN | {"seed": seed}, logit_bias=((2, 100.0),)) for seed in range(20)}
    assert drawn == {2}
    penalised = Sampler(Options(temperature=0.0, repeat_penalty=10.0, logit_bias=((3, 4.0),)), 4, ops)
    penalised.accept(3)
    assert penalised.sample(values) == 0  # 4 / 10, not 0 / 10 + 4


def test_a_bias_on_an_unknown_token_is_refused(ops: Backend) -> None:
    with pytest.raises(OptionError, match="must have ids below 4, the size of the vocabulary, not 4"):
        Sampler(Options(logit_bias=((4, 1.0),)), 4, ops)

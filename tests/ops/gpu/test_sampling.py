"""Tokens chosen from logits on a device against the definition, and kernels that find the largest logits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from puna.model.load import load_model
from puna.ops import backend_named, sampling
from puna.ops.gpu.sampling import Leading, Wanted, find_in_torch
from puna.ops.gpu.torch_backend import TorchBackend
from puna.ops.gpu.triton_backend import TritonBackend
from puna.ops.sampling import Changes, Draw
from tests.engine.runs import Run
from tests.tiny.llama import TinyLlama, tiny_llama_gguf

kernels = pytest.importorskip("puna.ops.gpu.kernels.sampling")
REFERENCE = backend_named("reference")

#: More than one chunk, and not a multiple of a group.
SIZE = 2 * 4096 + 77


class Counted(TritonBackend):
    """A backend that counts the logits it copies to the host, and copies no row because there are few."""

    copied = 0
    _few = 0

    def numpy(self, array: torch.Tensor) -> Any:
        self.copied += array.numel()
        return super().numpy(array)


@pytest.fixture(scope="module")
def triton(device: torch.device) -> Counted:
    return Counted(device)


@pytest.fixture(scope="module")
def plain(device: torch.device) -> TorchBackend:
    return TorchBackend(device)


def logits_of(dice: np.random.Generator, size: int, scale: float = 4) -> np.ndarray:
    return (dice.normal(size=size) * scale).astype(np.float32)


def changes_of(dice: np.random.Generator, size: int, count: int) -> Changes:
    edges = [token for token in (0, 4095, 4096, size - 1) if token < size]  # of chunks
    tokens = np.union1d(edges, dice.choice(size, min(count, size), replace=False)).astype(np.int32)
    count = tokens.size
    return Changes(
        tokens,
        dice.choice(np.array([0, 3, -2], np.float32), count),
        dice.choice(np.array([1, 1.1, 3], np.float32), count),
        dice.choice(np.array([0, 0.7, np.inf], np.float32), count),
    )


def mask_of(dice: np.random.Generator, size: int, share: float) -> np.ndarray:
    bits = np.zeros(-(-size // 32) * 32 + 64, bool)  # masks may be longer than the vocabulary
    bits[:size] = dice.random(size) < share
    words = np.packbits(bits, bitorder="little").view("<i4").astype(np.int32)
    words.flags.writeable = False  # like those of a format
    return words


def there(rows: Sequence[Draw], device: torch.device) -> list[Draw]:
    return [row._replace(logits=torch.from_numpy(row.logits).to(device)) for row in rows]  # type: ignore[arg-type]


def check(backend: TorchBackend, rows: Sequence[Draw]) -> None:
    assert backend.choose(there(rows, backend.place)) == REFERENCE.choose(rows)


SETTINGS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.8, "top_k": 40, "top_p": 0.9},
    {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05},
    {"temperature": 1.3, "top_k": 50, "typical_p": 0.6},
    {"temperature": 0.7, "top_k": 100},
    {"temperature": 0.6, "top_p": 0.9},
    {"temperature": 1.5, "min_p": 0.1},
    {"temperature": 0.5},
    {"temperature": 1e-7, "top_k": 3},
    {"top_k": 1},
    {"temperature": 0.8, "top_k": 40, "top_n_sigma": 0.7},
    {"temperature": 0.8, "top_n_sigma": 0.4},
    {"temperature": 0.8, "top_k": 40, "dynatemp_range": 0.5, "dynatemp_exponent": 1.3, "min_p": 0.01},
    {"temperature": 2.0, "top_k": 40, "xtc_threshold": 0.05},
    {"temperature": 2.0, "top_k": 40, "xtc_threshold": 0.05, "top_n_sigma": 0.7, "dynatemp_range": 0.5},
]


@pytest.mark.parametrize("adjusted", [False, True], ids=["plain", "changed and masked"])
def test_tokens_are_those_of_the_definition(triton: Counted, adjusted: bool) -> None:
    dice = np.random.default_rng(3 + adjusted)
    rows = [
        Draw(
            logits_of(dice, SIZE),
            float(dice.random()),
            **each,
            allowed=mask_of(dice, SIZE, 0.5) if adjusted else None,
            changes=changes_of(dice, SIZE, 60) if adjusted else None,
        )
        for each in SETTINGS
    ]
    triton.copied = 0
    check(triton, rows)
    assert triton.copied == 0


def test_rows_do_not_depend_on_others_and_may_have_other_sizes(triton: Counted) -> None:
    dice = np.random.default_rng(5)
    rows = [
        Draw(logits_of(dice, size), 0.7, 0.9, top_k=k, top_p=0.95, changes=changes_of(dice, size, 9))
        for size, k in ((SIZE, 40), (33, 5), (4096, 0), (1, 1), (2500, 200), (SIZE, 1000))
    ]
    check(triton, rows)
    for row in rows:
        check(triton, [row])


def leading(find: Callable[..., Any], row: Wanted) -> Leading:
    [found] = find([row])
    return found  # type: ignore[no-any-return]


@pytest.mark.parametrize("temperature", [1.0, 0.3])
@pytest.mark.parametrize("count", [1, 40, 150])
def test_kernels_find_the_leading_tokens_and_the_sum(
    device: torch.device, count: int, temperature: float
) -> None:
    dice = np.random.default_rng(count)
    logits = logits_of(dice, SIZE, 2)
    mask, changes = mask_of(dice, SIZE, 0.9), changes_of(dice, SIZE, 300)
    row = Wanted(torch.from_numpy(logits).to(device), count, temperature, 11, mask, changes)
    found, exact = leading(kernels.find, row), leading(find_in_torch, row)
    expected = sampling.adjusted(Draw(logits, allowed=mask, changes=changes))  # type: ignore[arg-type]
    assert (np.diff(found.ids) > 0).all()
    assert count <= found.ids.size <= 2 * count + 40
    assert not found.cut
    np.testing.assert_array_equal(found.logits, expected[found.ids])
    assert np.delete(expected, found.ids).max() < found.logits.min()
    best = sampling.top_k(expected, count)
    np.testing.assert_array_equal(exact.ids, np.sort(best))
    tempered = sampling.temper(expected, temperature)
    total = sampling.sum_of_exponentials(tempered, float(tempered.max()))
    assert found.total == pytest.approx(total, rel=1e-6)
    assert exact.total == pytest.approx(total, rel=1e-9)
    for one in (found, exact):
        listed = sampling.sum_of_exponentials(tempered[one.ids], float(tempered.max()))
        assert one.listed == pytest.approx(listed, rel=1e-6)
    assert found.logit == exact.logit == expected[11]


def test_all_possible_tokens_are_found_if_they_are_few(device: torch.device) -> None:
    logits = np.full(SIZE, -np.inf, np.float32)
    logits[[5, 4000, 4096, SIZE - 1]] = [1, -1e30, 0.0, -0.0]
    for find in (kernels.find, find_in_torch):
        found = leading(find, Wanted(torch.from_numpy(logits).to(device), 40))
        assert found.ids.tolist() == [5, 4000, 4096, SIZE - 1]
        assert found.whole
        nothing = leading(find, Wanted(torch.full((SIZE,), -torch.inf, device=device), 40))
        assert nothing.ids.size == 0
        assert nothing.whole


def test_equal_logits_are_taken_by_id(triton: Counted) -> None:
    zeros = np.zeros(SIZE, np.float32)
    zeros[:40] = -0.0
    few = zeros.copy()
    few[4000:] = -1
    settings = [{"temperature": 0.0}, {"top_k": 40}, {"top_p": 0.5}, {}]
    check(triton, [Draw(logits, 0.99, **each) for each in settings for logits in (zeros, few)])


@pytest.mark.parametrize("name", ["plain", "triton"])
def test_rows_without_a_choice_give_none(name: str, request: pytest.FixtureRequest) -> None:
    backend = request.getfixturevalue(name)
    dice = np.random.default_rng(1)
    rows = []
    for each in SETTINGS[:8:2]:
        for wrong in (np.nan, np.inf):
            logits = logits_of(dice, SIZE)
            logits[4100] = wrong
            rows.append(Draw(logits, 0.5, **each))
            mask = np.full(-(-SIZE // 32), -1, np.int32)
            mask[4100 // 32] = 0  # what is not allowed does not count
            rows.append(Draw(logits, 0.5, **each, allowed=mask))
            banned = Changes(np.array([4100], np.int32), *np.array([[0], [1], [np.inf]], np.float32))
            rows.append(Draw(logits, 0.5, **each, changes=banned))
        rows.append(Draw(np.full(SIZE, -np.inf, np.float32), 0.5, **each))
        rows.append(Draw(logits_of(dice, SIZE), 0.5, **each, allowed=np.zeros(-(-SIZE // 32), np.int32)))
        rows.append(Draw(np.empty(0, np.float32), 0.5, **each))
    check(backend, rows)
    assert backend.choose([]) == []


def test_what_needs_all_tokens_is_drawn_on_the_host(triton: Counted) -> None:
    dice = np.random.default_rng(2)
    flat = logits_of(dice, SIZE, 0.01)
    peaked = logits_of(dice, SIZE)
    rows = [
        Draw(peaked, 0.5, top_n_sigma=5.0),
        Draw(peaked, 0.5, dynatemp_range=0.5),
        Draw(peaked, 0.5, xtc_threshold=0.1),
        Draw(flat, 0.7, top_k=2000),
        Draw(peaked, 0.1, typical_p=0.2),
        Draw(flat, 0.7, top_p=0.9),
        Draw(flat, 0.7, min_p=0.5),
        Draw(flat, 0.7),
    ]
    triton.copied = 0
    check(triton, rows)
    assert triton.copied == len(rows) * SIZE


@pytest.mark.parametrize("name", ["plain", "triton"])
@settings(max_examples=20, deadline=None)
@given(st.data())
def test_any_settings_choose_what_the_definition_chooses(
    request: pytest.FixtureRequest, name: str, data: st.DataObject
) -> None:
    draw, rows = data.draw, []
    for _ in range(draw(st.integers(1, 4))):
        dice = np.random.default_rng(draw(st.integers(0, 2**32)))
        size = draw(st.integers(1, 200) | st.sampled_from([2500, 4096, 5000]))
        logits = logits_of(dice, size, draw(st.sampled_from([0.1, 2, 20])))
        if draw(st.booleans()):
            logits = logits.round()  # ties
        some = draw(st.sampled_from([None, -np.inf, np.nan, np.inf]))
        if some is not None:
            logits[dice.random(size) < draw(st.sampled_from([0.001, 0.5, 1.0]))] = some
        rows.append(
            Draw(
                logits,
                draw(st.integers(0, 2**24 - 1)) / 2**24,
                draw(st.sampled_from([0.0, 1e-3, 0.8, 1.0, 2.5])),
                draw(st.sampled_from([0.0, 0.0, 1.0])),
                draw(st.sampled_from([0, 1, 40, 1500])),
                draw(st.sampled_from([1.0, 1.0, 0.5])),
                draw(st.sampled_from([1.0, 0.9, 0.3, 0.0])),
                draw(st.sampled_from([0.0, 0.05, 1.0])),
                mask_of(dice, size, draw(st.sampled_from([0.0, 0.01, 0.9]))) if draw(st.booleans()) else None,
                changes_of(dice, size, draw(st.integers(1, 60))) if draw(st.booleans()) else None,
                dynatemp_range=draw(st.sampled_from([0.0, 0.0, 0.6])),
                xtc_threshold=draw(st.sampled_from([1.0, 1.0, 0.1])),
            )
        )
    backend: TorchBackend = request.getfixturevalue(name)
    found = backend.choose(there(rows, backend.place))
    for row, token, expected in zip(rows, found, REFERENCE.choose(rows), strict=True):
        if token != expected:  # rounding may move a limit beyond a token, and a draw to the next
            assert token is not None
            assert expected is not None
            assert abs(rank(row, token) - rank(row, expected)) <= 1


def rank(row: Draw, token: int) -> int:
    order = sampling.top_k(sampling.adjusted(row), 0)
    return int(np.flatnonzero(order == token)[0])


@pytest.mark.parametrize("name", ["plain", "triton"])
@pytest.mark.parametrize("count", [0, 5, 40, 1500])
def test_the_likeliest_tokens_are_those_of_the_definition(
    name: str, count: int, request: pytest.FixtureRequest
) -> None:
    backend: TorchBackend = request.getfixturevalue(name)
    dice = np.random.default_rng(count)
    rows = [logits_of(dice, SIZE), logits_of(dice, 30), np.full(SIZE, -np.inf, np.float32)]
    rows[2][[7, 4099]] = 1, 2
    given = [(torch.from_numpy(row).to(backend.place), 7) for row in rows]
    found = backend.likeliest(given, count)
    for one, exact in zip(found, REFERENCE.likeliest([(row, 7) for row in rows], count), strict=True):
        assert (one.largest, one.logit) == (exact.largest, exact.logit)
        assert one.total == pytest.approx(exact.total, rel=1e-6)
        np.testing.assert_array_equal(one.ids, exact.ids)
        np.testing.assert_array_equal(one.logits, exact.logits)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_the_likeliest_of_wrong_logits_have_no_finite_maximum(triton: Counted, wrong: float) -> None:
    logits = torch.full((SIZE,), -torch.inf)
    logits[[3, 5000]] = torch.tensor([wrong, wrong])
    [found] = triton.likeliest([(logits.to(triton.place), 0)], 4)
    assert not np.isfinite(found.largest)


@pytest.mark.parametrize("name", ["plain", "triton"])
def test_short_masks_and_changes_of_other_tokens_are_errors(
    name: str, device: torch.device, request: pytest.FixtureRequest
) -> None:
    backend: TorchBackend = request.getfixturevalue(name)
    row = Draw(torch.zeros(100, device=device))
    with pytest.raises(ValueError, match="fewer bits"):
        backend.choose([row._replace(allowed=np.zeros(3, np.int32))] * 3)
    for token in (-1, 100):
        changes = Changes(np.array([token], np.int32), *np.ones((3, 1), np.float32))
        with pytest.raises(IndexError, match="100 logits"):
            backend.choose([row._replace(changes=changes)] * 3)


def test_few_rows_are_drawn_on_the_host(device: torch.device) -> None:
    backend, dice = TritonBackend(device), np.random.default_rng(9)
    if backend.host.name == "reference":
        pytest.skip("the C++ kernels are not built")
    backend._find = None  # type: ignore[assignment, method-assign]
    rows = [Draw(logits_of(dice, SIZE), 0.5, changes=changes_of(dice, SIZE, 9)) for _ in range(2)]
    check(backend, rows)
    [found] = backend.likeliest([(torch.from_numpy(rows[0].logits).to(device), 7)], 3)
    assert found.ids.tolist() == sampling.top_k(rows[0].logits, 3).tolist()


class CountedTorch(TorchBackend):
    """Plain torch that counts the arrays it copies to the host."""

    copied = 0

    def numpy(self, array: torch.Tensor) -> Any:
        self.copied += 1
        return super().numpy(array)


def test_an_engine_copies_logits_only_for_options_that_need_all(device: torch.device, tmp_path: Path) -> None:
    backend = CountedTorch(device)
    path = tiny_llama_gguf(tmp_path / "tiny.gguf", TinyLlama(context=128))
    run = Run(load_model(path, ops=backend), speculate="prompt")
    backend.copied = 0
    plain: dict[str, Any] = {"num_predict": 4, "seed": 1}
    options: list[dict[str, Any]] = [
        {"temperature": 0},
        {"temperature": 1.2, "top_k": 40, "top_p": 0.9, "repeat_penalty": 1.2, "logit_bias": {"3": 2.0}},
        {"temperature": 0.8, "top_k": 0, "min_p": 0.1, "logprobs": True, "top_logprobs": 3},
        {"temperature": 0, "prompt_logprobs": True},
    ]
    for number, each in enumerate(options):
        run.submit(number, "hello hello hello", **plain, **each)
    run.finish()
    assert backend.copied == 0
    run.submit(9, "hello", **plain, temperature=1.0, mirostat=2)
    run.finish()
    assert backend.copied == len(run.tokens(9))

"""Sizes of caches that are not specified, or for which memory is short."""

from __future__ import annotations

from dataclasses import replace

import pytest

from puna import machine
from puna.engine import room
from puna.engine.room import EngineSizes, build_cache, choose_sizes
from puna.errors import InsufficientMemoryError, RequestError
from puna.kvcache.cells import CELL_BYTES, table_bytes
from puna.kvcache.recurrent import RecurrentCache
from puna.kvcache.types import F16_TYPES
from puna.model.load import LoadedModel
from tests.engine.runs import Run
from tests.kvcache.probe import OPS

#: Two layers, two heads of 16 for keys and for values, two bytes each.
KEY_AND_VALUE_BYTES = 2 * 2 * 16 * 2 * 2


def sizes(tiny: LoadedModel, monkeypatch: pytest.MonkeyPatch, cells: int, **asked) -> tuple[int, int]:
    """Choose sizes for four sequences with memory for `cells` cells and their bookkeeping."""
    longest = min(tiny.trained_context, cells)
    needed = cells * (KEY_AND_VALUE_BYTES + CELL_BYTES) + table_bytes(4, longest)
    monkeypatch.setattr(machine, "available_memory", lambda: (needed + 10) / 0.6)
    chosen = choose_sizes(tiny, EngineSizes(parallel=4, batch_size=64, **asked))
    return chosen.context, chosen.capacity


def test_the_default_context_is_the_trained_one(tiny: LoadedModel, monkeypatch) -> None:
    assert sizes(tiny, monkeypatch, 100_000) == (128, 4 * 128)
    unstated = replace(tiny, trained_context=0)
    assert sizes(unstated, monkeypatch, 100_000) == (4096, 4 * 4096)


def test_the_default_capacity_fits_memory(tiny: LoadedModel, monkeypatch) -> None:
    longer = replace(tiny, trained_context=100_000)
    assert sizes(longer, monkeypatch, 150_000) == (100_000, 150_000)
    assert sizes(longer, monkeypatch, 70_000) == (70_000, 70_000)
    with pytest.raises(InsufficientMemoryError, match="memory for 200 tokens"):
        sizes(longer, monkeypatch, 200)


def test_given_sizes_are_used(tiny: LoadedModel, monkeypatch) -> None:
    assert sizes(tiny, monkeypatch, 0, context=64) == (64, 256)
    assert sizes(tiny, monkeypatch, 0, context=64, capacity=100) == (64, 100)
    assert sizes(tiny, monkeypatch, 0, context=64, capacity=10) == (64, 64)
    assert sizes(tiny, monkeypatch, 0, context=1000) == (128, 512)
    assert sizes(tiny, monkeypatch, 0, capacity=200) == (128, 200)


def test_batches_and_contexts_that_are_too_large_are_cut(
    tiny: LoadedModel, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run(tiny, context=100_000, batch_size=512)
    assert "num_ctx 100000 is more than the model's 128" in caplog.text
    assert run.engine.context == 128
    assert len(run.one(list(range(100)), num_predict=5)[0]) == 5


def test_a_long_prompt_needs_no_explicit_context(tiny: LoadedModel) -> None:
    run = Run(tiny, context=0)
    tokens, done = run.one(list(range(120)), num_predict=5)
    assert (len(tokens), done.truncated, done.shifted) == (5, 0, 0)


@pytest.mark.parametrize(("memory", "rows"), [(1000, 4 + 64), (0.5, 4 + 32), (0.25, 4 + 16), (0, 4)])
def test_fewer_sequences_are_remembered_if_each_takes_memory(
    tiny: LoadedModel, monkeypatch: pytest.MonkeyPatch, memory: float, rows: int
) -> None:
    def make(*, sequences: int, **_) -> RecurrentCache:
        return RecurrentCache(OPS, {0: {"state": (1024,)}}, sequences=sequences)

    each = make(sequences=2).allocated_bytes - make(sequences=1).allocated_bytes
    monkeypatch.setattr(tiny.model, "make_cache", make)
    monkeypatch.setattr(
        machine,
        "available_memory",
        lambda: (make(sequences=4).allocated_bytes + memory * 64 * each + 1) / 0.6,
    )
    cache, found = build_cache(tiny, EngineSizes(parallel=4, context=64, capacity=256, batch_size=64))
    assert found == rows
    assert cache.allocated_bytes == make(sequences=rows).allocated_bytes


def test_the_number_of_sequences_does_not_depend_on_memory_for_cells(tiny: LoadedModel, monkeypatch) -> None:
    monkeypatch.setattr(machine, "available_memory", lambda: 0)
    assert build_cache(tiny, EngineSizes(parallel=4, context=64, capacity=256, batch_size=64))[1] == 68


def test_a_cache_has_no_more_cells_than_can_be_counted(tiny: LoadedModel, monkeypatch) -> None:
    """Indices are 32 bits wide, and a model of windows alone may have memory for more."""
    small = tiny.model.sample_cache(F16_TYPES)
    monkeypatch.setattr(machine, "available_memory", lambda: 1 << 60)
    monkeypatch.setattr(room, "available_address_space", lambda: 1 << 60)
    endless = replace(tiny, trained_context=2**31 - 1)
    wanted = EngineSizes(parallel=4, batch_size=64, remembered=0)
    chosen = choose_sizes(endless, wanted)
    context, capacity = chosen.context, chosen.capacity
    assert (context, capacity) == (2**29 - 512, 2**29 - 512)
    assert small.is_countable(sequences=4, longest=context, capacity=capacity)
    assert not small.is_countable(sequences=4, longest=context + 512, capacity=capacity)
    with pytest.raises(
        RequestError, match="4 x 2147483647 tokens of context are more than the 2147483647 that"
    ):
        build_cache(endless, replace(wanted, context=2**31 - 1, capacity=2**31 - 1))


def test_fewer_sequences_are_remembered_if_their_lists_are_long(tiny: LoadedModel, monkeypatch) -> None:
    longest = 1 << 20
    books = table_bytes(1, longest)
    monkeypatch.setattr(
        machine, "available_memory", lambda: (20 * books + longest * CELL_BYTES) / room._SHARE_OF_BOOKKEEPING
    )
    sizes = EngineSizes(parallel=4, context=longest, capacity=longest, batch_size=64)
    cache, rows = build_cache(tiny, sizes)
    assert rows == 20
    assert cache.provided_bytes == 0


def test_a_cache_that_cannot_be_mapped_is_refused(tiny: LoadedModel, monkeypatch) -> None:
    monkeypatch.setattr(room, "available_address_space", lambda: 100 << 20)
    with pytest.raises(
        InsufficientMemoryError, match=r"100000 tokens .* 80\.0 MiB can be used; .*\(ulimit -v\)"
    ):
        build_cache(
            tiny, EngineSizes(parallel=4, remembered=0, context=100_000, capacity=400_000, batch_size=64)
        )

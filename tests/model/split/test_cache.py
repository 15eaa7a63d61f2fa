"""Books of a split model's caches: alike in all stages, whatever happens to them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from puna.batch import Batch
from puna.errors import CacheFullError, NotSupportedError
from puna.kvcache.cache import Cache, Compacting, Saving
from puna.kvcache.causal import KVShape
from puna.kvcache.types import F16_TYPES
from puna.model.layer_cache import CacheSizes, ChunkedKeys, Everything, State, Window, build_cache
from puna.model.split import cache as split_cache
from puna.model.split.cache import SplitCache, cut
from puna.model.split.wire import (
    Compact,
    CopyPrefix,
    LimitCells,
    Remove,
    StageMessage,
    Undo,
    packed,
    unpacked,
)
from puna.ops import default_backend

OPS = default_backend()
SEQUENCES, CONTEXT, CAPACITY = 3, 40, 60
KINDS = (Everything(), Window(4), ChunkedKeys(5), State((("memory", (1, 2)),)))


def books(held: int) -> Cache:
    """Make a cache for four layers of different kinds, of which one has storage."""
    sizes = CacheSizes(SEQUENCES, CONTEXT, CAPACITY, F16_TYPES, None)
    return build_cache(OPS, KINDS, [KVShape(1, 1, 1)] * 4, sizes, lambda layer: layer == held)


def facts(cache: Any) -> list[Any]:
    """Return all that a cache knows about its sequences."""
    found: list[Any] = []
    for each in cache.caches:
        found.append([each.length(sequence) for sequence in range(SEQUENCES)])
        found.append(list(each.counts()))
        found.append(
            [(held.cells, held.positions) for contents in each.contents() for held in contents.sequences]
        )
    return found


class Books(RuleBasedStateMachine):
    """A cache of a first stage, and one that repeats its commands as a `Worker` does."""

    def __init__(self) -> None:
        super().__init__()
        self.theirs: Any = books(3)
        self.cache = SplitCache(books(0), self.take, RuntimeError)

    def take(self, message: StageMessage) -> None:
        match message:
            case Undo(batch=None):
                self.theirs.undo_forward()
            case Undo(batch=failed) if failed is not None:
                self.theirs.start_forward(unpacked(failed, [], OPS))
                self.theirs.undo_forward()
            case Remove():
                self.theirs.remove(message.sequence, message.begin, message.end)
            case CopyPrefix():
                self.theirs.copy_prefix(message.source, message.target, message.count)
            case LimitCells():
                self.theirs.limit_cells(message.count)
            case Compact():
                self.theirs.compact(message.limit)

    @rule(
        shares=st.lists(
            st.tuples(st.integers(0, SEQUENCES - 1), st.integers(1, 14)),
            min_size=1,
            max_size=3,
            unique_by=lambda share: share[0],
        ),
        end=st.sampled_from(["done", "failed here", "failed later"]),
    )
    def forward(self, shares: list[tuple[int, int]], end: str) -> None:
        owners = [sequence for sequence, count in shares for _ in range(count)]
        positions = [self.cache.length(s) + i for s, count in shares for i in range(count)]
        batch = Batch.of([0] * len(owners), positions, owners, [])
        try:
            self.cache.start_forward(batch)
        except (CacheFullError, ValueError):
            return
        if end == "failed here":
            self.cache.undo_forward()
            return
        for number in range(len(self.cache.pieces)):
            piece = self.cache.begin_piece(number)
            message, _ = packed(piece, whole=False, images=False)
            self.theirs.start_forward(unpacked(message, [], OPS))
            self.cache.told = True
        if end == "failed later" and len(self.cache.pieces) == 1:
            self.cache.undo_forward()

    @rule(
        sequence=st.integers(0, SEQUENCES - 1),
        begin=st.integers(0, CONTEXT),
        end=st.integers(0, CONTEXT) | st.none(),
    )
    def remove(self, sequence: int, begin: int, end: int | None) -> None:
        try:
            self.cache.remove(sequence, begin, end if end is None else max(begin, end))
        except (NotSupportedError, CacheFullError):
            return

    @rule(
        source=st.integers(0, SEQUENCES - 1),
        into=st.integers(0, SEQUENCES - 1),
        count=st.integers(0, CONTEXT),
    )
    def copy_prefix(self, source: int, into: int, count: int) -> None:
        if source != into:
            self.cache.copy_prefix(source, into, self.cache.resume_point(source, count))

    @rule(limit=st.integers(1, 8))
    def compact(self, limit: int) -> None:
        self.cache.compact(limit)

    @rule(count=st.integers(CAPACITY - 10, CAPACITY))
    def limit(self, count: int) -> None:
        self.cache.limit_cells(count)

    @invariant()
    def books_are_alike(self) -> None:
        assert facts(self.cache.own) == facts(self.theirs)

    def teardown(self) -> None:
        self.cache.close()
        self.theirs.close()


@pytest.mark.slow
def test_books_of_all_stages_are_alike_after_any_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split_cache, "ROWS_TOGETHER", 4)
    run_state_machine_as_test(
        Books, settings=settings(max_examples=40, stateful_step_count=25, deadline=None)
    )


def test_sequences_of_a_split_model_are_not_saved() -> None:
    cache = SplitCache(books(0), lambda _: None, RuntimeError)
    assert isinstance(cache, Compacting)
    assert not isinstance(cache, Saving)
    cache.close()


def test_pieces_keep_together_what_one_pass_must_see(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split_cache, "ROWS_TOGETHER", 4)
    counts = [3, 9, 1, 8]
    owners = [owner for owner, count in enumerate(counts) for _ in range(count)]
    batch = Batch.of(list(range(21)), [i for count in counts for i in range(count)], owners, [2, 11, 20])
    batch.spans = [(5, 10)]
    batch.drafts = {0: 2}
    pieces = cut(batch)
    numbers = [piece.tokens.tolist() for piece in pieces]
    assert numbers == [[0, 1, 2, 3], [*range(4, 10)], [*range(10, 14)], [*range(14, 18)], [18, 19, 20]]
    assert [piece.spans for piece in pieces] == [[], [(1, 6)], [], [], []]
    assert [piece.drafts for piece in pieces] == [{0: 2}, {}, {}, {}, {}]
    assert [np.asarray(piece.outputs).tolist() for piece in pieces] == [[2], [], [1], [], [2]]

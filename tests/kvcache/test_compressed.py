"""Windows with entries of complete groups: random operations, against the texts that sequences hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from puna.batch import Batch
from puna.errors import CacheFileError, CacheFullError, NotSupportedError
from puna.gguf import GGMLType
from puna.kvcache.compressed import CompressedCache
from puna.kvcache.storage import KVShape
from puna.kvcache.types import KVTypes
from puna.ops import backend_named

FLOATS = KVTypes(GGMLType.F32, GGMLType.F32)
LAYER, SEQUENCES, CONTEXT = 4, 3, 60


class Texts:
    """A cache of numbers, and what each sequence has been given.

    What is stored for a position is its number; an entry is the sum of its group, and a hundred times that of
    the group before if groups overlap.
    """

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.group_size = int(self.random.integers(2, 7))
        self.overlapping = bool(self.random.integers(2))
        self.window = int(self.random.integers(1, 9))
        self.cache = self.made(int(self.random.integers(25, 130)), self.window + int(self.random.integers(6)))
        self.texts: list[list[int]] = [[] for _ in range(SEQUENCES)]

    def made(self, capacity: int, keep: int) -> CompressedCache:
        return CompressedCache(
            backend_named("reference"), {LAYER: KVShape(1, 4, 4, values_in_keys=True, indexer_dim=4)},
            window=self.window, group_size=self.group_size, overlapping=self.overlapping, sequences=SEQUENCES,
            context=CONTEXT, capacity=capacity, types=FLOATS, keep=keep,
        )  # fmt: skip

    def entry(self, text: list[int], group: int) -> float:
        before = (
            text[max(group - 1, 0) * self.group_size : group * self.group_size] if self.overlapping else []
        )
        own = text[group * self.group_size : (group + 1) * self.group_size]
        return float(sum(own) + (100 * sum(before) if group else 0) + group)

    def step(self, rows: list[tuple[int, list[int]]]) -> dict[int, list[int]]:
        """Evaluate new numbers of some sequences, check what each row sees, and return the longer texts."""
        batch = Batch.of(
            [number for _, new in rows for number in new],
            [len(self.texts[s]) + i for s, new in rows for i in range(len(new))],
            [s for s, new in rows for _ in new],
            [0],
        )
        act = self.cache.plan_forward(batch)
        try:
            act()
        except CacheFullError:
            raise AssertionError("a plan failed when acted on") from None
        longer = {s: self.texts[s] + new for s, new in rows}
        halves = 4 if self.overlapping else 2
        for _ in range(int(self.random.integers(1, 3))):  # a pass may be repeated
            layer = self.cache.layer(LAYER)
            layer.inputs.put(same(batch.tokens, 4 * halves), same(batch.tokens, 4 * halves))
            made = self.entries_of(batch)
            layer.put_entries(same(made, 4), same([each + 1 for each in made], 4))
            layer.put(same(batch.tokens, 4), None)
            for t, sequence in enumerate(batch.sequences.tolist()):
                text = longer[sequence][: batch.positions[t] + 1]
                expected = [self.entry(text, group) for group in range(len(text) // self.group_size)]
                assert seen(layer.view(), t) == text[-self.window :]
                assert seen(layer.entries(), t) == expected
                assert seen(layer.indexer_entries(), t) == [each + 1 for each in expected]
        return longer

    def entries_of(self, batch: Batch) -> list[float]:
        """Return the entries that rows complete; other rows have nonsense."""
        layer = self.cache.layer(LAYER)
        inputs, made = layer.inputs.view(), []
        for t, position in enumerate(batch.positions.tolist()):
            listed = seen(inputs, t)
            complete = len(listed) in (
                {self.group_size, 2 * self.group_size} if self.overlapping else {self.group_size}
            )
            assert complete == ((position + 1) % self.group_size == 0)
            group = int(np.asarray(layer.places)[t]) / self.group_size
            total = sum(listed[-self.group_size :]) + 100 * sum(listed[: -self.group_size]) + group
            made.append(total if complete else -7.0)
        return made

    def act(self) -> None:
        """Do something at random."""
        a, b = self.random.permutation(SEQUENCES)[:2].tolist()
        kind = int(self.random.integers(8))
        if kind < 3:
            self.evaluate(a)
        elif kind == 3:
            at = self.cache.resume_point(a, int(self.random.integers(len(self.texts[a]) + 1)))
            self.cut(a, at)
        elif kind == 4:
            count = int(self.random.integers(len(self.texts[a]) + 1))
            self.cache.copy_prefix(a, b, count)
            self.texts[b] = self.texts[a][:count]
            self.cut(b, self.cache.resume_point(b, count))
        elif kind == 5:
            self.cache.compact(int(self.random.integers(1, 9)))
        elif kind == 6:
            try:
                self.cache.plan_restore(b, self.cache.save(a))()
                self.texts[b] = list(self.texts[a])
            except CacheFullError:
                pass
        elif len(self.texts[a]) > 3:
            with pytest.raises(NotSupportedError, match="entries after positions 1 to 1"):
                self.cache.remove(a, 1, 2)

    def cut(self, sequence: int, length: int) -> None:
        self.cache.remove(sequence, length)
        self.texts[sequence] = self.texts[sequence][:length]

    def evaluate(self, first: int) -> None:
        chosen = sorted(self.random.permutation(SEQUENCES)[: self.random.integers(1, SEQUENCES + 1)].tolist())
        rows = [(s, self.random.integers(1, 50, int(self.random.integers(1, 10))).tolist()) for s in chosen]
        rows = [(s, new) for s, new in rows if len(self.texts[s]) + len(new) <= CONTEXT]
        count = sum(len(new) for _, new in rows)
        if not rows:
            return
        fits = self.cache.room(count) == count
        before = [each.cells.length.copy() for each in self.caches]
        try:
            longer = self.step(rows)
        except CacheFullError:
            assert not fits
            assert all((c.cells.length == n).all() for c, n in zip(self.caches, before, strict=True))
            self.cut(first, 0)
            return
        if self.random.random() < 0.25:
            self.cache.undo_forward()
        else:
            for s, text in longer.items():
                self.texts[s] = text

    @property
    def caches(self) -> tuple[Any, ...]:
        return self.cache.entries, self.cache.inputs

    def check(self) -> None:
        for each in self.caches:
            each.cells.check()
            assert [each.length(s) for s in range(SEQUENCES)] == list(map(len, self.texts))
        held = self.cache.entries.contents()[0].sequences
        for s, text in enumerate(self.texts):
            assert (
                held[s].positions[-(len(text) // self.group_size) :]
                == [position for position in range(len(text)) if (position + 1) % self.group_size == 0]
                or len(text) < self.group_size
            )
        runs = self.cache.entries.extents()[0].runs
        assert sum(run[2] for run in runs) == sum(len(each.cells) for each in held)


def same(numbers: Any, width: int) -> NDArray[np.float32]:
    """Return rows of keys that consist of the same number each."""
    return np.repeat(np.array(numbers, np.float32), width).reshape(-1, 1, width)


def seen(view: Any, row: int) -> list[float]:
    """Return the numbers of the cells that a row sees; all numbers of a cell are the same."""
    start, count = int(np.asarray(view.starts)[row]), int(np.asarray(view.counts)[row])
    numbers = view.keys.numbers(np.asarray(view.cells)[start : start + count])[:, 0]
    assert (numbers == numbers[:, :1]).all()
    found: list[float] = numbers[:, 0].tolist()
    return found


@pytest.mark.parametrize("seed", range(12))
def test_rows_see_their_window_and_the_entries_of_all_complete_groups(seed: int) -> None:
    texts = Texts(seed)
    for _ in range(60):
        texts.act()
        texts.check()


def test_a_full_cache_is_planned_for_windows_and_entries() -> None:
    """Windows and entries fit as far as `room` says; a batch beyond that changes nothing."""
    texts = Texts(1)
    texts.group_size, texts.window = 4, 3
    texts.cache = texts.made(capacity=8, keep=3)
    texts.texts[0] = texts.step([(0, [1] * 6)])[0]
    most = texts.cache.room(50)
    assert 0 < most < 50
    with pytest.raises(CacheFullError, match="free cells"):
        texts.step([(1, [2] * 20)])
    texts.texts[1] = texts.step([(1, [2] * most)])[1]
    texts.check()


@pytest.mark.parametrize("rows", range(1, 7))
def test_entries_need_room_of_their_own(rows: int) -> None:
    """A text grows until its entries leave no room for rows and the entries that they complete."""
    texts = Texts(1)
    texts.group_size, texts.window = 2, 3
    texts.cache = texts.made(capacity=16, keep=3)

    def grow() -> None:
        while len(texts.texts[0]) + rows <= CONTEXT:
            texts.texts[0] = texts.step([(0, [1] * rows)])[0]

    with pytest.raises(CacheFullError, match="free cells of 27"):
        grow()
    texts.check()


def test_damaged_or_shorter_sequences_are_not_restored() -> None:
    texts = Texts(2)
    texts.texts[0] = texts.step([(0, list(range(1, 10)))])[0]
    saved = texts.cache.save(0)
    for name, fact in (
        ("length", [8]), ("length.entries", [8]), ("first.entries", [99]), ("length.inputs", [2]),
        ("length.entries", [500]), ("first.inputs", []),
    ):  # fmt: skip
        damaged = type(saved)(saved.arrays, saved.facts | {name: fact})
        with pytest.raises((CacheFileError, CacheFullError)):
            texts.cache.plan_restore(1, damaged)
    first = next(name for name in saved.arrays if name.endswith(".entries"))
    damaged = type(saved)(saved.arrays | {first: saved.arrays[first][:-1]}, saved.facts)
    with pytest.raises(CacheFileError, match="use the same model"):
        texts.cache.plan_restore(1, damaged)
    assert texts.cache.length(1) == 0


def test_other_models_and_heads_cannot_read_entries() -> None:
    texts = Texts(3)
    batch = Batch.of([1], [0], [0], [0])
    with pytest.raises(NotSupportedError, match="read by another model"):
        texts.cache.start_reading([LAYER], batch)
    with pytest.raises(KeyError, match="no side pass"):
        texts.cache.start_side_pass(LAYER, batch, first=0)


def test_sizes_that_make_no_groups_are_refused() -> None:
    with pytest.raises(ValueError, match="0 positions make no group"):
        CompressedCache(
            backend_named("reference"), {0: KVShape(1, 4, 4, values_in_keys=True)}, window=3, group_size=0,
            overlapping=False, sequences=1, context=8,
        )  # fmt: skip

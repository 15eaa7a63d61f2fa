"""Memories of linear attention in a cache, through whatever may happen to their sequences."""

from __future__ import annotations

from functools import cache as remembered

import numpy as np
import pytest
from numpy.typing import NDArray

from puna.batch import Batch
from puna.errors import CacheFileError
from puna.kvcache.recurrent import RecurrentCache
from puna.ops import Backend, MemoryShape, RemovingMemoryShape, Storage, backend_named
from tests.processors import NOT_BUILT

SEQUENCES, ROWS = 3, 64


@pytest.fixture(params=["reference", "cpu"])
def ops(request: pytest.FixtureRequest) -> Backend:
    if request.param == "cpu":
        pytest.importorskip("puna._native", reason=NOT_BUILT, exc_type=ImportError)
    return backend_named(request.param)


class Memories:
    """A cache of memories, and the inputs of each of its sequences, which are numbers."""

    def __init__(self, ops: Backend, *, removes: bool) -> None:
        self.ops, self.removes = ops, removes
        self.shape = (RemovingMemoryShape if removes else MemoryShape)(2, 8, 12)
        self.cache = RecurrentCache(
            ops, {0: {"memory": self.shape}, 3: {"memory": self.shape}}, sequences=SEQUENCES, checkpoints=3
        )
        self.inputs: list[list[int]] = [[] for _ in range(SEQUENCES)]
        self.expected = remembered(self._expected)

    def evaluate(self, new: dict[int, list[int]], drafts: dict[int, int]) -> None:
        """Run a pass; check each row against those of its sequence evaluated at once."""
        sequences = [sequence for sequence, inputs in new.items() for _ in inputs]
        positions = [self.cache.length(s) + i for s, inputs in new.items() for i in range(len(inputs))]
        batch = Batch.of([0] * len(positions), positions, sequences, [])
        batch.drafts = drafts
        self.cache.start_forward(batch)
        numbers = [number for inputs in new.values() for number in inputs]
        wanted = [
            self.expected(tuple(self.inputs[s] + inputs))[len(self.inputs[s]) :] for s, inputs in new.items()
        ]
        for index in (0, 3, 0):  # a pass may be repeated
            state = self.cache.state(index)
            slots = state.slots.starts, state.slots.sources, state.slots.targets
            assert np.array_equal(self.attend(numbers, state.states["memory"], slots), np.concatenate(wanted))
        for sequence, inputs in new.items():
            self.inputs[sequence] = self.inputs[sequence] + inputs

    def attend(self, inputs: list[int], states: Storage, slots: tuple) -> NDArray[np.float32]:
        heads, key_dim, value_dim = self.shape
        vectors = np.array([_random(number, heads * (4 * key_dim + value_dim)) for number in inputs])
        *keys, values = np.split(vectors.reshape(len(inputs), heads, -1), [8, 16, 24, 32], axis=2)
        query, key, probe, removal = (np.ascontiguousarray(each / 4) for each in keys)
        decays = np.full(values.shape[:2], -0.25, np.float32)
        given = (query, key, np.ascontiguousarray(values), decays, None, None)
        removed = (self.ops.array(probe), self.ops.array(removal)) if self.removes else None
        found = self.ops.linear_attention(
            *(each if each is None else self.ops.array(each) for each in given), states, *slots,
            delta=not self.removes, removal=removed,
        )  # fmt: skip
        return self.ops.numpy(found)

    def _expected(self, inputs: tuple[int, ...]) -> NDArray[np.float32]:
        states = self.ops.memories(2, self.shape)
        states.provide(2)
        slots = np.zeros((3, len(inputs)), np.int32)
        slots[2] = -1
        return self.attend(list(inputs), states, tuple(map(self.ops.array, slots)))


@remembered
def _random(number: int, size: int) -> NDArray[np.float32]:
    return np.random.default_rng(number).standard_normal(size, np.float32)


@pytest.mark.parametrize("removes", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_memories_survive_whatever_happens_to_sequences(ops: Backend, seed: int, removes: bool) -> None:
    random, made = np.random.default_rng(seed), Memories(ops, removes=removes)
    cache, inputs = made.cache, made.inputs
    for step in range(120):
        first, second = random.choice(SEQUENCES, 2, replace=False).tolist()
        action = random.choice(["pass", "drafts", "undo", "remove", "copy", "save", "compact"], p=[
            0.4, 0.15, 0.1, 0.15, 0.1, 0.05, 0.05,
        ])  # fmt: skip
        if action in ("pass", "drafts", "undo"):
            most = 5 if action == "drafts" else ROWS // 4
            new = {
                s: list(range(step * ROWS, step * ROWS + random.integers(1, most + 1)))
                for s in (first, second)
            }
            new = {s: numbers for s, numbers in new.items() if len(inputs[s]) + len(numbers) <= ROWS * 2}
            if not new:
                cache.remove(first, 0)
                inputs[first] = []
                continue
            drafts = {s: len(numbers) - 1 for s, numbers in new.items()} if action == "drafts" else {}
            before = [list(each) for each in inputs]
            made.evaluate(new, drafts)
            if action == "undo":
                cache.undo_forward()
                inputs[:] = before
        elif action == "remove":
            position = cache.resume_point(first, int(random.integers(0, len(inputs[first]) + 1)))
            cache.remove(first, position)
            inputs[first] = inputs[first][:position]
        elif action == "copy":
            cache.copy_prefix(first, second, int(random.integers(0, len(inputs[first]) + 1)))
            inputs[second] = inputs[first][: cache.length(second)]
        elif action == "save":
            cache.plan_restore(second, cache.save(first))()
            inputs[second] = list(inputs[first])
        else:
            cache.compact()
        cache.check()
        assert [cache.length(s) for s in range(SEQUENCES)] == list(map(len, inputs))


@pytest.mark.parametrize("number", [3.0, 9.0, float("nan")])
def test_a_damaged_memory_is_refused_and_changes_nothing(number: float) -> None:
    pytest.importorskip("puna._native", reason=NOT_BUILT, exc_type=ImportError)
    made = Memories(backend_named("cpu"), removes=True)
    made.evaluate({0: [1, 2, 3], 1: [4]}, {})
    saved = made.cache.save(0)
    saved.arrays["3.memory"][-1, -1] = number
    with pytest.raises(CacheFileError, match=r"3\.memory.*damaged"):
        made.cache.plan_restore(1, saved)
    made.evaluate({1: [5]}, {})

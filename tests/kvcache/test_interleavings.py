"""Any interleaving of all operations, on every kind of cache, against a naive oracle.

The oracle is a list of numbers per sequence (None: forgotten). It computes from scratch what each row sees,
the result of attention and the recurrent state. Rotation is adding the offset to a key.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from puna.batch import Batch
from puna.errors import CacheFullError, NotSupportedError
from puna.kvcache.cache import Cache
from puna.kvcache.causal import CausalCache, KVShape
from puna.kvcache.encoder import EncoderCache
from puna.kvcache.recurrent import RecurrentCache
from puna.kvcache.windows import ChunkedCache, SlidingCache
from puna.kvcache.wrapper import WrapperCache
from tests.kvcache.probe import NUMBERS, OPS, add_shift, column, seen_keys, stretches

SEQUENCES, CONTEXT, WINDOW, CHUNK = 3, 24, 4, 5
MAX_DRAFTS = 4
ONE = KVShape(1, 1, 1)
HOW = {"sequences": SEQUENCES, "context": CONTEXT, "types": NUMBERS, "shift": add_shift}
FIRST_SEEN = {0: lambda p: 0, 1: lambda p: max(0, p - WINDOW + 1), 2: lambda p: p - p % CHUNK}

sequences = st.integers(0, SEQUENCES - 1)
places = st.integers(0, CONTEXT + 2)


class Interleavings(RuleBasedStateMachine):
    """Layers 0, 1, 2 and 3 are plain, sliding, chunked and cross-attention, 4 is recurrent."""

    def make(self) -> Cache:
        raise NotImplementedError

    @initialize()
    def start(self) -> None:
        self.cache = self.make()
        self.layers = set(self.cache.layers)
        self.items: list[list[float]] = [[] for _ in range(SEQUENCES)]  # the input at each position
        self.keys: list[list[float]] = [[] for _ in range(SEQUENCES)]  # with the rotations since
        self.images: list[dict[int, list[float]]] = [{} for _ in range(SEQUENCES)]
        self.next = 1.0

    # --- operations -------------------------------------------------------------------------------

    @rule(
        shares=st.lists(
            st.tuples(sequences, st.integers(1, 6)), min_size=1, max_size=3, unique_by=lambda s: s[0]
        ),
        fail=st.booleans(),
        data=st.data(),
    )
    def forward(self, shares: list[tuple[int, int]], fail: bool, data: st.DataObject) -> None:
        owners = [s for s, count in shares for _ in range(count)]
        positions = [len(self.items[s]) + i for s, count in shares for i in range(count)]
        numbers = [self.next + i for i in range(len(owners))]
        self.next += len(owners)
        batch = Batch.of([0] * len(owners), positions, owners, [])
        size = shares[0][1]
        if data.draw(st.booleans()):
            batch.spans = [(0, data.draw(st.integers(1, size)))]
        if 3 in self.layers and data.draw(st.booleans()):
            batch.payloads = [
                (data.draw(st.integers(0, len(owners) - 1)), [self.next + 0.5, self.next + 0.25])
            ]
        several = [(s, count) for s, count in shares if 1 < count <= 1 + MAX_DRAFTS]
        batch.drafts = {s: count - 1 for s, count in several if data.draw(st.booleans())}
        before = self.snapshot()
        try:
            self.cache.start_forward(batch)
        except CacheFullError:
            assert self.snapshot() == before
            return
        if fail:
            self.cache.undo_forward()
            return
        for s, number in zip(owners, numbers, strict=True):
            self.items[s].append(number)
            self.keys[s].append(number)
        for row, payload in batch.payloads:
            self.images[owners[row]][positions[row]] = payload
        for _ in range(2):  # a pass may be repeated
            self.check_pass(batch, owners, positions, numbers)
        for s, count in batch.drafts.items():
            end = len(self.items[s])
            assert all(self.cache.can_resume(s, end - rejected) for rejected in range(count + 1))

    def check_pass(self, batch: Batch, owners: list[int], positions: list[int], numbers: list[float]) -> None:
        rows = column(numbers)
        ends = dict.fromkeys(range(*batch.spans[0]), batch.spans[0]) if batch.spans else {}
        for layer in self.layers & FIRST_SEEN.keys():
            self.cache.layer(layer).put(rows, rows)
            view = self.cache.layer(layer).view()
            expected = []
            for row, (s, p) in enumerate(zip(owners, positions, strict=True)):
                begin, end = FIRST_SEEN[layer](p), p + 1
                if row in ends:
                    begin, end = min(begin, positions[ends[row][0]]), positions[ends[row][1] - 1] + 1
                expected.append((s, begin, end))
            assert seen_keys(view) == [self.keys[s][begin:end] for s, begin, end in expected]
            query = column([0.01] * len(owners))
            mixed = OPS.attention(query, view.keys, view.values, view.cells, view.starts, view.counts, 1.0)
            for got, (s, begin, end) in zip(mixed.flatten().tolist(), expected, strict=True):
                weights = [math.exp(0.01 * (key - self.next)) for key in self.keys[s][begin:end]]
                values = self.items[s][begin:end]
                wanted = sum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights)
                assert got == pytest.approx(wanted, rel=1e-4)
        if 3 in self.layers:
            if batch.payloads:
                data = column(batch.payloads[0][1])
                self.cache.layer(3).put(data, data)
            shown = seen_keys(self.cache.layer(3).view())
            assert shown == [self.seen_images(s, p) for s, p in zip(owners, positions, strict=True)]
        if 4 in self.layers:
            state = self.cache.state(4)
            for begin, end, source, target in stretches(state.slots):
                value = state.states["sum"].read(np.array([source]))
                for number in numbers[begin:end]:
                    value = value / 2 + number
                wanted, owner = 0.0, owners[begin]
                for number in self.items[owner][: positions[end - 1] + 1]:
                    wanted = wanted / 2 + number
                assert value.item() == pytest.approx(wanted, rel=1e-5)
                state.states["sum"].write(np.array([target]), value)

    def seen_images(self, sequence: int, position: int) -> list[float]:
        images = self.images[sequence]
        at = max((p for p in images if p <= position), default=None)
        seen: list[float] = []
        while at is not None and at in images:
            seen, at = images[at] + seen, at - 1
        return seen

    @rule(source=sequences, taker=sequences, count=places)
    def copy_prefix(self, source: int, taker: int, count: int) -> None:
        if source == taker:
            return
        count = min(count, len(self.items[source]))
        self.cache.copy_prefix(source, taker, count)
        point = self.cache.resume_point(taker, count)
        assert point <= count
        self.cache.remove(taker, point)
        for kept in (self.items, self.keys):
            kept[taker] = kept[source][:point]
        self.images[taker] = {p: image for p, image in self.images[source].items() if p < point}

    @rule(sequence=sequences, position=places)
    def take_back(self, sequence: int, position: int) -> None:
        point = self.cache.resume_point(sequence, position)
        assert point <= min(position, len(self.items[sequence]))
        assert self.cache.can_resume(sequence, point)
        self.cache.remove(sequence, point)
        self.cut(sequence, point, len(self.items[sequence]))

    @rule(sequence=sequences, begin=places, count=st.integers(0, 8))
    def remove(self, sequence: int, begin: int, count: int) -> None:
        end, length, before = begin + count, len(self.items[sequence]), self.snapshot()
        if end >= length and not self.cache.can_resume(sequence, begin):
            return
        try:
            self.cache.remove(sequence, begin, end)
        except (NotSupportedError, CacheFullError):
            assert self.snapshot() == before
            return
        self.cut(sequence, begin, min(end, length))

    def cut(self, sequence: int, begin: int, end: int) -> None:
        if begin >= end:
            return
        gone = end - begin
        self.items[sequence] = self.items[sequence][:begin] + self.items[sequence][end:]
        keys = self.keys[sequence]
        self.keys[sequence] = keys[:begin] + [key - gone for key in keys[end:]]
        self.images[sequence] = {
            p - gone if p >= end else p: i for p, i in self.images[sequence].items() if not begin <= p < end
        }

    @rule(most=st.integers(1, 6))
    def compact(self, most: int) -> None:
        self.cache.compact(most)

    @rule(sequence=sequences)
    def save(self, sequence: int) -> None:
        saved = self.cache.save(sequence)
        self.saved = (
            saved,
            list(self.items[sequence]),
            list(self.keys[sequence]),
            dict(self.images[sequence]),
        )

    @precondition(lambda self: hasattr(self, "saved"))
    @rule(sequence=sequences)
    def restore(self, sequence: int) -> None:
        saved, items, keys, images = self.saved
        before = self.snapshot()
        try:
            self.cache.plan_restore(sequence, saved)()
        except CacheFullError:
            assert self.snapshot() == before
            return
        self.items[sequence], self.keys[sequence], self.images[sequence] = (
            list(items),
            list(keys),
            dict(images),
        )

    # --- invariants -------------------------------------------------------------------------------

    def all_caches(self) -> list[Cache]:
        return list(self.cache.caches) if isinstance(self.cache, WrapperCache) else [self.cache]

    def snapshot(self) -> list[list]:
        return [
            [inner.save(s).facts, *(array.tolist() for array in inner.save(s).arrays.values())]
            for inner in self.all_caches()
            for s in range(SEQUENCES)
        ]

    @invariant()
    def the_books_balance(self) -> None:
        if not hasattr(self, "cache"):
            return
        for inner in self.all_caches():
            (inner if isinstance(inner, RecurrentCache) else inner.cells).check()
            for s in range(SEQUENCES):
                assert inner.length(s) == len(self.items[s])


def plain() -> Cache:
    return CausalCache(OPS, {0: ONE}, capacity=50, **HOW)


def window() -> Cache:
    return SlidingCache(OPS, {1: ONE}, window=WINDOW, capacity=30, **HOW)


def window_with_memory() -> Cache:
    return SlidingCache(OPS, {1: ONE}, window=WINDOW, keep=7, capacity=40, **HOW)


def chunks() -> Cache:
    return ChunkedCache(OPS, {2: ONE}, chunk=CHUNK, keep=3, capacity=30, **HOW)


def encoder() -> Cache:
    return EncoderCache(OPS, {3: ONE}, sequences=SEQUENCES, longest=20, entries=len, types=NUMBERS)


def recurrent() -> Cache:
    return RecurrentCache(OPS, {4: {"sum": (1,)}}, sequences=SEQUENCES, checkpoints=2)


KINDS = [
    [plain],
    [window],
    [window_with_memory],
    [chunks],
    [encoder],
    [recurrent],
    [window_with_memory, plain],
    [chunks, plain],
    [encoder, plain],
    [plain, recurrent],
    [plain, window, chunks, encoder, recurrent],
]


def run(makers: list, examples: int, steps: int) -> None:
    class Machine(Interleavings):
        def make(self) -> Cache:
            made = [maker() for maker in makers]
            return made[0] if len(made) == 1 else WrapperCache(*made)

    run_state_machine_as_test(
        Machine, settings=settings(max_examples=examples, stateful_step_count=steps, deadline=None)
    )


def names(makers: list) -> str:
    return "+".join(maker.__name__ for maker in makers)


@pytest.mark.parametrize("makers", KINDS, ids=names)
def test_every_interleaving_agrees_with_the_oracle(makers: list) -> None:
    run(makers, 10, 30)


@pytest.mark.slow
@pytest.mark.parametrize("makers", KINDS, ids=names)
def test_thousands_of_steps_agree_with_the_oracle(makers: list) -> None:
    run(makers, 40, 50)

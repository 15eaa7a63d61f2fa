"""Caches of single numbers, whose contents can be read off directly."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from puna.batch import Batch
from puna.kvcache.cache import KVView, StateSlots
from puna.kvcache.causal import CausalCache, KVShape
from puna.kvcache.types import KVTypes
from puna.ops import Array, default_backend

OPS = default_backend()
NUMBERS = KVTypes.parse("f32")


def add_shift(layer: int, keys: Array, offset: int) -> None:
    """A "rotation" whose effect can be read off: add the offset."""
    keys += offset


def seen_keys(view: KVView) -> list[list[float]]:
    """Return the keys each row may see, in order of position."""
    return [
        view.keys.read(OPS.numpy(view.cells)[start : start + count]).flatten().tolist()
        for start, count in zip(OPS.numpy(view.starts), OPS.numpy(view.counts), strict=True)
    ]


def stretches(slots: StateSlots) -> list[tuple[int, int, int, int]]:
    """Return rows [begin, end) from one wanted state to the next, with the slots read and written.

    A sequence has one or more such stretches; each reads the slot that the previous one wrote.
    """
    found: list[tuple[int, int, int, int]] = []
    starts, sources, targets = (
        OPS.numpy(part).tolist() for part in (slots.starts, slots.sources, slots.targets)
    )
    for row, target in enumerate(targets):
        if target < 0:
            continue
        begin, source = starts[row], sources[row]
        if found and found[-1][1] > begin:
            _, begin, _, source = found[-1]
        found.append((begin, row + 1, source, target))
    return found


def column(data: list[float]) -> NDArray[np.float32]:
    """Return keys or values of one number each: [rows, 1, 1]."""
    return np.array(data, np.float32).reshape(-1, 1, 1)


class Probe:
    """A one-layer cache of single numbers that stores data and reports what each row sees."""

    def __init__(
        self,
        sequences: int = 1,
        context: int = 16,
        shift: Any = add_shift,
        capacity: int | None = None,
        kind: Any = CausalCache,
        **options: Any,
    ) -> None:
        self.cache = kind(
            OPS,
            [KVShape(1, 1, 1)],
            sequences=sequences,
            context=context,
            capacity=capacity,
            types=NUMBERS,
            shift=shift,
            **options,
        )

    def store(
        self,
        sequences: list[int],
        positions: list[int],
        data: list[float],
        spans: list[tuple[int, int]] | None = None,
    ) -> list[list[float]]:
        """Run one forward pass; return the keys each row may see, in order of position."""
        batch = Batch.of([0] * len(data), positions, sequences, [])
        batch.spans = spans or []
        self.cache.start_forward(batch)
        layer = self.cache.layer(0)
        values = column(data)
        layer.put(values, values)
        return seen_keys(layer.view())

    def cells(self, sequence: int) -> list[int]:
        return self.cache.cells.cells(sequence).tolist()

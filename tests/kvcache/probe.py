"""Caches of single numbers, whose contents can be read off."""

from __future__ import annotations

from typing import Any

import torch

from puna.batch import Batch
from puna.kvcache.cache import KVView
from puna.kvcache.causal import CausalCache, KVShape
from puna.kvcache.types import KVTypes

NUMBERS = KVTypes.parse("f32")


def add_shift(layer: int, keys: torch.Tensor, offset: int) -> None:
    """A "rotation" whose effect can be read off: add the offset."""
    keys += offset


def seen_keys(view: KVView) -> list[list[float]]:
    """Per row the keys it may see, in order of position."""
    return [
        view.keys[view.cells[start : start + count].long()].flatten().tolist()
        for start, count in zip(view.starts.tolist(), view.counts.tolist(), strict=True)
    ]


class Probe:
    """A one-layer cache of single numbers: stores data, reports what each row sees."""

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
        """One forward pass; per row the keys it may see, in order of position."""
        batch = Batch.of([0] * len(data), positions, sequences, [])
        batch.spans = spans or []
        self.cache.start_forward(batch)
        layer = self.cache.layer(0)
        values = torch.tensor(data, dtype=torch.float32).view(-1, 1, 1)
        layer.put(values, values)
        return seen_keys(layer.view())

    def cells(self, sequence: int) -> list[int]:
        return self.cache.cells.cells(sequence).tolist()

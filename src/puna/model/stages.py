"""The layers of a model that one process computes, when others compute the rest."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from puna.errors import ModelError
from puna.model.layer_cache import ChosenBy, KeysOf, Remembered

_LAYER: Final = re.compile(r"blk\.(\d+)(?:\.|$)")


@dataclass(frozen=True)
class ModelStage:
    """Layers [begin, end) of a model with `count` layers, of which the process of a stage holds the weights.

    The first stage also has everything that is no layer, and the prediction heads. All stages have the
    factors of rotations.
    """

    begin: int
    end: int
    count: int

    @property
    def is_first(self) -> bool:
        return self.begin == 0

    @property
    def is_last(self) -> bool:
        return self.end == self.count

    def has(self, layer: int) -> bool:
        """Whether layer number `layer` is here; those from `count` on belong to prediction heads."""
        return self.begin <= layer < self.end or (self.is_first and layer >= self.count)

    def holds(self, name: str) -> bool:
        """Whether the tensor `name`, or the module whose tensors have names that begin like that, is here."""
        if layer := _LAYER.match(name):
            return self.has(int(layer[1]))
        return self.is_first or name.startswith("rope_")

    def check(self, remembered: Sequence[Remembered]) -> None:
        """Raise `ModelError` unless these layers are some of a model's, and need nothing of others."""
        if not 0 <= self.begin < self.end <= self.count:
            text = f"layers [{self.begin}, {self.end}) are no part of a model with {self.count} layers"
            raise ModelError(text)
        for place in (self.begin, self.end):
            if place not in (0, *places_to_cut(remembered[: self.count]), self.count):
                raise ModelError(
                    f"it cannot be cut before layer {place}: later layers use keys or choices of earlier ones"
                )

    def __str__(self) -> str:
        return (
            f"layers {self.begin} to {self.end - 1}" if self.end > self.begin + 1 else f"layer {self.begin}"
        )


def places_to_cut(remembered: Sequence[Remembered]) -> list[int]:
    """Return the layers before which a model may be cut: no layer uses what one before the cut keeps."""
    lenders = {
        index: kept.layer for index, kept in enumerate(remembered) if isinstance(kept, KeysOf | ChosenBy)
    }
    return [
        place
        for place in range(1, len(remembered))
        if not any(lender < place <= index for index, lender in lenders.items())
    ]

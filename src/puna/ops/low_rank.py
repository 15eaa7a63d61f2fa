"""Low-rank adapters of a matrix, as `Backend.add_low_rank` takes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from puna.ops.weight import Weight

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class LowRankPart:
    """One adapter of a matrix [out, in]."""

    adapter: int  # number
    down: Weight  # [rank, in]
    up: Weight  # [out, rank]


class LowRankWeights:
    """All adapters of a matrix."""

    def __init__(self) -> None:
        self.parts: list[LowRankPart] = []
        self.packed: Any = None  # owned by the backend

    def add(self, adapter: int, name: str, a: NDArray[np.float32], b: NDArray[np.float32]) -> None:
        """Add adapter number `adapter`, which computes b a x: `a` [rank, in], `b` [out, rank]."""
        down, up = Weight.from_values(f"{name}.lora_a", a), Weight.from_values(f"{name}.lora_b", b)
        self.parts.append(LowRankPart(adapter, down, up))

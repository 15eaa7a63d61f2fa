"""How full a cache is, in numbers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CellCounts:
    """Cells of one cache. A cell of a recurrent cache is a state."""

    kind: str  # "causal", "sliding", ...
    capacity: int
    used: int  # held by at least one sequence
    shared: int  # held by several, and counted once

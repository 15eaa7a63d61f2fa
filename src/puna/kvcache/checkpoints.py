"""Which earlier states of a sequence are kept, so that it can be resumed there."""

from __future__ import annotations

#: As in Ollama's engine: states kept of a sequence, positions between them, and the first position.
MAX_CHECKPOINTS = 24
SPACING = 1664
FIRST = 16


class Checkpoints:
    """States of one sequence by the position they are the state after, the last `limit` recorded."""

    def __init__(self, limit: int = MAX_CHECKPOINTS) -> None:
        self._limit = limit
        self._slots: dict[int, int] = {}  # by position, ascending

    @property
    def positions(self) -> list[int]:
        return list(self._slots)

    @property
    def last(self) -> int:
        """The highest position; -1 without any."""
        return next(reversed(self._slots), -1)

    def record(self, position: int, slot: int) -> list[int]:
        """Keep `slot` as the state after `position`, the highest so far. Returns slots no longer kept."""
        if not self._limit:
            return [slot]
        dropped = [self._slots.pop(next(iter(self._slots)))] if len(self._slots) == self._limit else []
        self._slots[position] = slot
        return dropped

    def slot(self, position: int) -> int | None:
        """The state after `position`."""
        return self._slots.get(position)

    def best(self, target: int) -> int | None:
        """The highest position before `target` whose state is kept."""
        return max((position for position in self._slots if position < target), default=None)

    def prune(self, position: int) -> list[int]:
        """Forget what comes after `position`. Returns slots no longer kept."""
        late = [kept for kept in self._slots if kept > position]
        return [self._slots.pop(kept) for kept in late]

    def due(self, position: int, prompt_ends: bool) -> bool:
        """Whether the state after `position` is worth keeping: at intervals, and where a prompt ends.

        That is where the next turn of a conversation begins to differ if the answer is sent otherwise than it
        was generated. Before its last input the same prompt can be resumed, to be answered once more.
        """
        if position < FIRST or position <= self.last:
            return False
        return prompt_ends or self.last < 0 or position - self.last >= SPACING

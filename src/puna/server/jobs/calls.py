"""Tool calls of an answer put together from their pieces, for APIs that tell of them in whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from puna import gojson
from puna.protocol import CallDelta


@dataclass(frozen=True)
class Call:
    """A tool call; `arguments` are JSON text, as the model wrote it."""

    index: int
    id: str
    name: str
    arguments: str

    def value(self) -> dict[str, Any] | None:
        """The arguments; None if they are no object, because the answer ended inside of them."""
        try:
            value = gojson.loads(self.arguments or "{}")
        except ValueError:
            return None
        return value if isinstance(value, dict) else None

    @property
    def text(self) -> str:
        """What a call that was never finished is shown as."""
        return self.name + self.arguments


class Calls:
    """Puts calls together. One is whole when anything else follows it, or the answer ends: then `flush`."""

    def __init__(self) -> None:
        self._first: CallDelta | None = None
        self._arguments: list[str] = []

    def feed(self, deltas: Sequence[CallDelta]) -> list[Call]:
        """The calls that are whole now."""
        whole: list[Call] = []
        for delta in deltas:
            if self._first is None or delta.index != self._first.index:
                whole += self.flush()
                self._first = delta
            self._arguments.append(delta.arguments)
        return whole

    def flush(self) -> list[Call]:
        """The call that was not yet told of, if there is one: nothing more belongs to it."""
        first, arguments = self._first, "".join(self._arguments)
        self._first, self._arguments = None, []
        return [] if first is None else [Call(first.index, first.id, first.name, arguments)]

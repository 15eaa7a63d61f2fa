"""Events of models: loads and their progress, ends, and changes of the store; told to those who listen."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable
from typing import Final, Literal

import msgspec

from puna.errors import ServerBusyError
from puna.server.http.event_log import EventLog
from puna.server.http.replies import named_event

_MAX_LISTENERS: Final = 64

#: Why a model left memory: unused for its keep-alive time, unloaded by a request, in another model's way,
#: loaded again with other options, crashed, no longer wanted before it was loaded, or the server's end.
UnloadReason = Literal["idle", "requested", "room", "replaced", "crashed", "abandoned", "shutdown"]


class ModelState(msgspec.Struct, frozen=True):
    """A model in memory, or with the share of its weights in place on its way there."""

    model: str
    loading: float | None


class ModelSnapshot(msgspec.Struct, frozen=True, tag="snapshot"):
    """The first event, and the one instead of events that are no longer kept: all models in memory."""

    models: list[ModelState]


class ModelLoading(msgspec.Struct, frozen=True, tag="loading"):
    """Bytes of weights."""

    model: str
    done: int
    total: int


class ModelLoaded(msgspec.Struct, frozen=True, tag="loaded"):
    model: str
    load_s: float
    size_bytes: int
    context_length: int  # tokens


class ModelFailed(msgspec.Struct, frozen=True, tag="failed"):
    """A load failed."""

    model: str
    message: str


class ModelUnloaded(msgspec.Struct, frozen=True, tag="unloaded"):
    model: str
    reason: UnloadReason


class ModelPulled(msgspec.Struct, frozen=True, tag="pulled"):
    model: str


class ModelCreated(msgspec.Struct, frozen=True, tag="created"):
    """Created or copied."""

    model: str


class ModelDeleted(msgspec.Struct, frozen=True, tag="deleted"):
    model: str


ModelEvent = (
    ModelSnapshot
    | ModelLoading
    | ModelLoaded
    | ModelFailed
    | ModelUnloaded
    | ModelPulled
    | ModelCreated
    | ModelDeleted
)


class ModelEvents:
    """The events of models while somebody listens, and for a minute afterwards.

    `states` returns the models in memory.
    """

    def __init__(self, states: Callable[[], list[ModelState]]) -> None:
        self._states = states
        self._log: EventLog | None = None

    def say(self, event: ModelEvent) -> None:
        """Tell an event to those who listen."""
        if self._log is not None:
            self._log.add(named_event(event))

    def after(self, number: int) -> AsyncGenerator[bytes, None]:
        """Return the events after the one with this number. Raises ServerBusyError when too many listen."""
        if self._log is None:
            # Numbers above those of any earlier log, so that a client that has missed events gets a snapshot.
            self._log = EventLog(self._snapshot, self._forget, begin=time.time_ns() // 10**6)
        elif self._log.listeners >= _MAX_LISTENERS:
            raise ServerBusyError(f"{_MAX_LISTENERS} clients listen to events, the most there may be")
        return self._log.after(number)

    def _snapshot(self) -> bytes:
        return named_event(ModelSnapshot(self._states()))

    def _forget(self) -> None:
        self._log = None

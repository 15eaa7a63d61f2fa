"""The contract of a cache: what models and the engine may ask of what a model remembers."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

from puna.batch import Batch
from puna.kvcache.contents import CellCounts, Contents
from puna.kvcache.saved import Saved
from puna.ops import Array, Storage

#: Rotates cached keys float32 [cells, heads, head_dim] of a layer in place as if each had been stored
#: `offset` positions further on (negative: earlier).
Shift = Callable[[int, Array, int], None]


@dataclass(frozen=True, slots=True)
class KVView:
    """What a layer's attention reads: storage, and for every batch row the cells it may see.

    Row t sees `cells[starts[t] : starts[t] + counts[t]]`, in order of position. Its own of these is entry
    `places[t]` of `cells`, the last that it sees if there are no `places`.
    """

    keys: Storage  # [cells, kv_heads, key_dim]
    values: Storage | int  # [cells, kv_heads, value_dim], or how many of a key's last numbers they are
    cells: Array  # int32 [n]
    starts: Array  # int32 [rows]
    counts: Array  # int32 [rows]
    places: Array | None = None  # int32 [rows]

    def of(self, rows: Array) -> KVView:
        """What only `rows` (int64) of the batch see."""
        places = None if self.places is None else self.places[rows]
        return replace(self, starts=self.starts[rows], counts=self.counts[rows], places=places)


class LayerCache(Protocol):
    """One layer's share of a cache during a forward pass.

    A layer that uses the keys and values of another takes that one's `view` and puts nothing itself.
    """

    def put(self, keys: Array, values: Array | None) -> None:
        """Store the batch's keys float32 [rows, kv_heads, key_dim] and values [rows, kv_heads, value_dim].

        Values are None where they are the last numbers of keys (`KVShape.values_in_keys`).
        """

    def view(self) -> KVView:
        """Everything the batch's rows may see, including what `put` just stored.

        Raises `ValueError` when this pass has not put anything there yet.
        """


@dataclass(frozen=True, slots=True)
class StateSlots:
    """Where a pass finds and leaves the states of its sequences, for each row of the batch: int32 [rows].

    The sequence of row t has the rows of the batch from `starts[t]` on; its state before them is in slot
    `sources[t]`. The state after row t goes to slot `targets[t]`, a fresh one, or nowhere if that is -1.
    """

    starts: Array
    sources: Array
    targets: Array


class LayerState:
    """The states of one recurrent layer during a forward pass.

    A pass reads what each sequence's state was before its rows, and writes what it is after them, and what
    it is after some of them, in `states` where `slots` says.
    """

    def __init__(self, states: dict[str, Storage], slots: StateSlots) -> None:
        self.states = states  # [slots, ...] float32, by name
        self.slots = slots


class Cache(ABC):
    """What a model remembers of several sequences: the contract of a forward pass, and of the time between.

    A cache may have the abilities `Saving`, `Picturing` and `Compacting` besides.

    One forward pass is `start_forward`, then for each layer `layer(i)` with `put` and `view`. If the
    pass fails after `start_forward`, `undo_forward` takes its entries back. Between passes the other
    operations may be called. A failing operation changes nothing: what can fail is a `plan_...`, which
    raises, or returns what does it and cannot fail any more.

    The operations of a pass may be done several times after one `start_forward`, with the same result:
    what `undo_forward` must be able to bring back, a pass cannot have destroyed.
    """

    #: Positions a sequence may have; on it depends how some models rotate (`puna.model.rope`).
    context: int = 0

    @property
    @abstractmethod
    def generation(self) -> int | None:
        """Says whether the operations of a pass can be recorded and replayed for later batches.

        As long as this number stays the same, what `layer(i)` hands out and does in a pass differs
        between two batches with the same number of rows only in the *values* of tensors that `start_forward`
        has filled: the tensors' addresses and shapes, and every plain number given to an operation, are the
        same. A change of storage or of buffers means another number, larger than those before.

        None: this cache's passes differ in other ways, and are never replayed.
        """

    @property
    @abstractmethod
    def layers(self) -> Iterable[int]:
        """The numbers of the layers whose contents are kept here."""

    def start_forward(self, batch: Batch) -> None:
        """Make room for every row of `batch`, whose positions must continue their sequences.

        Raises `CacheFullError` when there are fewer free cells than rows.
        """
        self.plan_forward(batch)()

    def remove(self, sequence: int, begin: int, end: int | None = None) -> None:
        """Forget positions [begin, end) of `sequence`; `None` means to the end.

        Later positions move down by `end - begin` and their keys are rotated accordingly. Raises
        `NotSupportedError` when the model cannot do that or what stays would not be all that the next
        input has to see, and `CacheFullError` when cells shared with another sequence would have to be
        copied and none are free. `remove(sequence, 0)` always succeeds.
        """
        self.plan_removal(sequence, begin, end)()

    @property
    def max_drafts(self) -> int:
        """How many of the newest inputs of a sequence can be removed again after a pass (`Batch.drafts`)."""
        return sys.maxsize

    def start_side_pass(self, layer: int, batch: Batch, *, first: int) -> None:
        """Begin a pass of one `layer`, that of a prediction head, between those of the model.

        Rows are at positions that their sequences have already, where the layer's keys and values are
        replaced, or follow them until `end_side_passes`. They see no position before `first`, and none that
        is forgotten. Raises `CacheFullError` when there are too few free cells.
        """
        raise KeyError(f"layer {layer} has no keys")

    def end_side_passes(self) -> None:  # noqa: B027 - a cache without such layers has nothing to forget
        """Forget the rows that followed their sequences."""

    def can_resume(self, sequence: int, position: int) -> bool:
        """Whether an input at `position` would see all it has to."""
        return position >= 0 and self.resume_point(sequence, position) == position

    @abstractmethod
    def plan_forward(self, batch: Batch) -> Callable[[], None]:
        """What `start_forward` will do; raises the errors of that and changes nothing."""

    @abstractmethod
    def plan_removal(self, sequence: int, begin: int, end: int | None = None) -> Callable[[], None]:
        """What `remove` will do; raises the errors of that and changes nothing."""

    @abstractmethod
    def undo_forward(self) -> None:
        """Forget the rows of the last `start_forward`. What it dropped as no longer visible stays gone."""

    @abstractmethod
    def layer(self, index: int) -> LayerCache:
        """The storage of layer `index`."""

    def state(self, index: int) -> LayerState:
        """The states of recurrent layer `index`."""
        raise KeyError(f"layer {index} has no states")

    @abstractmethod
    def room(self, wanted: int) -> int:
        """How many rows, at most `wanted`, free storage allows the next batch."""

    @abstractmethod
    def length(self, sequence: int) -> int:
        """The position the next input of `sequence` must have."""

    @abstractmethod
    def copy_prefix(self, source: int, target: int, count: int) -> None:
        """Let `target` begin with the first `count` positions of `source`, without copying data.

        Ask `can_resume(target, count)` afterwards: not every cache remembers all of a prefix.
        """

    @abstractmethod
    def resume_point(self, sequence: int, position: int) -> int:
        """The last position, at most `position`, where an input would see all it has to.

        After `remove(sequence, that)` the sequence can be continued there.
        """

    @abstractmethod
    def counts(self) -> list[CellCounts]:
        """How full it is; one entry, of a wrapper one for each of its caches.

        May be asked for from any thread at any time: during a change the numbers are those of its middle.
        """

    def limit_cells(self, count: int) -> None:  # noqa: B027, most kinds have other limits
        """Let at most `count` cells be in use from now on, of those there are."""

    @property
    def forgets(self) -> bool:
        """Whether a sequence cannot be resumed at earlier positions once it has gone on far enough."""
        return False

    @property
    def kind(self) -> str:
        """`causal`, `sliding`, ..."""
        return type(self).__name__.removesuffix("Cache").lower()

    @property
    @abstractmethod
    def allocated_bytes(self) -> int:
        """Bytes of storage if every cell were used."""

    @abstractmethod
    def layer_bytes(self, *, sequences: int, capacity: int, batch: int) -> dict[int, int]:
        """The most memory each layer of a cache of this kind can take, whatever the size of this one.

        That is with `sequences` sequences, `capacity` cells and passes of up to `batch` rows.
        """

    def bookkeeping_bytes(self, *, sequences: int, longest: int, capacity: int) -> int:
        """Return what a cache of this kind can come to take for its bookkeeping, beside `layer_bytes`.

        That is with `capacity` cells and `sequences` sequences of up to `longest` positions.
        """
        return 0

    def is_countable(self, *, sequences: int, longest: int, capacity: int) -> bool:
        """Return whether the indices of a cache of this kind and these sizes are int32, as they must be."""
        return True

    def reserved_bytes(self, *, sequences: int, longest: int, capacity: int) -> int:
        """Return the address space of a cache of this kind and these sizes.

        That is at least `layer_bytes` and `bookkeeping_bytes`: a window has cells that are never used.
        """
        own = sum(self.layer_bytes(sequences=sequences, capacity=capacity, batch=0).values())
        return own + self.bookkeeping_bytes(sequences=sequences, longest=longest, capacity=capacity)

    @property
    @abstractmethod
    def provided_bytes(self) -> int:
        """Bytes of storage that memory has been provided for so far."""

    @abstractmethod
    def close(self) -> None:
        """Give all memory back."""


@runtime_checkable
class Saving(Protocol):
    """The ability to save what is remembered of a sequence, and to restore it."""

    def save(self, sequence: int) -> Saved:
        """All that is remembered of `sequence`, copied."""

    def plan_restore(self, sequence: int, saved: Saved) -> Callable[[], None]:
        """What makes `sequence`, whatever it held, what was saved.

        Raises `CacheFileError` when that does not fit this cache and `CacheFullError` when there is no room;
        nothing is changed by that.
        """


@runtime_checkable
class Picturing(Protocol):
    """The ability to say what is kept where."""

    def contents(self) -> list[Contents]:
        """What is kept where; one entry, of a wrapper one for each of its caches."""


@runtime_checkable
class Compacting(Protocol):
    """The ability to move cells together, and give back the storage behind them."""

    def compact(self, limit: int = 256) -> bool:
        """Move up to `limit` cells to where the sequences' cells lie together; True when there is more to do.

        Changes no result. When all is in place, storage behind the last cell is given back to the system.
        """


def check_removal(sequence: int, begin: int, end: int | None) -> None:
    """Raise `ValueError` unless [begin, end) can be a stretch of positions of `sequence`."""
    if begin < 0 or (end is not None and end < begin):
        raise ValueError(f"cannot remove positions {begin} to {end} of sequence {sequence}")

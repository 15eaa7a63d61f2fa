"""The contract of a cache between a model, which reads and writes it, and the engine, which manages it."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

from puna.batch import Batch
from puna.errors import NotSupportedError
from puna.kvcache.contents import CellCounts, Contents, Extents
from puna.kvcache.hadamard import Hadamard
from puna.kvcache.saved import Saved
from puna.ops import Array, Backend, Storage

#: Rotates a layer's cached keys, float32 [cells, heads, head_dim], in place by `offset` positions (negative:
#: towards the beginning).
Shift = Callable[[int, Array, int], None]


@dataclass(frozen=True, slots=True)
class KVView:
    """Storage of a layer's keys and values, and the visible cells of every batch row.

    Row t sees `cells[starts[t] : starts[t] + counts[t]]`, in order of position. Its own cell is
    `cells[places[t]]`, or the last visible one if `places` is None.
    """

    keys: Storage  # [cells, kv_heads, key_dim]
    values: Storage | int  # [cells, kv_heads, value_dim], or value_dim if values are the end of keys
    cells: Array  # int32 [n]
    starts: Array  # int32 [rows]
    counts: Array  # int32 [rows]
    places: Array | None = None  # int32 [rows]
    hadamard: Hadamard | None = None  # applied to the keys, and to be applied to queries (`as_keys`)

    def as_keys(self, ops: Backend, query: Array) -> Array:
        """Return queries [rows, heads, key_dim] transformed as the stored keys are."""
        return query if self.hadamard is None else self.hadamard(ops, query)

    def of(self, rows: Array) -> KVView:
        """Return the view of only `rows` (int64) of the batch."""
        places = None if self.places is None else self.places[rows]
        return replace(self, starts=self.starts[rows], counts=self.counts[rows], places=places)


class LayerCache(Protocol):
    """One layer's part of a cache during a forward pass.

    A layer that shares another layer's keys and values takes the `view` of that layer and puts nothing.
    """

    def put(self, keys: Array, values: Array | None) -> None:
        """Store the batch's keys float32 [rows, kv_heads, key_dim] and values [rows, kv_heads, value_dim].

        `values` is None if they are trailing elements of the keys (`KVShape.values_in_keys`).
        """

    def view(self) -> KVView:
        """Return the cells visible to the batch's rows, including those that `put` just stored.

        Raises `ValueError` when this pass has not called `put` yet.
        """


@runtime_checkable
class IndexedLayerCache(LayerCache, Protocol):
    """The part of a layer that chooses the cells it attends to by keys of another kind."""

    @property
    def indexer(self) -> LayerCache:
        """The layer's keys for choosing, float32 [rows, 1, indexer_dim], which have no values."""


@dataclass(frozen=True, slots=True)
class StateSlots:
    """Slots of recurrent states that a pass reads and writes, for each row of the batch: int32 [rows].

    The rows of row t's sequence begin at row `starts[t]`; the state before them is in slot `sources[t]`. The
    state after row t is written to the unused slot `targets[t]`, or dropped if that is -1.
    """

    starts: Array
    sources: Array
    targets: Array


class LayerState:
    """The states of one recurrent layer during a forward pass.

    A pass reads each sequence's state before its rows, and writes the states after its last row and after
    some of the others. `slots` says where in `states`.
    """

    def __init__(self, states: dict[str, Storage], slots: StateSlots) -> None:
        self.states = states  # [slots, ...] float32, by name
        self.slots = slots


class Cache(ABC):
    """The keys, values and states of several sequences, in and between forward passes.

    A cache may also have the abilities `Saving`, `Picturing` and `Compacting`.

    A forward pass is `start_forward`, then `put` and `view` of `layer(i)` for each layer i. If it fails after
    `start_forward`, `undo_forward` removes its entries. The other operations may be called between passes.

    Operations plan, then act: each `plan_...` method checks everything and either raises, with nothing
    changed, or returns an action that cannot fail, except that the device may be out of memory. Then
    `start_forward` has changed nothing, either, and what the others were to change is forgotten.

    The tensor operations of a pass may be repeated after one `start_forward`, with the same result, so they
    never overwrite anything that `undo_forward` has to restore.
    """

    #: Maximum positions of a sequence; the rotations of some models depend on it (`puna.model.rope`).
    context: int = 0

    @property
    @abstractmethod
    def generation(self) -> int | None:
        """Number of the current storage and buffers; None if passes can never be replayed.

        While it stays the same, passes over two batches with equally many rows differ only in the *values*
        of tensors filled by `start_forward`: the addresses and shapes of the tensors from `layer(i)`, and
        every plain number passed to an operation, are the same. So the operations of one pass can be
        recorded and replayed for the next. A change of storage or buffers increases the number.
        """

    @property
    @abstractmethod
    def layers(self) -> Iterable[int]:
        """Indices of the layers that this cache serves."""

    def start_forward(self, batch: Batch) -> None:
        """Make room for every row of `batch`, whose positions must continue their sequences.

        Raises `CacheFullError` when there are fewer free cells than rows.
        """
        self.plan_forward(batch)()

    def remove(self, sequence: int, begin: int, end: int | None = None) -> None:
        """Forget positions [begin, end) of `sequence`; None means to the end.

        Later positions move down by `end - begin`, and their keys are rotated accordingly. Raises
        `NotSupportedError` when the model cannot do that or positions visible to the next input are forgotten
        already, and `CacheFullError` when cells shared with another sequence must be copied and too few are
        free. `remove(sequence, 0)` always succeeds.
        """
        self.plan_removal(sequence, begin, end)()

    @property
    def max_drafts(self) -> int:
        """Maximum number of a sequence's newest inputs that can be removed after a pass (`Batch.drafts`)."""
        return sys.maxsize

    def start_side_pass(self, layer: int, batch: Batch, *, first: int) -> None:
        """Begin a pass of one `layer`, a prediction head, between passes of the model.

        Rows replace the layer's keys and values at positions that their sequences have already, or are
        appended to them until `end_side_passes`. They see no position before `first` and no forgotten one.
        Raises `CacheFullError` when there are too few free cells.
        """
        raise KeyError(f"layer {layer} has no keys")

    def start_reading(self, layers: Iterable[int], batch: Batch) -> None:
        """Begin a pass of another model that only reads `layers`, between passes of the model.

        Each row sees the positions of its sequence before its own, which need not have a cell.
        """
        raise NotSupportedError(f"a {self.kind} cache cannot be read by another model")

    def end_side_passes(self) -> None:  # noqa: B027 - a cache without such layers has nothing to forget
        """Forget the rows that side passes appended."""

    def can_resume(self, sequence: int, position: int) -> bool:
        """Whether everything visible to an input at `position` is still cached."""
        return position >= 0 and self.resume_point(sequence, position) == position

    @abstractmethod
    def plan_forward(self, batch: Batch) -> Callable[[], None]:
        """Return the action of `start_forward`. Raises its errors; changes nothing."""

    @abstractmethod
    def plan_removal(self, sequence: int, begin: int, end: int | None = None) -> Callable[[], None]:
        """Return the action of `remove`. Raises its errors; changes nothing."""

    @abstractmethod
    def undo_forward(self) -> None:
        """Forget the rows of the last `start_forward`. Entries it dropped as unneeded stay dropped."""

    @abstractmethod
    def layer(self, index: int) -> LayerCache:
        """Return the keys and values of layer `index`. Raises `KeyError` if it has none."""

    def state(self, index: int) -> LayerState:
        """Return the states of recurrent layer `index`. Raises `KeyError` if it has none."""
        raise KeyError(f"layer {index} has no states")

    @abstractmethod
    def room(self, wanted: int) -> int:
        """Return how many rows, at most `wanted`, the next batch may have given the free storage."""

    @abstractmethod
    def length(self, sequence: int) -> int:
        """Return the number of positions of `sequence`, which is the position of its next input."""

    @abstractmethod
    def copy_prefix(self, source: int, target: int, count: int) -> None:
        """Make `target` the first `count` positions of `source`, sharing their data.

        Not every cache still has a whole prefix, so check `can_resume(target, count)` afterwards.
        """

    @abstractmethod
    def resume_point(self, sequence: int, position: int) -> int:
        """Return the last position up to `position` at which `sequence` can continue.

        Everything visible to an input there is still cached; remove the positions from there on first.
        """

    @abstractmethod
    def counts(self) -> list[CellCounts]:
        """Return how full the cache is: one entry, or one for each cache of a wrapper.

        Any thread may call this at any time; during a change the numbers may be inconsistent.
        """

    def limit_cells(self, count: int) -> None:  # noqa: B027, most kinds of cache have other limits
        """Allow at most `count` of the cells to be in use from now on."""

    @property
    def forgets(self) -> bool:
        """Whether old positions are dropped, so that a sequence may not be resumable at earlier positions."""
        return False

    @property
    def resumes_anywhere(self) -> bool:
        """Whether every sequence can be resumed at each of its positions."""
        return not self.forgets

    @property
    def kind(self) -> str:
        """Name of the kind of cache: `causal`, `sliding`, ..."""
        return type(self).__name__.removesuffix("Cache").lower()

    @property
    @abstractmethod
    def allocated_bytes(self) -> int:
        """Bytes of storage with every cell in use."""

    @abstractmethod
    def layer_bytes(self, *, sequences: int, capacity: int, batch: int) -> dict[int, int]:
        """Return the maximum bytes of each layer in a cache of this kind, independent of this one's size.

        Such a cache has `sequences` sequences, `capacity` cells and passes of up to `batch` rows.
        """

    def bookkeeping_bytes(self, *, sequences: int, longest: int, capacity: int) -> int:
        """Return the maximum bytes of bookkeeping in a cache of this kind, on top of `layer_bytes`.

        Such a cache has `capacity` cells and `sequences` sequences of up to `longest` positions.
        """
        return 0

    def is_countable(self, *, sequences: int, longest: int, capacity: int) -> bool:
        """Return whether int32 can index a cache of this kind and these sizes, as it must."""
        return True

    def reserved_bytes(self, *, sequences: int, longest: int, capacity: int) -> int:
        """Return the bytes of address space that a cache of this kind and these sizes reserves.

        At least `layer_bytes` and `bookkeeping_bytes`; more for windows, some of whose cells are never used.
        """
        own = sum(self.layer_bytes(sequences=sequences, capacity=capacity, batch=0).values())
        return own + self.bookkeeping_bytes(sequences=sequences, longest=longest, capacity=capacity)

    @property
    @abstractmethod
    def provided_bytes(self) -> int:
        """Bytes of storage backed by memory so far."""

    @abstractmethod
    def close(self) -> None:
        """Free all memory."""


@runtime_checkable
class Saving(Protocol):
    """The ability to save a sequence and to restore it."""

    def save(self, sequence: int) -> Saved:
        """Return a copy of everything cached of `sequence`."""

    def plan_restore(self, sequence: int, saved: Saved) -> Callable[[], None]:
        """Return an action that replaces `sequence` by the `saved` one.

        Raises `CacheFileError` when that does not fit this cache, and `CacheFullError` when there is no room;
        changes nothing.
        """


@runtime_checkable
class Picturing(Protocol):
    """The ability to show which cells hold which positions."""

    def contents(self) -> list[Contents]:
        """Return the contents of the cache: one entry, or one for each cache of a wrapper."""

    def extents(self) -> list[Extents]:
        """Return where the cells lie, in time that depends on their number but little."""


@runtime_checkable
class Compacting(Protocol):
    """The ability to move used cells together and free the storage behind them."""

    def compact(self, limit: int = 256) -> bool:
        """Move up to `limit` cells so that each sequence's cells are contiguous; return whether more remain.

        Never changes a result. Once all cells are in place, storage behind the last one is freed.
        """


def check_removal(sequence: int, begin: int, end: int | None) -> None:
    """Raise `ValueError` unless [begin, end) is a valid range of positions."""
    if begin < 0 or (end is not None and end < begin):
        raise ValueError(f"cannot remove positions {begin} to {end} of sequence {sequence}")

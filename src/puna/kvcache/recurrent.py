"""The cache of recurrent layers: states of convolutions, state spaces and linear attention.

A state is a row ("slot") of a pool. A pass reads one slot and writes another, so its initial state remains
available: for rollback, as a checkpoint, or shared with another sequence. States are never copied; slots are
reference-counted and reused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from puna.batch import Batch
from puna.errors import CacheFileError, NotSupportedError, shown
from puna.gguf import GGMLType
from puna.kvcache.cache import Cache, LayerState, StateSlots, check_removal
from puna.kvcache.cells import FreeCells
from puna.kvcache.contents import CellCounts, Contents, Extents, Held
from puna.kvcache.saved import Saved
from puna.ops import Backend, MemoryShape, Storage

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Ollama's numbers: checkpoints of a sequence, positions between them, and the first position of one.
MAX_CHECKPOINTS = 24
SPACING = 1664
FIRST = 16


class Checkpoints:
    """Up to `limit` states of one sequence, the latest, by the position after which each was taken."""

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
        """Keep `slot` as the state after `position`, the highest so far; return slots no longer kept."""
        if not self._limit:
            return [slot]
        dropped = [self._slots.pop(next(iter(self._slots)))] if len(self._slots) == self._limit else []
        self._slots[position] = slot
        return dropped

    def slot(self, position: int) -> int | None:
        """Return the slot of the state after `position`, if it is kept."""
        return self._slots.get(position)

    def best(self, target: int) -> int | None:
        """Return the highest position before `target` with a state."""
        return max((position for position in self._slots if position < target), default=None)

    def prune(self, position: int) -> list[int]:
        """Forget states after later positions than `position`; return slots no longer kept."""
        late = [kept for kept in self._slots if kept > position]
        return [self._slots.pop(kept) for kept in late]

    def due(self, position: int, prompt_ends: bool) -> bool:
        """Whether to keep the state after `position`: at intervals, and where a prompt ends.

        From the end of a prompt, the next turn differs if the client sends the answer back in another form
        than generated. Before its last input, the same prompt can be resumed to be answered again.
        """
        if position < FIRST or position <= self.last:
            return False
        return prompt_ends or self.last < 0 or position - self.last >= SPACING


#: Slot of the initial state: all zeros, never written.
_INITIAL = 0
#: Maximum draft tokens of a sequence in a pass: the states before and after each are kept.
_MAX_DRAFTS = 4


class RecurrentCache(Cache):
    """Float32 states of `sequences` sequences; `shapes` gives their names and shapes for each layer.

    `shapes[3] == {"conv": (1024, 3)}` means that layer 3 has one state [1024, 3] per sequence, zero at first.
    A sequence can be resumed at its end, one input before its end if its last pass had several rows, before
    each draft token of its last pass, and at up to `checkpoints` checkpoints. A state cannot forget, so
    removing the middle of a sequence raises `NotSupportedError`: evaluate the sequence again.
    """

    def __init__(
        self,
        ops: Backend,
        shapes: Mapping[int, Mapping[str, tuple[int, ...]]],
        *,
        sequences: int,
        checkpoints: int = MAX_CHECKPOINTS,
    ) -> None:
        self._ops = ops
        self._max_checkpoints = checkpoints
        self._capacity = self._slots_for(sequences)
        self._free = FreeCells(self._capacity)
        self._references = np.zeros(self._capacity, dtype=np.int32)
        self._slot_bytes: dict[int, int] = {}  # by layer
        self._states = {index: self._make_states(index, states) for index, states in shapes.items()}
        self._layers: dict[int, LayerState] = {}  # with the slots of the current pass
        self._free.take(1)
        self._references[_INITIAL] = 1
        self._slots = [_INITIAL] * sequences
        self._references[_INITIAL] += sequences
        self._lengths = [0] * sequences
        # The state one input before the end, if the last pass had several rows: answering a prompt again
        # resumes it before its last input.
        self._previous: list[int | None] = [None] * sequences
        # The states before each draft token at the end, until the next pass.
        self._before_drafts: list[list[int]] = [[] for _ in range(sequences)]
        self._checkpoints = [Checkpoints(checkpoints) for _ in range(sequences)]
        # Slot, length and previous slot before the last pass.
        self._undo: dict[int, tuple[int, int, int | None]] = {}
        self._provided = 0  # slots
        self._generation = 0
        self._moves = 0  # of all states (see `Storage`)
        self._make_row_buffers(64)

    def _slots_for(self, sequences: int) -> int:
        """Return the slots for the initial state and each sequence's checkpoints and states around a pass."""
        return 1 + sequences * (self._max_checkpoints + 3 + _MAX_DRAFTS)

    def _make_states(self, index: int, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Storage]:
        states = {}
        self._slot_bytes[index] = 0
        for name, shape in shapes.items():
            if min(shape, default=0) <= 0:
                raise ValueError(f"a state '{name}' of shape {list(shape)} holds nothing")
            states[name] = (
                self._ops.memories(self._capacity, shape)
                if isinstance(shape, MemoryShape)
                else self._ops.storage(GGMLType.F32, self._capacity, shape)
            )
            self._slot_bytes[index] += states[name].row_bytes
        return states

    @property
    def generation(self) -> int | None:
        return self._generation + self._moves

    @property
    def max_drafts(self) -> int:
        return _MAX_DRAFTS

    @property
    def layers(self) -> Iterable[int]:
        return self._states.keys()

    def positions_kept(self, sequence: int) -> list[int]:
        """Return the positions of a sequence's checkpoints."""
        return self._checkpoints[sequence].positions

    # --- a forward pass ---------------------------------------------------------------------------

    def plan_forward(self, batch: Batch) -> Callable[[], None]:
        runs: list[tuple[int, int, int]] = []  # sequence, first row, row after the last
        positions = batch.positions.tolist()
        for row, sequence in enumerate(batch.sequences.tolist()):
            if runs and runs[-1][0] == sequence:
                expected = positions[row - 1] + 1
                runs[-1] = (sequence, runs[-1][1], row + 1)
            else:
                expected = self._lengths[sequence]
                runs.append((sequence, row, row + 1))
            if positions[row] != expected:
                raise ValueError(
                    f"sequence {sequence} continues at position {expected} without gaps, "
                    f"row {row} of the batch has position {positions[row]}"
                )
        for sequence, begin, end in runs:
            drafts = batch.drafts.get(sequence, 0)
            if drafts and not drafts == end - begin - 1 <= _MAX_DRAFTS:
                most = f"1 other and {_MAX_DRAFTS} drafts at most"
                raise ValueError(f"sequence {sequence} has {end - begin} rows, {drafts} drafts: {most}")
        return partial(self._begin, runs, batch.drafts)

    def _begin(self, runs: list[tuple[int, int, int]], drafts: Mapping[int, int]) -> None:
        self._commit()
        kept = [end - 1 for _, _, end in runs]  # rows whose state is kept
        for sequence, begin, end in runs:
            self._checkpoint(sequence, several=end - begin > 1 and sequence not in drafts)
            kept += range(max(begin, end - 1 - drafts.get(sequence, 1)), end - 1)
        targets = self._free.take(len(kept))
        self._references[targets] = 1
        try:
            self._provide(int(targets[-1]) + 1)
        except BaseException:
            self._release(targets.tolist())
            raise
        self._fill_rows(runs, kept, targets)
        ends, earlier = targets[: len(runs)].tolist(), iter(targets[len(runs) :].tolist())
        for (sequence, begin, end), target in zip(runs, ends, strict=True):
            self._undo[sequence] = self._slots[sequence], self._lengths[sequence], self._previous[sequence]
            before = list(islice(earlier, min(end - begin - 1, drafts.get(sequence, 1))))
            self._before_drafts[sequence] = before if sequence in drafts else []
            self._previous[sequence] = before[0] if before and sequence not in drafts else None
            self._slots[sequence] = target
            self._lengths[sequence] += end - begin

    def _fill_rows(
        self, runs: list[tuple[int, int, int]], kept: list[int], targets: NDArray[np.int32]
    ) -> None:
        """Upload the slots that rows read, and `targets`, where the states after the rows `kept` go."""
        begins = [begin for _, begin, _ in runs]
        ends = np.array([end for _, _, end in runs], dtype=np.int64)
        sources = [self._slots[sequence] for sequence, _, _ in runs]
        rows = int(ends[-1])
        if rows > self._row_buffers.host.shape[1]:
            self._make_row_buffers(2 * rows)
        if rows != self._shown:
            self._show_rows(rows)
        buffers = self._row_buffers.host
        buffers[:2, :rows] = np.repeat([begins, sources], ends - begins, axis=1)
        buffers[2, :rows] = -1
        buffers[2, kept] = targets
        self._row_buffers.upload()

    def _make_row_buffers(self, rows: int) -> None:
        """Allocate the buffers for each row's slots; a new `generation`, as their addresses change."""
        self._generation += 1
        self._row_buffers = self._ops.index_buffer(3, rows)
        self._show_rows(0)

    def _show_rows(self, rows: int) -> None:
        array = self._row_buffers.array
        slots = StateSlots(*(array[i, :rows] for i in range(3)))
        self._layers = {index: LayerState(states, slots) for index, states in self._states.items()}
        self._shown = rows

    def _checkpoint(self, sequence: int, *, several: bool) -> None:
        """Keep a sequence's current states as checkpoints where they are due, before it continues."""
        previous = None if several else self._previous[sequence]
        if previous is not None:
            self._keep(sequence, self._lengths[sequence] - 2, previous, prompt_ends=True)
        self._keep(
            sequence, self._lengths[sequence] - 1, self._slots[sequence], prompt_ends=previous is not None
        )

    def _keep(self, sequence: int, position: int, slot: int, *, prompt_ends: bool) -> None:
        kept = self._checkpoints[sequence]
        if kept.due(position, prompt_ends):
            self._references[slot] += 1
            self._release(kept.record(position, slot))

    def _commit(self) -> None:
        """Release the states before the last pass and its drafts, which can no longer be undone."""
        for slot, _, previous in self._undo.values():
            self._release([slot, previous])
        for sequence in self._undo:
            self._forget_drafts(sequence)
        self._undo = {}

    def _recent(self, sequence: int) -> list[int]:
        """Return the slots of the states before each of the last inputs that are kept."""
        previous = self._previous[sequence]
        return self._before_drafts[sequence] or ([] if previous is None else [previous])

    def _forget_drafts(self, sequence: int) -> None:
        self._release(self._before_drafts[sequence])
        self._before_drafts[sequence] = []

    def undo_forward(self) -> None:
        for sequence, before in self._undo.items():
            self._forget_drafts(sequence)
            self._release([self._slots[sequence], self._previous[sequence]])
            self._slots[sequence], self._lengths[sequence], self._previous[sequence] = before
        self._undo = {}

    def _release(self, slots: Iterable[int | None]) -> None:
        for slot in slots:  # only a few
            if slot is None:
                continue
            self._references[slot] -= 1
            if not self._references[slot]:
                self._free.give(np.array([slot], dtype=np.int32))

    def layer(self, index: int) -> NoReturn:
        raise KeyError(f"layer {index} is recurrent and has no keys; see `state`")

    def state(self, index: int) -> LayerState:
        return self._layers[index]

    @property
    def resumes_anywhere(self) -> bool:
        return False

    def room(self, wanted: int) -> int:
        return wanted  # slots suffice for all states a sequence may keep

    def length(self, sequence: int) -> int:
        return self._lengths[sequence]

    # --- between passes ---------------------------------------------------------------------------

    def copy_prefix(self, source: int, target: int, count: int) -> None:
        end = self.resume_point(source, count)
        slot = self._slot_at(source, end)
        kept = [p for p in self._checkpoints[source].positions if p < end]
        slots = [self._slot_at(source, position + 1) for position in kept]
        for held in [slot, *slots]:
            self._references[held] += 1
        self._truncate(target, 0)
        self._release([self._slots[target]])  # the initial state after truncation
        self._slots[target], self._lengths[target] = slot, end
        for position, held in zip(kept, slots, strict=True):
            self._checkpoints[target].record(position, held)

    def _slot_at(self, sequence: int, length: int) -> int:
        """Return the slot of the state after `length` inputs, which must be kept."""
        recent = [*self._recent(sequence), self._slots[sequence]]
        if 0 <= self._lengths[sequence] - length < len(recent):
            return recent[length - self._lengths[sequence] - 1]
        slot = self._checkpoints[sequence].slot(length - 1) if length else _INITIAL
        assert slot is not None
        return slot

    def plan_removal(self, sequence: int, begin: int, end: int | None = None) -> Callable[[], None]:
        length = self._lengths[sequence]
        check_removal(sequence, begin, end)
        if begin >= length or end == begin:
            begin = length
        elif end is not None and end < length:
            raise NotSupportedError(
                f"recurrent layers cannot forget positions {begin} to {end - 1} of sequence {sequence} "
                "and keep what came after; evaluate it again"
            )
        elif self.resume_point(sequence, begin) != begin:
            raise NotSupportedError(
                f"recurrent layers kept no state of sequence {sequence} at position {begin}, the last "
                f"before it is at {self.resume_point(sequence, begin)}; evaluate from there"
            )
        return partial(self._truncate, sequence, begin)

    def _truncate(self, sequence: int, length: int) -> None:
        if length == self._lengths[sequence]:
            return
        slot = self._slot_at(sequence, length)
        self._references[slot] += 1
        late = self._checkpoints[sequence].prune(length - 1)
        self._release([self._slots[sequence], self._previous[sequence], *late])
        self._forget_drafts(sequence)
        self._slots[sequence], self._lengths[sequence], self._previous[sequence] = slot, length, None

    def resume_point(self, sequence: int, position: int) -> int:
        if position >= self._lengths[sequence]:
            return self._lengths[sequence]
        if position >= self._lengths[sequence] - len(self._recent(sequence)):
            return position
        best = self._checkpoints[sequence].best(position)
        return 0 if best is None else best + 1

    def contents(self) -> list[Contents]:
        sequences = [self._held(sequence) for sequence in range(len(self._slots))]
        return [Contents(self.kind, list(self.layers), self._capacity - 1, self.provided_bytes, sequences)]

    def extents(self) -> list[Extents]:
        [counts] = self.counts()
        states = (self._held(sequence) for sequence in range(len(self._slots)))
        held = ((np.array(each.cells, np.int64), np.array(each.positions, np.int64)) for each in states)
        return [Extents.of(counts, self.layers, self.provided_bytes, held)]

    def counts(self) -> list[CellCounts]:
        states = self._references[_INITIAL + 1 :]
        used, shared = int(np.count_nonzero(states)), int(np.count_nonzero(states > 1))
        return [CellCounts(self.kind, len(states), used, shared)]

    def _held(self, sequence: int) -> Held:
        """Return a sequence's states: checkpoints, those before the last pass, the previous and current."""
        kept = {self._slot_at(sequence, length): length for length in self._kept_lengths(sequence)}
        if sequence in self._undo:
            slot, length, previous = self._undo[sequence]
            kept.setdefault(slot, length)
            if previous is not None:
                kept.setdefault(previous, length - 1)
        kept.pop(_INITIAL, None)  # shared by all
        slots = sorted(kept, key=kept.__getitem__)
        return Held([slot - 1 for slot in slots], [kept[slot] - 1 for slot in slots])

    def _kept_lengths(self, sequence: int) -> list[int]:
        """Return the lengths at which states are kept: checkpoints, one before the end, and the end."""
        lengths = [position + 1 for position in self._checkpoints[sequence].positions]
        if self._previous[sequence] is not None:
            lengths.append(self._lengths[sequence] - 1)
        return [*lengths, self._lengths[sequence]]

    def save(self, sequence: int) -> Saved:
        """Return the checkpoints, the state before the last input if kept, and last the current state."""
        lengths = self._kept_lengths(sequence)
        slots = np.array([self._slot_at(sequence, length) for length in lengths])
        arrays = {name: states.read(slots) for name, states in self._named_states()}
        return Saved(arrays, {"lengths": lengths, "length": lengths[-1:]})

    def _named_states(self) -> Iterable[tuple[str, Storage]]:
        for index, named in self._states.items():
            for name, states in named.items():
                yield f"{index}.{name}", states

    def plan_restore(self, sequence: int, saved: Saved) -> Callable[[], None]:
        lengths = saved.fact("lengths")
        if lengths[-1:] != [saved.length] or lengths != sorted(lengths):
            raise CacheFileError(f"there cannot be states after {shown(lengths)} inputs; the file is damaged")
        for name, states in self._named_states():
            saved.check(name, states, len(lengths))
        return partial(self._restore, sequence, lengths, saved)

    def _restore(self, sequence: int, lengths: list[int], saved: Saved) -> None:
        self._truncate(sequence, 0)
        # The last state of each length; of these only the last ones if this cache keeps fewer checkpoints.
        kept = sorted({length: index for index, length in enumerate(lengths)}.values())
        kept = kept[-self._max_checkpoints - 1 :]
        slots = self._free.take(len(kept))
        try:
            self._provide(int(slots[-1]) + 1)
            for name, states in self._named_states():
                states.write(slots, saved.arrays[name][kept])
        except BaseException:
            self._free.give(slots)
            raise
        self._references[slots] = 1
        self._release([self._slots[sequence]])  # the initial state after truncation
        for index, slot in zip(kept[:-1], slots[:-1].tolist(), strict=True):
            self._checkpoints[sequence].record(lengths[index] - 1, slot)
        self._slots[sequence], self._lengths[sequence] = int(slots[-1]), lengths[-1]

    def _provide(self, slots: int) -> None:
        """Provide memory for the first `slots` slots. Raises `MemoryError`."""
        if slots <= self._provided:
            return
        try:
            for _, states in self._named_states():
                states.provide(slots)
        finally:  # some may have moved
            self._count_moves()
        self._provided = slots

    def _count_moves(self) -> None:
        self._moves = sum(states.moves for _, states in self._named_states())

    def layer_bytes(self, *, sequences: int, capacity: int, batch: int) -> dict[int, int]:
        return {index: self._slots_for(sequences) * size for index, size in self._slot_bytes.items()}

    @property
    def allocated_bytes(self) -> int:
        return self._capacity * sum(self._slot_bytes.values())

    @property
    def provided_bytes(self) -> int:
        return self._provided * sum(self._slot_bytes.values())

    def compact(self, limit: int = 256) -> bool:
        used = self._free.highest_used()
        for _, states in self._named_states():
            states.give_back(used, self._provided)
        self._count_moves()
        self._provided = min(self._provided, used)
        return False

    def close(self) -> None:
        for _, states in self._named_states():
            states.close()
        self._layers.clear()
        self._states.clear()
        self._slot_bytes.clear()

    def check(self) -> None:
        """Raise `AssertionError` if the bookkeeping is inconsistent. For tests."""
        held = [_INITIAL, *self._slots, *(slot for slot, _, _ in self._undo.values())]
        held += [slot for slot in self._previous if slot is not None]
        held += [previous for _, _, previous in self._undo.values() if previous is not None]
        held += [slot for slots in self._before_drafts for slot in slots]
        for kept in self._checkpoints:
            held += [slot for position in kept.positions if (slot := kept.slot(position)) is not None]
        if not np.array_equal(np.bincount(held, minlength=self._capacity), self._references):
            raise AssertionError("reference counts differ from the slots held")
        if not np.array_equal(self._references == 0, self._free.is_free()):
            raise AssertionError("the free list differs from the slots that no sequence holds")

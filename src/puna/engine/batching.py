"""Batches of the inputs of several sequences, and groups of inputs that must not be split."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from puna.batch import Batch, ImagePart, Input, ObservedRows
from puna.engine.sequence import Generation, Sequence
from puna.errors import ContextLengthError
from puna.grammar.compiler.client import RemoteConstraint

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Rows of a sequence per batch when logits are wanted of all of them: logits are large.
MAX_SCORED: Final = 64


@dataclass
class Draft:
    """Tokens that may follow a sequence's newest one."""

    source: int = 0  # see `puna.engine.drafting.speculation`
    tokens: list[int] = field(default_factory=list)
    known: bool = False  # from an answer begun elsewhere, so that they are certainly right


@dataclass
class BatchSlice:
    """One sequence's share of a batch: its next `count` inputs, then drafted tokens."""

    sequence: Sequence
    count: int
    draft: Draft = field(default_factory=Draft)
    begin: int = field(init=False)  # position of the first input
    wanted: range = field(init=False)  # the inputs whose logits (or hidden states) are wanted
    complete: bool = field(init=False)  # no input is left, so a token is sampled after the last one
    decoding: bool = field(init=False)  # the input is the newest token

    def __post_init__(self) -> None:
        self.begin = self.sequence.evaluated
        self.decoding = self.sequence.decoding
        self.wanted = self.sequence.wanted(self.count)
        self.complete = self.count == self.sequence.waiting

    @property
    def rows(self) -> int:
        """Rows of the batch, drafts included."""
        return self.count + len(self.draft.tokens)

    @property
    def outputs(self) -> range:
        """The rows of this slice whose logits (or hidden states) are wanted."""
        return range(self.wanted.start, self.wanted.stop + len(self.draft.tokens))


@dataclass(frozen=True)
class StepLoad:
    """The rows of a step by their kind."""

    decoding: int  # sequences that generate, one row each
    prompt: int  # and tokens of answers begun elsewhere, which are read like a prompt
    drafted: int

    @classmethod
    def of(cls, slices: Items[BatchSlice]) -> StepLoad:
        decoding = sum(batch_slice.decoding for batch_slice in slices)
        known = sum(len(batch_slice.draft.tokens) for batch_slice in slices if batch_slice.draft.known)
        return cls(
            decoding=decoding,
            prompt=sum(batch_slice.count for batch_slice in slices) - decoding + known,
            drafted=sum(len(batch_slice.draft.tokens) for batch_slice in slices) - known,
        )


def plan(
    sequences: Items[Sequence], budget: int, pauses: Mapping[Sequence, int] | None = None
) -> list[BatchSlice]:
    """Return slices with one input of every decoding sequence, and at most `budget` inputs of prompts.

    Among prompts of the same priority, the oldest gets at least half of the budget, so that it finishes
    whatever else arrives; the rest goes to the shortest ones, which need not wait for long ones. A prompt
    pauses after `pauses[sequence]` inputs. Inputs that must stay together may exceed the budget.
    """
    streams, prompts = list[BatchSlice](), list[Sequence]()
    for sequence in sequences:
        if sequence.decoding:
            streams.append(BatchSlice(sequence, 1))
        elif sequence.ready:
            prompts.append(sequence)
    if not prompts or budget < 1:
        return streams
    prompts.sort(key=lambda sequence: sequence.rank)
    slices: list[BatchSlice] = []
    for _, equals in groupby(prompts, lambda sequence: sequence.rank[0]):
        oldest, *others = equals
        reserved = min(oldest.ready, -(-budget // 2))
        budget -= reserved
        for sequence in sorted(others, key=lambda sequence: sequence.waiting):
            if count := _fitting(sequence, budget, pauses):
                slices.append(BatchSlice(sequence, count))
                budget -= count
        budget += reserved
        count = _fitting(oldest, budget, pauses)
        if not count and oldest is prompts[0]:
            count = first_group(oldest.inputs, oldest.evaluated)
            count = count if count <= oldest.ready else 0
        if count:
            slices.append(BatchSlice(oldest, count))
            budget -= count
    return streams + slices


def _fitting(sequence: Sequence, room: int, pauses: Mapping[Sequence, int] | None) -> int:
    """Return how many inputs of a prompt go into `room` rows of a batch."""
    begin = sequence.evaluated
    room = min(room, sequence.ready)
    pause = pauses.get(sequence, 0) if pauses else 0
    if pause > begin:
        room = min(room, pause - begin)
    if sequence.scoring:
        room = min(room, MAX_SCORED)
    return whole_groups(sequence.inputs, begin, room) if sequence.grouped else room


def constraints(slices: Items[BatchSlice]) -> list[tuple[RemoteConstraint, list[int]]]:
    """Return the format of each answer that a batch continues, with the tokens drafted for that answer."""
    return [
        (batch_slice.sequence.constraint, batch_slice.draft.tokens)
        for batch_slice in slices
        if batch_slice.complete
        and isinstance(batch_slice.sequence, Generation)
        and batch_slice.sequence.constraint is not None
    ]


def assemble(slices: Items[BatchSlice]) -> Batch:
    """Return the batch made of `slices`, their rows one after another."""
    inputs: list[Input] = []
    positions: list[int] = []
    sequences: list[int] = []
    outputs: list[int] = []
    drafts: dict[int, int] = {}
    observed: list[ObservedRows] = []
    for batch_slice in slices:
        entry = batch_slice.sequence.entry
        assert entry is not None, "only running sequences are planned"
        begin = batch_slice.begin
        observed += _observed(batch_slice, len(inputs), len(outputs))
        outputs += [len(inputs) + row for row in batch_slice.outputs]
        inputs += batch_slice.sequence.inputs[begin : begin + batch_slice.count]
        inputs += [Input(token) for token in batch_slice.draft.tokens]
        if batch_slice.draft.tokens:
            drafts[entry.row] = len(batch_slice.draft.tokens)
        positions += range(begin, begin + batch_slice.rows)
        sequences += [entry.row] * batch_slice.rows
    return Batch(
        tokens=np.array([item.token for item in inputs], np.int32),
        positions=np.array(positions, np.int32),
        sequences=np.array(sequences, np.int32),
        outputs=None if len(outputs) == len(inputs) else np.array(outputs, np.int64),
        payloads=_payloads(inputs),
        spans=[(row, row + item.span) for row, item in enumerate(inputs) if item.span > 1],
        drafts=drafts,
        places=_places(slices),
        observed=observed,
    )


def _observed(batch_slice: BatchSlice, row: int, output: int) -> list[ObservedRows]:
    """Return the observed rows of a slice whose rows begin at `row`, and its wanted rows at `output`."""
    observer = batch_slice.sequence.observation
    if observer is None or not (wanted := batch_slice.outputs):
        return []
    return [
        ObservedRows(
            observer,
            batch_slice.begin + wanted.start,
            rows=slice(row + wanted.start, row + wanted.stop),
            outputs=slice(output, output + len(wanted)),
        )
    ]


def _payloads(inputs: Items[Input]) -> list[tuple[int, Any]]:
    """Return (row, payload) of all inputs that have one; neighbouring rows of an image become one part."""
    payloads: list[tuple[int, Any]] = []
    for row, item in enumerate(inputs):
        if (part := item.payload) is None:
            continue
        if isinstance(part, ImagePart) and payloads:
            first, before = payloads[-1]
            if (
                isinstance(before, ImagePart)
                and before.image is part.image
                and before.end == part.begin
                and first + len(before) == row
            ):
                payloads[-1] = first, ImagePart(part.image, before.begin, part.end)
                continue
        payloads.append((row, part))
    return payloads


def _places(slices: Items[BatchSlice]) -> NDArray[np.int32] | None:
    """Return the positions for rotation, [rows] or [rows, axes]; None if they are the cache's positions."""
    if not any(batch_slice.sequence.places for batch_slice in slices):
        return None
    parts = [batch_slice.sequence.placed(batch_slice.begin, batch_slice.rows) for batch_slice in slices]
    if all(part.ndim == 1 for part in parts):
        return np.concatenate(parts)
    axes = max(part.shape[1] for part in parts if part.ndim == 2)
    return np.concatenate([part if part.ndim == 2 else part[:, None].repeat(axes, axis=1) for part in parts])


# --- groups ------------------------------------------------------------------------------------------


def whole_groups(inputs: Items[Input], begin: int, room: int) -> int:
    """Return how many inputs from `begin` on fit into `room` without splitting a group of one batch."""
    fitting = end = begin
    for index in range(begin, min(len(inputs), begin + room)):
        end = max(end, index + 1 + inputs[index].same_batch)
        if end > begin + room:
            break
        if end == index + 1:
            fitting = end
    return fitting - begin


def first_group(inputs: Items[Input], begin: int) -> int:
    """Return how many inputs from `begin` on must be in the same batch, at least one."""
    end, index = begin + 1, begin
    while index < min(end, len(inputs)):
        end = max(end, index + 1 + inputs[index].same_batch)
        index += 1
    return min(end, len(inputs)) - begin


def group_begin(inputs: Items[Input], position: int) -> int:
    """Return the last index at or before `position` that does not split a group of one batch."""
    begin = end = 0
    for index in range(position):
        if index >= end:
            begin = index
        end = max(end, index + 1 + inputs[index].same_batch)
    return position if end <= position else begin


def truncate(prompt: list[Input], context: int, keep: int) -> tuple[list[Input], int]:
    """Return `prompt` cut to at most `context` inputs, and the number of dropped inputs.

    The first `keep` inputs and the tail stay. Raises `ContextLengthError` when a group of inputs would be cut
    after the first `keep`, or nothing would be left after them.
    """
    excess = len(prompt) - context
    if excess <= 0:
        return prompt, 0
    resume = _group_end(prompt, keep + excess)
    if _group_end(prompt, keep) > keep:
        raise ContextLengthError("the prompt is too long and cannot be cut: an image lies across num_keep")
    if resume >= len(prompt):
        raise ContextLengthError("the prompt is too long and nothing would be left of it after cutting")
    return [*prompt[:keep], *prompt[resume:]], resume - keep


def shift_count(inputs: Items[Input], context: int, keep: int) -> int:
    """Return how many inputs after the first `keep` to drop to free half of the context behind them."""
    wanted = max((context - keep) // 2, 1)
    count = wanted - (context - len(inputs))
    if count <= 0:
        return 0
    return min(_group_end(inputs, keep + count), len(inputs)) - keep


def _group_end(inputs: Items[Input], position: int) -> int:
    """Return the first index at or after `position` that is not inside a group begun before it."""
    end = 0
    for index in range(len(inputs)):
        if index >= position and index >= end:
            break
        if inputs[index].group:
            end = max(end, index + inputs[index].group + 1)
    return max(position, end)

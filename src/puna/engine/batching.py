"""Cutting the work of all sequences into batches."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np
import torch

from puna.engine.drafts import Draft
from puna.engine.sequence import Sequence
from puna.model.input import Batch, Input

#: With logits of every row, a batch has at most so many rows of a prompt: logits are large.
_SCORED_TOGETHER = 64


@dataclass
class BatchSlice:
    """What one sequence contributes to a batch: its next `count` waiting inputs, and what may come then."""

    sequence: Sequence
    count: int
    draft: Draft = field(default_factory=Draft)

    @property
    def rows(self) -> int:
        """Of the batch."""
        return self.count + len(self.draft.tokens)

    @property
    def complete(self) -> bool:
        """Whether nothing is left waiting, so that the last row is to be sampled."""
        return self.count == self.sequence.waiting

    @property
    def outputs(self) -> range:
        """The rows of this share of which the model's answer is wanted."""
        wanted = self.sequence.wanted(self.count)
        return range(wanted.start, wanted.stop + len(self.draft.tokens))


def plan(sequences: Items[Sequence], budget: int, pauses: Mapping[Sequence, int] | None = None) -> list[BatchSlice]:
    """One input of every sequence that is generating, and at most `budget` inputs of prompts.

    Of the prompts of one priority, the one that has waited longest gets at least half of the budget, so that
    it comes to an end whatever else comes in; the rest goes to the shortest ones, which need not wait for
    long ones. `halts` are numbers of inputs after which a prompt is to pause. Inputs that must stay together
    may exceed the budget when it is their turn.
    """
    streams = [BatchSlice(sequence, 1) for sequence in sequences if sequence.decoding]
    prompts = [sequence for sequence in sequences if sequence.waiting and not sequence.decoding]
    prompts.sort(key=lambda sequence: sequence.rank)
    if not prompts or budget < 1:
        return streams
    slices: list[BatchSlice] = []
    for _, equals in groupby(prompts, lambda sequence: sequence.rank[0]):
        oldest, *others = equals
        reserved = min(oldest.waiting, -(-budget // 2))
        budget -= reserved
        for sequence in sorted(others, key=lambda sequence: sequence.waiting):
            if count := _fitting(sequence, budget, pauses):
                slices.append(BatchSlice(sequence, count))
                budget -= count
        budget += reserved
        count = _fitting(oldest, budget, pauses)
        if not count and oldest is prompts[0]:
            count = first_group(oldest.inputs, oldest.evaluated)
        if count:
            slices.append(BatchSlice(oldest, count))
            budget -= count
    return streams + slices


def _fitting(sequence: Sequence, room: int, pauses: Mapping[Sequence, int] | None) -> int:
    """How many of a prompt's waiting inputs may go into `room` rows of a batch."""
    begin = sequence.evaluated
    room = min(room, sequence.waiting)
    pause = pauses.get(sequence, 0) if pauses else 0
    if pause > begin:
        room = min(room, pause - begin)
    if sequence.scoring:
        room = min(room, _SCORED_TOGETHER)
    return whole_groups(sequence.inputs, begin, room) if sequence.grouped else room


def whole_groups(inputs: Items[Input], begin: int, room: int) -> int:
    """How many inputs from `begin` on fit into `room` without tearing apart those that must stay together."""
    fitting = end = begin
    for index in range(begin, min(len(inputs), begin + room)):
        end = max(end, index + 1 + inputs[index].same_batch)
        if end > begin + room:
            break
        if end == index + 1:
            fitting = end
    return fitting - begin


def first_group(inputs: Items[Input], begin: int) -> int:
    """How many inputs from `begin` on must stay together, at least one."""
    end, index = begin + 1, begin
    while index < min(end, len(inputs)):
        end = max(end, index + 1 + inputs[index].same_batch)
        index += 1
    return min(end, len(inputs)) - begin


def assemble(slices: Items[BatchSlice]) -> Batch:
    """The batch of `shares`: their inputs one after another."""
    inputs: list[Input] = []
    positions: list[int] = []
    sequences: list[int] = []
    outputs: list[int] = []
    for batch_slice in slices:
        entry = batch_slice.sequence.entry
        assert entry is not None, "only running sequences are planned"
        begin = entry.evaluated
        outputs += [len(inputs) + row for row in batch_slice.outputs]
        inputs += batch_slice.sequence.inputs[begin : begin + batch_slice.count]
        inputs += [Input(token) for token in batch_slice.draft.tokens]
        positions += range(begin, begin + batch_slice.rows)
        sequences += [entry.row] * batch_slice.rows
    return Batch(
        tokens=torch.from_numpy(np.array([item.token for item in inputs], np.int32)),
        positions=torch.from_numpy(np.array(positions, np.int32)),
        sequences=np.array(sequences, np.int32),
        outputs=None if len(outputs) == len(inputs) else torch.tensor(outputs, dtype=torch.int64),
        payloads=[(row, item.payload) for row, item in enumerate(inputs) if item.payload is not None],
        spans=[(row, row + item.span) for row, item in enumerate(inputs) if item.span > 1],
    )

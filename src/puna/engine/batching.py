"""Cutting the work of all sequences into batches."""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass

import numpy as np
import torch

from puna.engine.sequence import Sequence
from puna.model.input import Batch, Input


@dataclass
class Share:
    """What one sequence contributes to a batch: its next `count` waiting inputs."""

    sequence: Sequence
    count: int

    @property
    def complete(self) -> bool:
        """Whether nothing is left waiting, so that the last row is to be sampled."""
        return self.count == len(self.sequence.waiting)


def plan(sequences: Items[Sequence], budget: int, first: int = 0) -> list[Share]:
    """Shares of at most `budget` inputs in total.

    Sequences that are generating come first with their one token each, so that a long prompt never
    stalls them; what is left goes to prompts, beginning with number `first` and going round, each
    getting an equal part so that a short prompt need not wait for a long one. Only inputs that must
    stay together and alone exceed the budget may exceed it, in a batch of their own.
    """
    shares = [Share(sequence, 1) for sequence in sequences if sequence.decoding][:budget]
    if len(shares) == len(sequences):
        return shares
    budget -= len(shares)
    turned = [*sequences[first:], *sequences[:first]]
    prompts = [sequence for sequence in turned if sequence.waiting and not sequence.decoding][:budget]
    prompts.sort(key=lambda sequence: len(sequence.waiting))  # what a short one leaves, longer ones share
    for position, sequence in enumerate(prompts):
        fair = -(-budget // (len(prompts) - position))
        count = whole_groups(sequence.waiting, fair) or whole_groups(sequence.waiting, budget)
        if count:
            shares.append(Share(sequence, count))
            budget -= count
    if prompts and not shares:
        return [Share(prompts[0], first_group(prompts[0].waiting))]
    return shares


def whole_groups(inputs: Items[Input], room: int) -> int:
    """How many leading inputs fit into `room` without tearing apart inputs that must stay together."""
    fitting = end = 0
    for index in range(min(len(inputs), room)):
        end = max(end, index + 1 + inputs[index].same_batch)
        if end > room:
            break
        if end == index + 1:
            fitting = end
    return fitting


def first_group(inputs: Items[Input]) -> int:
    """How many leading inputs must stay together, at least one."""
    end, index = 1, 0
    while index < min(end, len(inputs)):
        end = max(end, index + 1 + inputs[index].same_batch)
        index += 1
    return min(end, len(inputs))


def assemble(shares: Items[Share]) -> Batch:
    """The batch of `shares`: their inputs one after another, logits wanted where a share is complete."""
    inputs: list[Input] = []
    positions: list[int] = []
    sequences: list[int] = []
    outputs: list[int] = []
    for share in shares:
        slot = share.sequence.slot
        assert slot is not None, "only sequences with a slot are planned"
        begin = len(slot.inputs)
        inputs += share.sequence.waiting[: share.count]
        positions += range(begin, begin + share.count)
        sequences += [slot.index] * share.count
        if share.complete:
            outputs.append(len(inputs) - 1)
    return Batch(
        tokens=torch.from_numpy(np.array([item.token for item in inputs], np.int32)),
        positions=torch.from_numpy(np.array(positions, np.int32)),
        sequences=np.array(sequences, np.int32),
        outputs=None if len(outputs) == len(inputs) else torch.tensor(outputs, dtype=torch.int64),
        payloads=[(row, item.payload) for row, item in enumerate(inputs) if item.payload is not None],
    )

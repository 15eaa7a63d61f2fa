"""Making a sequence fit its context: cutting a prompt, and dropping old inputs while generating.

Inputs that belong together (an image and its markers) are never torn apart.
"""

from __future__ import annotations

from collections.abc import Sequence as Items

from puna.batch import Input
from puna.errors import ContextLengthError


def truncate(prompt: list[Input], context: int, keep: int) -> tuple[list[Input], int]:
    """`prompt` cut to at most `context` inputs, and how many were dropped.

    The first `keep` stay and the tail does; what lies between goes. Raises `ContextLengthError` when
    a group of inputs that belong together begins among the kept ones and would be cut, or nothing
    would be left after them.
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
    """How many inputs after the first `keep` to drop so that half of what follows them becomes free."""
    wanted = max((context - keep) // 2, 1)
    count = wanted - (context - len(inputs))
    if count <= 0:
        return 0
    return min(_group_end(inputs, keep + count), len(inputs)) - keep


def _group_end(inputs: Items[Input], position: int) -> int:
    """The first index at or after `position` that is not inside a group begun before it."""
    end = 0
    for index in range(len(inputs)):
        if index >= position and index >= end:
            break
        if inputs[index].group:
            end = max(end, index + inputs[index].group + 1)
    return max(position, end)


def group_begin(inputs: Items[Input], position: int) -> int:
    """The last index at or before `position` that is not inside a group."""
    begin = end = 0
    for index in range(position):
        if index >= end:
            begin = index
        end = max(end, index + 1 + inputs[index].same_batch)
    return position if end <= position else begin

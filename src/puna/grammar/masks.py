"""Which tokens the formats of a batch's answers allow: found out while the model computes the logits."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property

import numpy as np
from llguidance import LLExecutor
from numpy.typing import NDArray

from puna.grammar.constraint import Constraint

#: Threads that compute masks of several answers. They share the processors with the kernels.
_MOST_THREADS = 4


class Masks:
    """Computes masks on threads of its own, which are made when they are first needed."""

    def __init__(self) -> None:
        self._buffer = np.empty(0, np.int32)

    @contextlib.contextmanager
    def beside(self, wanted: Sequence[tuple[Constraint, list[int]]]) -> Iterator[None]:
        """While the block runs, prepare each constraint for its next token and those after drafted ones."""
        answering = [(constraint, drafts) for constraint, drafts in wanted if constraint.answering]
        if not answering:
            yield
            return
        work = self._thread.submit(self._compute, answering)
        try:
            yield
        finally:
            masks = work.result()
        begin = 0
        for constraint, drafts in answering:
            end = begin + 1 + len(drafts)
            constraint.prepare(masks[begin:end])
            begin = end

    def close(self) -> None:
        """End the threads."""
        if "_thread" in self.__dict__:
            self._thread.shutdown()

    @cached_property
    def _thread(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(1, thread_name_prefix="puna-masks")

    @cached_property
    def _executor(self) -> LLExecutor:
        return LLExecutor(_MOST_THREADS)

    def _compute(self, wanted: Sequence[tuple[Constraint, list[int]]]) -> NDArray[np.int32]:
        """The masks [rows, words] of all `wanted`: one for the next token, and one after each draft."""
        words = wanted[0][0].words
        rows = sum(1 + len(drafts) for _, drafts in wanted)
        if self._buffer.size < rows * words:
            self._buffer = np.empty(rows * words, np.int32)
        masks = self._buffer[: rows * words].reshape(rows, words)
        plain, drafted, row = [], [], 0
        for constraint, drafts in wanted:
            if drafts:
                drafted.append((constraint.matcher, row, drafts))
            else:
                plain.append((constraint.matcher, row))
            row += 1 + len(drafts)
        place = masks.ctypes.data, words * masks.itemsize, rows
        if plain:
            self._executor.unsafe_compute_mask_ptr(plain, *place)
        if drafted:
            self._executor.unsafe_compute_mask_ptr_with_draft_token(drafted, *place)
        return masks

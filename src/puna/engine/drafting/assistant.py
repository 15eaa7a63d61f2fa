"""Drafts by an assistant, a small model that continues from the hidden states of the one it drafts for.

An assistant has no keys and values of its own: its layers attend to those that the target has cached. So all
that a draft needs is the state that the newest token was drawn from.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence as Items
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Protocol, runtime_checkable

import numpy as np

from puna.batch import Batch
from puna.engine.drafting.likeliest import likeliest_tokens
from puna.engine.drafting.payoff import Recent

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from puna.batch import BatchArrays, KeptStates
    from puna.engine.batching import BatchSlice
    from puna.engine.sequence import Sequence
    from puna.kvcache.cache import Cache
    from puna.model.load import LoadedModel
    from puna.ops import Array, Backend

log = logging.getLogger("puna.engine")


@runtime_checkable
class AssistantModel(Protocol):
    """A model that drafts from the states and keys of another; see `puna.model.models.gemma4_assistant`."""

    @property
    def ops(self) -> Backend: ...
    @property
    def state_size(self) -> int: ...
    @property
    def lenders(self) -> Items[int]: ...

    def draft(self, hidden: Array, batch: BatchArrays, cache: Cache) -> tuple[Array, Array]: ...


@dataclass(frozen=True)
class _Newest:
    """Hidden states [rows, hidden] of a sequence's last positions, from `begin` on, of one pass.

    Positions are counted as if the context had never been shifted.
    """

    begin: int
    states: NDArray[np.float32]


class Assistant:
    """Greedy drafts of the assistant `loaded` for all sequences of `target` at once.

    The model is attached to its target. `kept` has the states of the wanted rows of the target's last pass,
    and `cache` its keys and values.
    """

    mode: ClassVar[str] = "draft"

    def __init__(
        self, loaded: LoadedModel, target: LoadedModel, cache: Cache, kept: KeptStates, *, context: int
    ) -> None:
        assert isinstance(loaded.model, AssistantModel)
        self.context = context
        self._model = loaded.model
        self._cache = cache
        self._kept = kept
        self._vocab_size = target.tokenizer.vocab_size
        self._newest: dict[Sequence, _Newest] = {}
        self._broken = False
        self._weight = loaded.weight_bytes / max(target.weight_bytes, 1)
        self._pass_s = Recent()

    @property
    def provided_bytes(self) -> int:
        """Memory it takes beside its weights."""
        return 0

    def pass_cost(self, step_s: float) -> float:
        """Return the cost of drafting one more token, as a fraction of the target's step."""
        return self._pass_s.value / step_s if self._pass_s.value else self._weight

    def catch_up_cost(self, sequence: Sequence, step_s: float) -> float:
        """Return 0: nothing precedes a draft."""
        return 0.0

    def observe(self, slices: Items[BatchSlice], rows: int) -> None:
        """Take the states of the wanted rows of `slices`."""
        wanted = sum(len(batch_slice.outputs) for batch_slice in slices)
        drafting = [one.sequence.drafting is not None and one.sequence.drafting.generated for one in slices]
        if self._broken or wanted > self._kept.rows or not any(drafting):
            return
        states, end = self._kept.read(wanted), 0
        for batch_slice, drafts in zip(slices, drafting, strict=True):
            sequence, outputs = batch_slice.sequence, batch_slice.outputs
            begin, end = end, end + len(outputs)
            if drafts and batch_slice.complete:
                first = batch_slice.begin + sequence.shifted + outputs.start
                self._newest[sequence] = _Newest(first, states[begin:end])

    def leave(self, sequence: Sequence) -> None:
        """Forget a sequence that is about to end."""
        self._newest.pop(sequence, None)

    def release_finished(self) -> None:
        """Forget sequences that no longer run."""
        for sequence in [sequence for sequence in self._newest if sequence.entry is None]:
            del self._newest[sequence]

    def draft(self, wanted: Items[tuple[Sequence, int]]) -> list[list[int]]:
        """Return up to the given number of tokens after each sequence; none if a state is missing."""
        drafts: list[list[int]] = [[] for _ in wanted]
        if self._broken:
            return drafts
        try:
            self._draft(wanted, drafts)
        except Exception:
            log.exception("the assistant failed and is no longer used")
            self._broken = True
            self._newest.clear()
            return [[] for _ in wanted]
        return drafts

    def close(self) -> None:
        self._newest.clear()
        self._kept.close()

    def _draft(self, wanted: Items[tuple[Sequence, int]], drafts: list[list[int]]) -> None:
        states = [self._state_of(sequence) for sequence, _ in wanted]
        able = [index for index, state in enumerate(states) if state is not None]
        if not able:
            return
        tokens: list[int] = []
        positions: list[int] = []
        rows: list[int] = []
        for index in able:
            sequence = wanted[index][0]
            assert sequence.entry is not None
            tokens.append(sequence.inputs[-1].token)
            positions.append(len(sequence.inputs) - 1)
            rows.append(sequence.entry.row)
        ops = self._model.ops
        batch = Batch.of(tokens, positions, rows, [])
        batch.outputs = None
        self._cache.start_reading(self._model.lenders, batch)
        arrays, hidden = batch.on(ops), ops.array(np.stack([state for state in states if state is not None]))
        for depth in range(max(wanted[index][1] for index in able)):
            began = time.monotonic()
            logits, hidden = self._model.draft(hidden, arrays, self._cache)
            best = likeliest_tokens(ops, logits, self._vocab_size)
            self._pass_s.add(time.monotonic() - began)
            for index, token in zip(able, best, strict=True):
                if depth < wanted[index][1]:
                    drafts[index].append(token)
            arrays = replace(arrays, tokens=ops.array(np.array(best, np.int32)))

    def _state_of(self, sequence: Sequence) -> NDArray[np.float32] | None:
        """Return the state [hidden] that the newest token of a sequence was drawn from, or None."""
        newest = self._newest.get(sequence)
        if newest is None:
            return None
        row = len(sequence.inputs) - 2 + sequence.shifted - newest.begin
        return newest.states[row] if 0 <= row < len(newest.states) else None

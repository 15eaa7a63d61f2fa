"""A small model that drafts tokens for a large one.

Its own cache follows the sequences: rejected draft tokens are removed before the next are drafted. Its prefix
cache works like the large model's, so the next turn of a conversation finds its entry.
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
from puna.engine.executor import Replay
from puna.engine.prefix_cache import PrefixCache, PrefixEntry, PrefixMatch
from puna.engine.prefix_tree import Key, common_length
from puna.engine.room import EngineSizes, build_cache, cache_bytes
from puna.errors import CacheFullError, RequestError

if TYPE_CHECKING:
    from puna.engine.batching import BatchSlice
    from puna.engine.sequence import Sequence
    from puna.model.base import RunnableModel
    from puna.model.load import LoadedModel

log = logging.getLogger("puna.engine")

#: Inputs of a sequence evaluated before a step; if more are missing, nothing is drafted for it.
_MAX_CATCH_UP = 256
#: Up to this many missing inputs are evaluated in the pass that drafts the first token.
_SHORT_BACKLOG = 8
#: Up to this many rows, all logits are computed, so that the pass can be replayed.
_ALL_ROWS = 32
#: Assumed cost of evaluating an input, as a fraction of a pass, until it is measured.
_FIRST_INPUT_COST = 0.1


@dataclass
class _State:
    """The cached `tokens` of a sequence; the first `verified` are known to be its inputs."""

    entry: PrefixEntry
    tokens: list[Key]
    shifted: int
    verified: int = 0


class DraftModel:
    """Greedy drafts of the model `loaded` for all sequences of `target` at once.

    Raises `RequestError` when the model cannot draft for `target`.
    """

    mode: ClassVar[str] = "draft"

    def __init__(self, loaded: LoadedModel, target: LoadedModel, sizes: EngineSizes) -> None:
        check_fits(loaded, target)
        self.context = min(sizes.context, loaded.trained_context or sizes.context)
        sizes = replace(sizes, context=self.context, capacity=max(sizes.capacity, self.context))
        self._model = loaded
        self._cache, rows = build_cache(loaded, sizes)
        if any(counts.kind != "causal" for counts in self._cache.counts()):
            self._cache.close()
            raise RequestError(
                f"{loaded.path.name} cannot be a draft model: its cache cannot remove several tokens; use "
                "a model without sliding windows, chunks and recurrent layers"
            )
        self.cache_bytes = cache_bytes(self._cache, rows, sizes.capacity, sizes.batch_size)
        self._prefix_cache = PrefixCache(self._cache, rows)
        self._replay = Replay(loaded.model, self._cache)
        self._states: dict[Sequence, _State] = {}
        self._broken = False
        self._weight = loaded.weight_bytes / max(target.weight_bytes, 1)
        self._pass_s = Recent()  # a pass that drafts one token for each sequence
        self._input_s = Recent()  # evaluating one input

    @property
    def provided_bytes(self) -> int:
        """Bytes of memory the cache takes so far."""
        return self._cache.provided_bytes

    def pass_cost(self, step_s: float) -> float:
        """Return the cost of drafting one more token, as a fraction of the large model's step."""
        return self._pass_s.value / step_s if self._pass_s.value else self._weight

    def catch_up_cost(self, sequence: Sequence, step_s: float) -> float:
        """Return the cost of evaluating the missing inputs of a sequence, as a fraction of a step."""
        state = self._states.get(sequence)
        behind = len(sequence.keys) - (len(state.tokens) if state is not None else 0)
        read = (
            self._input_s.value / step_s
            if self._input_s.value
            else self.pass_cost(step_s) * _FIRST_INPUT_COST
        )
        return behind * read if behind > _SHORT_BACKLOG else 0.0

    def observe(self, slices: Items[BatchSlice], rows: int) -> None:
        """Do nothing: hidden states of the large model are not used."""

    def leave(self, sequence: Sequence) -> None:
        """Do nothing: a sequence's entry is released once it has ended."""

    def draft(self, wanted: Items[tuple[Sequence, int]]) -> list[list[int]]:
        """Return up to the given number of tokens after each sequence; none if too many are missing."""
        drafts: list[list[int]] = [[] for _ in wanted]
        if self._broken:
            return drafts
        try:
            self._draft(wanted, drafts)
        except CacheFullError as error:  # the tokens drafted so far are valid
            log.debug("no room for drafts: %s", error)
        except Exception:
            log.exception("the draft model failed and is no longer used")
            self._broken = True
            return [[] for _ in wanted]
        return drafts

    def release_finished(self) -> None:
        """Release the entries of sequences that no longer run."""
        for sequence in [sequence for sequence in self._states if sequence.entry is None]:
            self._release(sequence)

    def close(self) -> None:
        self._replay.close()
        self._cache.close()

    def _draft(self, wanted: Items[tuple[Sequence, int]], drafts: list[list[int]]) -> None:
        states = [self._synchronise(sequence) for sequence, _ in wanted]
        active = [
            index
            for index, (state, (sequence, _)) in enumerate(zip(states, wanted, strict=True))
            if self._catch_up(state, sequence.keys)
        ]
        for depth in range(max(count for _, count in wanted)):
            active = [index for index in active if depth < wanted[index][1]]
            if not active:
                return
            parts: list[tuple[_State, list[Key]]] = []
            for index in active:
                state, keys = states[index], wanted[index][0].keys
                parts.append((state, keys[len(state.tokens) :] if not depth else [drafts[index][-1]]))
            began = time.monotonic()
            best = self._forward(parts)
            if depth:
                self._pass_s.add(time.monotonic() - began)
            for index, token in zip(active, best, strict=True):
                drafts[index].append(token)

    def _synchronise(self, sequence: Sequence) -> _State:
        """Return the cached tokens of a sequence, without wrong ones and its newest input."""
        state = self._states.get(sequence)
        if state is not None and state.shifted != sequence.shifted:
            self._release(sequence)
            state = None
        keys = sequence.keys
        if state is None:
            shares = sequence.request.cache_prompt
            found = self._prefix_cache.find(keys, len(keys) - 1) if shares else PrefixMatch()
            entry = self._prefix_cache.acquire(found.entry, found.count)
            if shares:
                self._prefix_cache.index(entry, list(keys))
            state = self._states[sequence] = _State(entry, keys[: entry.evaluated], sequence.shifted)
        state.verified += common_length(state.tokens[state.verified :], keys, state.verified)
        state.verified = min(state.verified, len(keys) - 1)
        self._cache.remove(state.entry.row, state.verified)
        state.entry.evaluated = state.verified
        del state.tokens[state.verified :]
        return state

    def _release(self, sequence: Sequence) -> None:
        state = self._states.pop(sequence)
        if sequence.request.cache_prompt:
            self._prefix_cache.release(state.entry, state.tokens)
        else:
            self._prefix_cache.drop(state.entry)

    def _catch_up(self, state: _State, keys: list[Key]) -> bool:
        """Evaluate all but the newest few inputs of a sequence; return False if too many for one step."""
        behind = len(keys) - 1 - len(state.tokens)
        if behind <= _SHORT_BACKLOG:
            return True
        begin, count = len(state.tokens), min(behind, _MAX_CATCH_UP)
        began = time.monotonic()
        self._forward([(state, keys[begin : begin + count])])
        self._input_s.add((time.monotonic() - began) / count)
        return count == behind

    def _forward(self, parts: list[tuple[_State, list[Key]]]) -> list[int]:
        """Evaluate the next inputs of some sequences; return the likeliest token after each."""
        tokens = [int(key) for _, keys in parts for key in keys if isinstance(key, int)]
        positions = [len(state.tokens) + step for state, keys in parts for step in range(len(keys))]
        sequences = [state.entry.row for state, keys in parts for _ in keys]
        ends = np.cumsum([len(keys) for _, keys in parts]) - 1
        self._prefix_cache.room(len(tokens))
        batch = Batch.of(tokens, positions, sequences, [])
        batch.outputs = None if len(tokens) <= _ALL_ROWS else ends
        self._cache.start_forward(batch)
        try:
            logits = self._replay.forward(batch)
            if batch.outputs is None:
                logits = logits[self._model.ops.array(ends)]
            best = likeliest_tokens(self._model.ops, logits, self._model.tokenizer.vocab_size)
        except BaseException:
            self._cache.undo_forward()
            raise
        for state, keys in parts:
            state.tokens += keys
            state.entry.evaluated = len(state.tokens)
        return best


@runtime_checkable
class Attachable(Protocol):
    """A draft model that reads the states of another."""

    def attach(self, target: RunnableModel) -> None:
        """Prepare for drafting for `target`. Raises `RequestError` unless it is as expected."""


def attach_draft(loaded: LoadedModel) -> None:
    """Attach the draft model of `loaded` to it, if it reads its states; before its caches are made.

    Raises `RequestError` when it cannot draft for that model.
    """
    draft = loaded.draft
    if draft is None or not isinstance(draft.model, Attachable):
        return
    check_fits(draft, loaded)
    try:
        draft.model.attach(loaded.model)
    except RequestError as error:
        names = f"{draft.path.name} cannot be a draft model for {loaded.path.name}"
        raise RequestError(f"{names}: {error}") from None


def check_fits(draft: LoadedModel, target: LoadedModel) -> None:
    """Raise `RequestError` unless both models have the same vocabulary."""
    ours, theirs = draft.tokenizer, target.tokenizer
    names = f"{draft.path.name} cannot be a draft model for {target.path.name}"
    if ours.vocab_size != theirs.vocab_size:
        raise RequestError(
            f"{names}: it has {ours.vocab_size} tokens instead of {theirs.vocab_size}; use a model of the "
            "same family"
        )
    for id in range(ours.vocab_size):
        if ours.token(id) != theirs.token(id):
            raise RequestError(
                f"{names}: its token {id} is {ours.token(id)!r} instead of {theirs.token(id)!r}; use a model "
                "of the same family"
            )

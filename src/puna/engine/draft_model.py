"""A small model that guesses for a large one.

It has a cache of its own, which follows what the sequences become: what it evaluated of guesses that did not
come true is taken back before the next ones are made. Its memories are shared and kept as the large model's
are, so a conversation's next turn finds them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from puna.engine.prefix_cache import PrefixMatch, PrefixCache, PrefixEntry
from puna.engine.payoff import Recent
from puna.engine.prefix_tree import Key, common_length
from puna.engine.replay import Replay
from puna.engine.sizing import build_cache, cache_bytes
from puna.errors import CacheFullError, RequestError
from puna.kvcache.types import HALVES, KVTypes
from puna.model.input import Batch

if TYPE_CHECKING:
    from puna.engine.sequence import Sequence
    from puna.model.load import LoadedModel

log = logging.getLogger("puna.engine")

#: So many inputs of a sequence are read before a step; with more to come, nothing is guessed in it.
_READ_AT_ONCE = 256
#: Inputs that go into the pass of the first guess, instead of being read before.
_SHORT_BACKLOG = 8
#: With no more rows than this, all logits are computed, so that the pass can be replayed.
_ALL_ROWS = 32
#: What reading an input costs before that was measured, as a share of a pass.
_FIRST_READ = 0.1


@dataclass
class _DraftSequence:
    """What the cache holds of a sequence: `tokens`, of which the first `sure` are known to be its inputs."""

    entry: PrefixEntry
    tokens: list[Key]
    shifted: int
    sure: int = 0


class DraftModel:
    """Guesses greedily with the model `loaded`, for all sequences together.

    Raises `RequestError` when the model cannot guess for `target`.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        target: LoadedModel,
        *,
        context: int,
        capacity: int,
        parallel: int,
        remembered: int,
        batch: int,
        cache_types: KVTypes = HALVES,
    ) -> None:
        check_fits(loaded, target)
        self.context = min(context, loaded.trained_context or context)
        capacity = max(capacity, self.context)
        self._model = loaded
        self._cache, rows = build_cache(
            loaded,
            parallel=parallel,
            remembered=remembered,
            context=self.context,
            capacity=capacity,
            batch=batch,
            types=cache_types,
        )
        if any(counts.kind != "causal" for counts in self._cache.counts()):
            self._cache.close()
            raise RequestError(
                f"{loaded.path.name} cannot be a draft model: its cache cannot take back several tokens; use "
                "a model without sliding windows, chunks and recurrent layers"
            )
        self.cache_bytes = cache_bytes(self._cache, rows, capacity, batch)
        self._prefix_cache = PrefixCache(self._cache, rows)
        self._replay = Replay(loaded.model, self._cache)
        self._held: dict[Sequence, _DraftSequence] = {}
        self._broken = False
        self._weight = loaded.weight_bytes / max(target.weight_bytes, 1)
        self._pass_s, self._read_s = Recent(), Recent()  # of a pass for one guess each; of reading one input

    @property
    def provided_bytes(self) -> int:
        """Memory the cache has until now."""
        return self._cache.provided_bytes

    def pass_cost(self, step_s: float) -> float:
        """What one more guess in a row costs, as a share of a step of the large model."""
        return self._pass_s.value / step_s if self._pass_s.value else self._weight

    def catch_up_cost(self, sequence: Sequence, step_s: float) -> float:
        """What it costs to read what was not read yet of a sequence, as a share of a step."""
        held = self._held.get(sequence)
        behind = len(sequence.keys) - (len(held.tokens) if held is not None else 0)
        read = self._read_s.value / step_s if self._read_s.value else self.pass_cost(step_s) * _FIRST_READ
        return behind * read if behind > _SHORT_BACKLOG else 0.0

    def draft(self, wanted: Items[tuple[Sequence, int]]) -> list[list[int]]:
        """Up to so many tokens after each sequence; none for one that has more to be read."""
        drafts: list[list[int]] = [[] for _ in wanted]
        if self._broken:
            return drafts
        try:
            self._draft(wanted, drafts)
        except CacheFullError as error:  # what was found until now is as good
            log.debug("no room for drafts: %s", error)
        except Exception:
            log.exception("the draft model failed; it is not used any more")
            self._broken = True
            return [[] for _ in wanted]
        return drafts

    def release_finished(self) -> None:
        """Sequences that do not run any more leave what they hold to others."""
        for sequence in [sequence for sequence in self._held if sequence.entry is None]:
            self._release(sequence)

    def close(self) -> None:
        self._replay.close()
        self._cache.close()

    def _draft(self, wanted: Items[tuple[Sequence, int]], drafts: list[list[int]]) -> None:
        all_held = [self._hold(sequence) for sequence, _ in wanted]
        going = [
            index
            for index, (held, (sequence, _)) in enumerate(zip(all_held, wanted, strict=True))
            if self._read(held, sequence.keys)
        ]
        for depth in range(max(count for _, count in wanted)):
            going = [index for index in going if depth < wanted[index][1]]
            if not going:
                return
            parts: list[tuple[_DraftSequence, list[Key]]] = []
            for index in going:
                held, keys = all_held[index], wanted[index][0].keys
                parts.append((held, keys[len(held.tokens) :] if not depth else [drafts[index][-1]]))
            began = time.monotonic()
            best = self._forward(parts)
            if depth:
                self._pass_s.add(time.monotonic() - began)
            for index, token in zip(going, best, strict=True):
                drafts[index].append(token)

    def _hold(self, sequence: Sequence) -> _DraftSequence:
        """What is held of a sequence, as far as it is still true; all but the newest input at most."""
        held = self._held.get(sequence)
        if held is not None and held.shifted != sequence.shifted:
            self._release(sequence)
            held = None
        keys = sequence.keys
        if held is None:
            slices = sequence.request.cache_prompt
            found = self._prefix_cache.find(keys, len(keys) - 1) if slices else PrefixMatch()
            entry = self._prefix_cache.acquire(found.entry, found.count)
            if slices:
                self._prefix_cache.index(entry, list(keys))
            held = self._held[sequence] = _DraftSequence(entry, keys[: entry.evaluated], sequence.shifted)
        held.sure += common_length(held.tokens[held.sure :], keys, held.sure)
        held.sure = min(held.sure, len(keys) - 1)
        self._cache.remove(held.entry.row, held.sure)
        held.entry.evaluated = held.sure
        del held.tokens[held.sure :]
        return held

    def _release(self, sequence: Sequence) -> None:
        held = self._held.pop(sequence)
        if sequence.request.cache_prompt:
            self._prefix_cache.release(held.entry, held.tokens)
        else:
            self._prefix_cache.drop(held.entry)

    def _read(self, held: _DraftSequence, keys: list[Key]) -> bool:
        """Read what a sequence has before its newest inputs. False when there is more than fits a step."""
        behind = len(keys) - 1 - len(held.tokens)
        if behind <= _SHORT_BACKLOG:
            return True
        begin, count = len(held.tokens), min(behind, _READ_AT_ONCE)
        began = time.monotonic()
        self._forward([(held, keys[begin : begin + count])])
        self._read_s.add((time.monotonic() - began) / count)
        return count == behind

    def _forward(self, parts: list[tuple[_DraftSequence, list[Key]]]) -> list[int]:
        """Evaluate the next inputs of some sequences; the likeliest token after each."""
        tokens = [int(key) for _, keys in parts for key in keys if isinstance(key, int)]
        positions = [len(held.tokens) + step for held, keys in parts for step in range(len(keys))]
        sequences = [held.entry.row for held, keys in parts for _ in keys]
        ends = np.cumsum([len(keys) for _, keys in parts]) - 1
        self._prefix_cache.room(len(tokens))
        batch = Batch.of(tokens, positions, sequences, [])
        batch.outputs = None if len(tokens) <= _ALL_ROWS else torch.from_numpy(ends)
        self._cache.start_forward(batch)
        try:
            logits = self._replay.forward(batch).numpy()
        except BaseException:
            self._cache.undo_forward()
            raise
        for held, keys in parts:
            held.tokens += keys
            held.entry.evaluated = len(held.tokens)
        rows = logits[ends] if batch.outputs is None else logits
        return [int(row[: self._model.tokenizer.vocab_size].argmax()) for row in rows]


def check_fits(draft: LoadedModel, target: LoadedModel) -> None:
    """Raise `RequestError` unless both models have the same tokens."""
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

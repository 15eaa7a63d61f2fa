"""Drafts by prediction heads, a model's own or a separate one, which continue from its hidden states.

A head is one more layer, whose keys and values are in the cells of the model's cache, so they are reused,
shifted, saved and evicted together. A head's row is a token at its position, with the hidden state of the
position before as input: from the model's layers for the first head, from the previous head for others.
Rows of a prompt are computed right after it, others when a draft needs them. The first head drafts the token
after the newest one, the next head the one after that, and the last head continues from its own drafts.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np

from puna.batch import Batch
from puna.engine.drafting.likeliest import likeliest_tokens
from puna.engine.drafting.payoff import Recent
from puna.errors import CacheFullError
from puna.model.layer_cache import Window

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from puna.batch import BatchArrays, KeptStates
    from puna.engine.batching import BatchSlice
    from puna.engine.sequence import Sequence
    from puna.kvcache.cache import Cache
    from puna.model.options import TextOptions
    from puna.nn.heads import PredictionHead
    from puna.ops import Array, Backend

log = logging.getLogger("puna.engine")

#: Minimum rows computed together for a sequence that drafts nothing.
_READ_TOGETHER = 64


@dataclass
class _Unread:
    """Hidden states [rows, hidden] of positions from `begin` on, which a head has not read yet.

    Positions are counted as if the context had never been shifted.
    """

    begin: int
    states: NDArray[np.float32]

    @property
    def end(self) -> int:
        return self.begin + len(self.states)

    def put(self, begin: int, states: NDArray[np.float32]) -> None:
        """Add the states of positions from `begin` on, replacing existing ones."""
        if self.begin <= begin <= self.end:
            self.states = np.concatenate([self.states[: begin - self.begin], states])
        else:  # the positions before were reused, and their states are unknown
            unknown = np.zeros((1, states.shape[1]), np.float32)
            self.begin, self.states = begin - 1, np.concatenate([unknown, states])

    def before(self, end: int) -> NDArray[np.float32]:
        """Return the states of positions before `end`."""
        return self.states[: max(end - self.begin, 0)]

    def drop(self, end: int) -> None:
        """Drop the states of positions before `end`, which have been read."""
        if self.begin < end:
            self.begin, self.states = end, self.states[end - self.begin :]


@dataclass
class _Rows:
    """Rows of a sequence for one head: tokens from `position` on, and the states of positions before them.

    The last `drafted` tokens are drafts.
    """

    sequence: Sequence
    position: int  # counted as in `_Unread`
    tokens: list[int]
    states: NDArray[np.float32]  # [rows, hidden]
    drafted: int = 0

    def __len__(self) -> int:
        return len(self.tokens)


class Heads(Protocol):
    """The network of prediction heads; see `puna.model.decoder.Decoder`."""

    @property
    def ops(self) -> Backend: ...

    def look_ahead(self, head: int, hidden: Array, batch: BatchArrays, cache: Cache) -> Array: ...
    def head_logits(self, head: int, hidden: Array) -> Array: ...


@runtime_checkable
class HasHeads(Heads, Protocol):
    """A model that may have prediction heads."""

    @property
    def options(self) -> TextOptions: ...
    @property
    def prediction_heads(self) -> Items[PredictionHead]: ...


@runtime_checkable
class SeparateHead(Heads, Protocol):
    """A head in a file of its own; see `puna.model.models.eagle3`."""

    @property
    def state_size(self) -> int: ...
    @property
    def target_layers(self) -> Items[int]: ...
    @property
    def tokens(self) -> NDArray[np.int64] | None: ...

    def fuse(self, features: Items[Array]) -> Array: ...


class PredictionHeads:
    """Greedy drafts of `heads` for all sequences at once, of the drafting mode `mode`.

    `options` are those of the model they draft for, whose last layers are theirs, and `kept` has the hidden
    states of its last pass. Drafted tokens are below `vocab_size`. `tokens` are the tokens that logits stand
    for; None if all do.
    """

    def __init__(
        self,
        heads: Heads,
        options: TextOptions,
        cache: Cache,
        kept: KeptStates,
        *,
        context: int,
        vocab_size: int,
        mode: str = "mtp",
        tokens: NDArray[np.int64] | None = None,
    ) -> None:
        self.context = context
        self.mode = mode
        self._heads = heads
        self._options = options
        self._cache = cache
        self._kept = kept
        self._vocab_size = vocab_size
        self._tokens = None if tokens is None else np.minimum(tokens, vocab_size - 1)
        self._count = options.prediction_heads
        layers = options.layers[options.block_count :]
        windows = [layer.remembers.size for layer in layers if isinstance(layer.remembers, Window)]
        self._together = min([_READ_TOGETHER, *windows])  # while their cells are still there
        self._unread: dict[Sequence, list[_Unread]] = {}  # of each head
        self._broken = False
        self._pass_s = Recent()

    @property
    def provided_bytes(self) -> int:
        """Memory of the heads beside the model's cache."""
        return 0

    def pass_cost(self, step_s: float) -> float:
        """Return the cost of drafting one more token, as a fraction of the model's step."""
        return self._pass_s.value / step_s if self._pass_s.value else 1 / self._options.block_count

    def catch_up_cost(self, sequence: Sequence, step_s: float) -> float:
        """Return 0: a pass costs hardly more if `sequence` has not drafted for a while."""
        return 0.0

    def observe(self, slices: Items[BatchSlice], rows: int) -> None:
        """Take the states of the `rows` rows of `slices`, and have the heads read those that are due."""
        if self._broken or rows > self._kept.rows or not any(_drafts(one.sequence) for one in slices):
            return
        states, end = self._kept.read(rows), 0
        due: list[tuple[Sequence, int]] = []
        for batch_slice in slices:
            sequence, first, end = batch_slice.sequence, end, end + batch_slice.rows
            if not _drafts(sequence):
                continue
            if sequence not in self._unread:
                self._unread[sequence] = [_Unread(-1, states[:0]) for _ in range(self._count)]
            unread, begin = self._unread[sequence], batch_slice.begin + sequence.shifted
            unread[0].put(begin, states[first:end])
            newest = begin + batch_slice.count - 1
            if batch_slice.count > 1 or newest - min(each.begin for each in unread) >= self._together:
                due.append((sequence, newest))
        self._read(due)

    def leave(self, sequence: Sequence) -> None:
        """Read the rest of a sequence that is about to end, since others may continue from it."""
        if sequence in self._unread:
            self._read([(sequence, sequence.evaluated - 1 + sequence.shifted)])
            self._unread.pop(sequence, None)

    def release_finished(self) -> None:
        """Forget sequences that no longer run."""
        for sequence in [sequence for sequence in self._unread if sequence.entry is None]:
            del self._unread[sequence]

    def draft(self, wanted: Items[tuple[Sequence, int]]) -> list[list[int]]:
        """Return up to the given number of tokens after each sequence; none if a state is missing."""
        drafts: list[list[int]] = [[] for _ in wanted]
        try:
            self._draft(wanted, drafts)
        except CacheFullError as error:  # the tokens drafted so far are valid
            log.debug("no room for drafts: %s", error)
        except Exception:
            self._give_up()
            return [[] for _ in wanted]
        finally:
            self._cache.end_side_passes()
        return drafts

    def close(self) -> None:
        self._unread.clear()
        self._kept.close()

    def _give_up(self) -> None:
        log.exception("the prediction heads failed and are no longer used")
        self._broken = True
        self._unread.clear()

    def _draft(self, wanted: Items[tuple[Sequence, int]], drafts: list[list[int]]) -> None:
        newest = [len(sequence.inputs) - 1 + sequence.shifted for sequence, _ in wanted]
        active = [
            index
            for index, (sequence, _) in enumerate(wanted)
            if (unread := self._unread.get(sequence)) and unread[0].begin < newest[index] <= unread[0].end
        ]
        made: dict[int, NDArray[np.float32]] = {}  # states of the newest token and the drafts after it
        for depth in range(max(count for _, count in wanted)):
            active = [index for index in active if depth < wanted[index][1]]
            if not active:
                return
            head, parts = min(depth, self._count - 1), []
            for index in active:
                sequence, end, tokens = wanted[index][0], newest[index], drafts[index]
                if depth >= self._count:  # the last head has read the tokens before
                    parts.append(_Rows(sequence, end + depth, tokens[-1:], made[index][-1:], 1))
                    continue
                # The newest token's cell belongs to the side pass; its row is computed again in its own cell.
                rows = self._known_rows(sequence, head, end, read=end - 1)
                if depth:
                    states = np.concatenate([rows.states, made[index]])
                    rows = _Rows(sequence, rows.position, [*rows.tokens, *tokens], states, depth)
                parts.append(rows)
            began = time.monotonic()
            found, ends = self._forward(head, parts)
            ops = self._heads.ops
            best = self._likeliest(self._heads.head_logits(head, found[ops.array(ends)]))
            states = ops.numpy(found)
            self._pass_s.add(time.monotonic() - began)
            kept = depth if head + 1 < self._count else 0
            for index, end, token in zip(active, ends.tolist(), best, strict=True):
                drafts[index].append(token)
                made[index] = states[end - kept : end + 1].copy()

    def _likeliest(self, logits: Array) -> list[int]:
        """Return the likeliest token of each row of logits."""
        if self._tokens is None:
            return likeliest_tokens(self._heads.ops, logits, self._vocab_size)
        found: list[int] = self._tokens[likeliest_tokens(self._heads.ops, logits, len(self._tokens))].tolist()
        return found

    def _read(self, due: Items[tuple[Sequence, int]]) -> None:
        """Have all heads read each sequence up to the given position, which is evaluated."""
        try:
            for head in range(self._count):
                parts = [self._known_rows(sequence, head, end, read=end) for sequence, end in due]
                if parts := [rows for rows in parts if len(rows)]:
                    self._forward(head, parts)
        except Exception:
            self._give_up()
        finally:
            self._cache.end_side_passes()

    def _known_rows(self, sequence: Sequence, head: int, end: int, *, read: int) -> _Rows:
        """Return the rows up to position `end` that a head has not read; mark those up to `read` as read.

        The first head begins at the second position of a sequence, each further one a position later.
        """
        unread = self._unread[sequence][head]
        position = unread.begin + 1
        states = unread.before(end)
        unread.drop(min(read, unread.end))
        begin = position - sequence.shifted
        skipped = max(head + 1 - begin, 0)
        inputs = sequence.inputs[begin + skipped : max(begin + len(states), 0)]
        # Placeholders of images may be outside the vocabulary.
        tokens = [min(max(item.token, 0), self._vocab_size - 1) for item in inputs]
        return _Rows(sequence, position + skipped, tokens, states[skipped:])

    def _forward(self, head: int, parts: Items[_Rows]) -> tuple[Array, NDArray[np.int64]]:
        """Return a head's states of the rows in `parts`, and the index of the last row of each part.

        The last head returns states of only the last row of each part.
        """
        tokens: list[int] = []
        positions: list[int] = []
        sequences: list[int] = []
        for rows in parts:
            begin = rows.position - rows.sequence.shifted
            assert rows.sequence.entry is not None
            tokens += rows.tokens
            positions += range(begin, begin + len(rows))
            sequences += [rows.sequence.entry.row] * len(rows)
        ends = np.cumsum([len(rows) for rows in parts]) - 1
        ops, last = self._heads.ops, head + 1 == self._count
        batch = Batch.of(tokens, positions, sequences, [])
        batch.outputs = ends if last else None
        self._cache.start_side_pass(self._options.block_count + head, batch, first=head + 1)
        hidden = ops.array(np.concatenate([rows.states for rows in parts]))
        found = self._heads.look_ahead(head, hidden, batch.on(ops), self._cache)
        if last:
            return found, np.arange(len(parts))
        states = ops.numpy(found)
        for rows, end in zip(parts, ends.tolist(), strict=True):
            if known := len(rows) - rows.drafted:
                first = end + 1 - len(rows)
                self._unread[rows.sequence][head + 1].put(rows.position, states[first : first + known])
        return found, ends


def _drafts(sequence: Sequence) -> bool:
    return sequence.drafting is not None and sequence.drafting.generated

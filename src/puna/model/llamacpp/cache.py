"""Cache of a model in llama.cpp: Puna keeps the books, llama.cpp the keys and values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from puna.batch import Batch
from puna.errors import CacheFullError, GenerationError, NotSupportedError
from puna.kvcache.cache import Cache, LayerCache, check_removal
from puna.kvcache.cells import Cells, table_shape
from puna.kvcache.contents import CellCounts
from puna.kvcache.whole_text import WholeTextCache

if TYPE_CHECKING:
    from puna.model.llamacpp.context import Context
    from puna.model.llamacpp.memory import LayerSizes
    from puna.ops import Backend


class LlamaCppCache(Cache):
    """Sequences in one pool of llama.cpp's cells; common prefixes are shared.

    The books (`Cells`) track how full the pool is and who shares what; llama.cpp places cells itself. A
    `recurrent` or hybrid model can only continue at the end of a sequence.
    """

    def __init__(
        self,
        layers: Mapping[int, LayerSizes],
        context: Context | None,
        *,
        sequences: int,
        longest: int,
        capacity: int,
        recurrent: bool,
    ) -> None:
        """Make a cache for sequences of up to `longest` positions; without `context`, for sizes only."""
        self.context = longest
        self.batch: Batch | None = None  # of the current pass
        self._llama = context
        self._sizes = layers
        self._recurrent = recurrent
        self._cells = Cells(capacity, longest, np.zeros(table_shape(sequences, longest), np.int32))
        self._before: dict[int, int] = {}  # lengths of the last pass's sequences before it
        self._lost: set[int] = set()  # sequences whose state a failed pass left undefined

    @property
    def generation(self) -> None:
        return None  # nothing to record

    @property
    def layers(self) -> Iterable[int]:
        return self._sizes.keys()

    @property
    def kind(self) -> str:
        return "recurrent" if self._recurrent else "causal"

    @property
    def max_drafts(self) -> int:
        return 0 if self._recurrent else super().max_drafts

    @property
    def forgets(self) -> bool:
        return self._recurrent

    # --- a pass ---------------------------------------------------------------------------------------

    def plan_forward(self, batch: Batch) -> Callable[[], None]:
        if lost := self._lost.intersection(batch.sequences.tolist()):
            raise GenerationError(
                f"the state of sequence {min(lost)} was lost in a failed pass; send the request again"
            )
        begins = np.flatnonzero(np.diff(batch.sequences, prepend=-1))
        if (batch.positions[begins] != self._cells.length[batch.sequences[begins]]).any():
            raise ValueError("a batch must continue its sequences")
        self._cells.check_room(len(batch), self._cells.free)
        return partial(self._begin, batch)

    def _begin(self, batch: Batch) -> None:
        self._before = {row: int(self._cells.length[row]) for row in set(batch.sequences.tolist())}
        self._cells.append(batch.sequences, batch.positions, self._cells.allocate(len(batch)))
        self.batch = batch

    def undo_forward(self) -> None:
        for sequence, length in self._before.items():
            self._cells.truncate(sequence, length)
            if not self.llama.remove(sequence, length):
                self._lost.add(sequence)
        self._before = {}

    def layer(self, index: int) -> LayerCache:
        raise NotSupportedError("llama.cpp does not expose the cache of a layer")

    # --- between passes ---------------------------------------------------------------------------------

    def room(self, wanted: int) -> int:
        return min(wanted, self._cells.free)

    def length(self, sequence: int) -> int:
        return int(self._cells.length[sequence])

    def resume_point(self, sequence: int, position: int) -> int:
        length = self.length(sequence)
        if self._recurrent:
            return length if 0 < length <= position and sequence not in self._lost else 0
        return min(position, length)

    def copy_prefix(self, source: int, target: int, count: int) -> None:
        self._forget(target)
        if self._recurrent and count < self.length(source):
            return  # a recurrent state cannot be shortened
        self._cells.share(source, target, count)
        self.llama.copy(source, target, count)

    def plan_removal(self, sequence: int, begin: int, end: int | None = None) -> Callable[[], None]:
        check_removal(sequence, begin, end)
        length = self.length(sequence)
        if end is None or end >= length:
            if begin and self._recurrent and begin < length:
                raise NotSupportedError("a recurrent state cannot forget a part of its inputs")
            return partial(self._truncate, sequence, begin) if begin else partial(self._forget, sequence)
        if self._recurrent or not self.llama.can_shift:
            raise NotSupportedError("this model's positions cannot be shifted")
        if (self._cells.references[self._cells.table[sequence, end:length]] > 1).any():
            raise NotSupportedError("other sequences hold what would have to be shifted")
        return partial(self._cut, sequence, begin, end)

    def _forget(self, sequence: int) -> None:
        self._lost.discard(sequence)
        self._truncate(sequence, 0)

    def _truncate(self, sequence: int, begin: int) -> None:
        if begin < self.length(sequence) or not begin:
            self._cells.truncate(sequence, begin)
            self.llama.remove(sequence, begin)

    def _cut(self, sequence: int, begin: int, end: int) -> None:
        self._cells.cut(sequence, begin, end)
        self.llama.remove(sequence, begin, end)
        self.llama.move(sequence, end, begin - end)

    @property
    def llama(self) -> Context:
        """The context that holds the keys and values."""
        assert self._llama is not None, "made only to report sizes"
        return self._llama

    # --- figures ------------------------------------------------------------------------------------------

    def counts(self) -> list[CellCounts]:
        cells = self._cells
        shared = int(np.count_nonzero(cells.references > 1))
        return [CellCounts(self.kind, cells.capacity, cells.capacity - cells.free, shared)]

    def layer_bytes(self, *, sequences: int, capacity: int, batch: int) -> dict[int, int]:
        return {index: size.bytes(sequences, capacity) for index, size in self._sizes.items()}

    @property
    def allocated_bytes(self) -> int:
        sizes = self.layer_bytes(sequences=len(self._cells.length), capacity=self._cells.capacity, batch=0)
        return sum(sizes.values())

    @property
    def provided_bytes(self) -> int:
        return self.allocated_bytes  # llama.cpp takes all of it at once

    def close(self) -> None:
        if self._llama is not None:
            self._llama.close()


class LlamaCppTexts(WholeTextCache):
    """Cache of llama.cpp's encoders, which read each text whole and remember nothing."""

    def __init__(self, ops: Backend, context: Context | None, *, sequences: int) -> None:
        """Make a cache; without `context` it only reports sizes."""
        super().__init__(ops, {}, sequences=sequences)
        self.batch: Batch | None = None
        self._llama = context

    @property
    def llama(self) -> Context:
        assert self._llama is not None, "made only to report sizes"
        return self._llama

    def plan_forward(self, batch: Batch) -> Callable[[], None]:
        begin = super().plan_forward(batch)
        longest = int(np.bincount(batch.sequences).max())
        if longest > (most := self.llama.sizes.rows):
            raise CacheFullError(f"a text has {longest} tokens, and at most {most} fit into a pass")

        def both() -> None:
            begin()
            self.batch = batch

        return both

    def close(self) -> None:
        super().close()
        if self._llama is not None:
            self._llama.close()

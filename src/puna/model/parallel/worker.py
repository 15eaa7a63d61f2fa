"""A rank other than 0, which repeats what rank 0 does on its own share of the model."""

from __future__ import annotations

import logging
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final

import numpy as np

from puna.errors import PunaError, RunnerError
from puna.kvcache.cache import Cache
from puna.machine import is_out_of_memory
from puna.model.parallel.wire import CacheMade, RankConnection, Step, ToRank
from puna.model.split.repeated import cache_for, repeat
from puna.model.split.wire import Broken, MakeCache, on_stage, unpacked

if TYPE_CHECKING:
    from puna.model.decoder import Decoder

log = logging.getLogger("puna.parallel")

#: Longer reasons of a failure are cut.
_REASON_CHARS: Final = 500

#: Messages for a rank, and None at their end.
Orders = SimpleQueue["ToRank | None"]


class RankWorker:
    """The share of a model in this process, whose layers exchange results with others (`join_ranks`)."""

    def __init__(self, model: Decoder, owner: RankConnection, rank: int, *, reserved: int = 0) -> None:
        """`reserved` bytes of memory are for others."""
        self._model = model
        self._owner = owner
        self._rank = rank
        self._reserved = reserved
        self._cache: Cache | None = None

    def run(self, orders: Orders) -> None:
        """Do what rank 0 says until it says no more, or until an error, which is reported to it."""
        try:
            while (message := orders.get()) is not None:
                self._take(message)
        except Exception as error:
            report(error, self._owner, self._rank)
        finally:
            if self._cache is not None:
                self._cache.close()

    def _take(self, message: ToRank) -> None:
        if isinstance(message, MakeCache):
            self._cache = cache_for(message, self._model, self._cache)
            room = self._model.cache_room(self._reserved) + self._cache.provided_bytes
            self._owner.send(CacheMade(room_bytes=room))
            return
        if self._cache is None:
            raise RunnerError("a rank needs a cache first")
        if isinstance(message, Step):
            self._compute(message, self._cache)
        else:
            repeat(message, self._cache, self._model.ops)

    def _compute(self, step: Step, cache: Cache) -> None:
        model, ops = self._model, self._model.ops
        batch = unpacked(step.batch, [], ops)
        cache.start_forward(batch)
        arrays = on_stage(batch, step.batch, ops)
        carried = model.run(model.embed(arrays), arrays, cache)
        if step.logits:
            hidden = model.finish(carried, arrays)
            if step.predicted is not None:
                hidden = hidden[ops.array(np.frombuffer(step.predicted, np.int64))]
            model.logits(hidden)
        ops.finish()


def report(error: Exception, owner: RankConnection, rank: int) -> None:
    """Log an error, and then tell rank 0, whose own last line of output is to be the last."""
    log.error("rank %d has failed", rank, exc_info=error)
    owner.send(Broken(stage=rank, reason=reason_of(error)))


def reason_of(error: Exception) -> str:
    """Return an error in words for other processes."""
    if is_out_of_memory(error):
        return "out of memory"
    reason = f"{error}" if isinstance(error, PunaError) else f"{type(error).__name__}: {error}"
    return reason[:_REASON_CHARS]

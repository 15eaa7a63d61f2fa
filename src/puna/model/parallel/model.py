"""A model of which this process has one share of each layer, and other processes the others."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from puna.batch import BatchArrays
from puna.errors import ModelLostError
from puna.kvcache.cache import Cache
from puna.kvcache.types import KVTypes
from puna.model.parallel.wire import Step
from puna.model.split.repeated import RepeatedCache
from puna.model.split.wire import MakeCache, packed
from puna.model.staged import StagedModel
from puna.nn.parallel import JoinedLinear, SummedLinear
from puna.ops import Array

if TYPE_CHECKING:
    from puna.model.decoder import Decoder
    from puna.model.parallel.ranks import OtherRanks
    from puna.ops import Rope
    from puna.ops.collectives import Collectives


def join_ranks(model: Decoder, group: Collectives) -> None:
    """Let the layers of a model, a share of the whole, add the other ranks' results to theirs."""
    share = model.options.share
    assert share is not None
    layers: Any = model.layers  # whose parts have these names, see `puna.model.shares`
    for layer in layers:
        layer.mixer.output = SummedLinear(layer.mixer.output, group)
        layer.feed_forward.down = SummedLinear(layer.feed_forward.down, group)
    model.output = JoinedLinear(model.output, group, share.sizes(model.options.vocab_size))


class ParallelModel(StagedModel):
    """`RunnableModel` of rank 0; see `puna.model.base.RunnableModel`. It ends the other ranks with itself."""

    def __init__(self, first: Decoder, ranks: OtherRanks) -> None:
        """`first` is the share of this process, whose results have been joined with the others'."""
        super().__init__(first)
        self.ranks = ranks
        self._cache: RepeatedCache | None = None  # the newest
        self.close = weakref.finalize(self, ranks.close)

    @property
    def count(self) -> int:
        """The number of ranks."""
        return len(self.ranks.ranks) + 1

    @property
    def devices(self) -> list[str]:
        """The device of each rank."""
        return [self.ops.device, *(each.device for each in self.ranks.loaded)]

    # --- caches -----------------------------------------------------------------------------------

    def make_cache(self, *, sequences: int, context: int, capacity: int, types: KVTypes) -> Cache:
        own = self.first.make_cache(sequences=sequences, context=context, capacity=capacity, types=types)
        self.ranks.make_caches(
            MakeCache(sequences=sequences, context=context, capacity=capacity, types=str(types))
        )
        self._cache = RepeatedCache(own, self.ranks.command)
        return self._cache

    def cache_room(self, reserved: int = 0) -> int:
        taken = self._cache.provided_bytes if self._cache is not None else 0
        rooms = [room - taken for room in self.ranks.room_bytes]
        return max(min(self.first.cache_room(reserved), *rooms), 0)

    def sample_cache(self, types: KVTypes) -> Cache:
        return self.first.sample_cache(types)

    # --- passes -----------------------------------------------------------------------------------

    def hidden(self, batch: BatchArrays, cache: Cache) -> Array:
        with self._step(batch, cache, logits=False) as own:
            return self.first.hidden(batch, own)

    def forward(self, batch: BatchArrays, cache: Cache) -> Array:
        with self._step(batch, cache, logits=True) as own:
            return self.first.forward(batch, own)

    def hidden_and_logits(self, batch: BatchArrays, cache: Cache, predicted: Array) -> tuple[Array, Array]:
        with self._step(batch, cache, logits=True, predicted=predicted) as own:
            return self.first.hidden_and_logits(batch, own, predicted)

    @contextlib.contextmanager
    def _step(
        self, batch: BatchArrays, cache: Cache, *, logits: bool, predicted: Array | None = None
    ) -> Iterator[Cache]:
        """Have the other ranks compute what this block does with the cache that it gets."""
        assert isinstance(cache, RepeatedCache), "the model has caches of its own"
        assert cache is self._cache, "ranks have the newest cache alone"
        assert cache.batch is not None
        assert not cache.told, "ranks make room with each step"
        assert batch.kept is None, "nothing that reads hidden states works with it"
        wanted = None if predicted is None else np.asarray(self.ops.numpy(predicted), np.int64).tobytes()
        message, _ = packed(cache.batch, whole=False, images=False)
        self.ranks.tell(Step(batch=message, logits=logits, predicted=wanted))
        cache.told = True
        try:
            with self.ranks.in_pass():
                yield cache.own
                self.ops.finish()
        except ModelLostError:
            raise
        except Exception as error:  # the others wait for what will not come
            raise self.ranks.failed(error) from error
        except BaseException:
            self.ranks.give_up("rank 0 was interrupted")
            raise

    def layer_ropes(self, context: int) -> list[Rope | None]:
        """See `Decoder.layer_ropes`."""
        return self.first.layer_ropes(context)

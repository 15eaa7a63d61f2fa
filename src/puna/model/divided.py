"""A model whose layers are divided among devices: GPUs and the processor, within one process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from puna.batch import BatchArrays, ImageStates
from puna.kvcache.cache import Cache
from puna.kvcache.divided import DividedCache
from puna.kvcache.types import F16_TYPES, KVTypes
from puna.model.base import PassPart
from puna.model.layer_cache import typical_bytes
from puna.model.staged import StagedModel

if TYPE_CHECKING:
    from puna.model.decoder import Decoder
    from puna.ops import Array, Backend, Rope


class DividedModel(StagedModel):
    """`RunnableModel` of several stages, consecutive layers each with a backend of its own.

    What one stage hands to the next goes through the host.
    """

    def __init__(self, stages: Sequence[Decoder]) -> None:
        first = stages[0]
        super().__init__(first)
        self.stages = list(stages)
        self.parts = [
            PassPart(first.ops, lambda _, batch, cache: first.run(first.embed(batch), batch, cache)),
            *(PassPart(stage.ops, stage.run) for stage in stages[1:]),
            PassPart(first.ops, lambda carried, batch, _: [first.logits(first.finish(carried, batch))]),
        ]

    @property
    def kernels(self) -> str:
        """The kernels of each stage, with its layers if they differ."""
        names = [stage.ops.kernels for stage in self.stages]
        if len(set(names)) == 1:
            return names[0]
        places = [each.options.stage for each in self.stages]
        return ", ".join(f"{name} ({place})" for name, place in zip(names, places, strict=True))

    def layers_on(self) -> Mapping[Backend, int]:
        """Return how many layers each backend computes, in the order of stages."""
        found: dict[Backend, int] = {}
        for stage in self.stages:
            found[stage.ops] = found.get(stage.ops, 0) + len(stage.layers)
        return found

    def cache_shares(self) -> Mapping[Backend, float]:
        """Return about which share of a cache's bytes each backend keeps."""
        sizes: dict[Backend, int] = {}
        for stage in self.stages:
            sizes[stage.ops] = sizes.get(stage.ops, 0) + typical_bytes(stage.sample_cache(F16_TYPES))
        whole = max(sum(sizes.values()), 1)
        return {ops: size / whole for ops, size in sizes.items()}

    # --- caches -----------------------------------------------------------------------------------

    def make_cache(self, *, sequences: int, context: int, capacity: int, types: KVTypes) -> Cache:
        sizes = {"sequences": sequences, "context": context, "capacity": capacity}
        with ExitStack() as made:
            caches = []
            for stage in self.stages:
                caches.append(stage.make_cache(**sizes, types=types))
                made.callback(caches[-1].close)
            made.pop_all()  # all could be made
        return DividedCache(caches)

    def sample_cache(self, types: KVTypes) -> Cache:
        return DividedCache([stage.sample_cache(types) for stage in self.stages])

    def cache_room(self, reserved: int = 0) -> int:
        rooms = [
            int(max(ops.available_memory(reserved), 0) / share)
            for ops, share in self.cache_shares().items()
            if share
        ]
        return min(rooms)

    # --- passes -----------------------------------------------------------------------------------

    def hidden(self, batch: BatchArrays, cache: Cache) -> Array:
        batches = {self.ops: batch}
        carried, there = self.first.embed(batch), self.ops
        for stage in self.stages:
            if stage.ops not in batches:
                batches[stage.ops] = self._batch_for(stage, batch)
            carried = [_moved(each, there, stage.ops) for each in carried]
            carried, there = stage.run(carried, batches[stage.ops], cache), stage.ops
        return self.first.finish([_moved(each, there, self.ops) for each in carried], batch)

    def _batch_for(self, stage: Decoder, batch: BatchArrays) -> BatchArrays:
        """Return the batch as arrays of a stage that is not the first."""
        move = partial(_moved, source=self.ops, target=stage.ops)
        division = stage.options.stage
        assert division is not None
        payloads = batch.payloads if stage.reads_images(division.begin) else []
        return BatchArrays(
            tokens=move(batch.tokens),
            positions=move(batch.positions),
            outputs=None if batch.outputs is None else move(batch.outputs),
            payloads=[
                (row, ImageStates(move(each.states)) if isinstance(each, ImageStates) else each)
                for row, each in payloads
            ],
            kept=batch.kept,  # only the first stage writes to it
        )

    def layer_ropes(self, context: int) -> list[Rope | None]:
        """See `Decoder.layer_ropes`."""
        return [rope for stage in self.stages for rope in stage.layer_ropes(context)]


def _moved(array: Array, source: Backend, target: Backend) -> Array:
    """Return an array of `source` as one of `target`."""
    return array if source is target else target.array(np.array(source.numpy(array)))

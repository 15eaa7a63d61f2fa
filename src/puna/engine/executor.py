"""Execution of batches: the model's results for each slice."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

from puna.engine.batching import assemble
from puna.engine.replay import Replay
from puna.engine.sequence import EmbeddingInput

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from puna.batch import Batch, KeptStates
    from puna.engine.batching import BatchSlice
    from puna.kvcache.cache import Cache
    from puna.model.load import LoadedModel
    from puna.ops import Array

#: float32 [rows, vocab] or [rows, hidden]
Rows = np.ndarray[tuple[int, int], np.dtype[np.float32]]


class Executor:
    """Runs the forward passes of one model over one cache."""

    def __init__(self, loaded: LoadedModel, cache: Cache, kept: KeptStates | None = None) -> None:
        """`kept`, if given, receives the hidden states of passes."""
        self._loaded = loaded
        self._cache = cache
        self._kept = kept
        self._replay = Replay(loaded.model, cache, kept)
        self.seconds = 0.0  # time of the last pass

    def execute(self, slices: list[BatchSlice]) -> list[Rows]:
        """Return logits [rows, vocab] of each slice's wanted rows, or hidden states [rows, hidden] to embed.

        Afterwards the cache holds the inputs of all slices; after an error it is unchanged.
        """
        began = time.monotonic()
        batch = assemble(slices)
        self._cache.start_forward(batch)
        try:
            with self._adapted(batch, slices):
                results = self._forward(batch, slices)
        except BaseException:
            self._cache.undo_forward()
            raise
        self.seconds = time.monotonic() - began
        return results

    def close(self) -> None:
        self._replay.close()

    def _forward(self, batch: Batch, slices: list[BatchSlice]) -> list[Rows]:
        counts = [len(batch_slice.outputs) for batch_slice in slices]
        embeds = [isinstance(batch_slice.sequence, EmbeddingInput) for batch_slice in slices]
        # Some files pad the output beyond the vocabulary.
        vocab, ops, model = self._loaded.tokenizer.vocab_size, self._loaded.ops, self._loaded.model
        if not any(embeds):
            return _split(ops.numpy(self._logits(batch))[:, :vocab], counts)
        if all(embeds):
            return _split(ops.numpy(model.hidden(batch.on(ops), self._cache)), counts)
        predicted = ops.array(np.flatnonzero(~np.repeat(embeds, counts)))
        hidden, logits = model.hidden_and_logits(batch.on(ops, self._kept), self._cache, predicted)
        predicting = [0 if embed else count for embed, count in zip(embeds, counts, strict=True)]
        states = _split(ops.numpy(hidden), counts)
        predictions = _split(ops.numpy(logits)[:, :vocab], predicting)
        return [
            state if embed else prediction
            for embed, state, prediction in zip(embeds, states, predictions, strict=True)
        ]

    def _logits(self, batch: Batch) -> Array:
        if (adapters := self._loaded.adapters) is not None and adapters.rows.active:
            # Recorded passes ignore adapters.
            return self._loaded.model.forward(batch.on(self._loaded.ops, self._kept), self._cache)
        return self._replay.forward(batch)

    @contextlib.contextmanager
    def _adapted(self, batch: Batch, slices: list[BatchSlice]) -> Iterator[None]:
        """Compute each row with the adapters of its sequence in this context."""
        adapters = self._loaded.adapters
        if adapters is None:
            yield
            return
        scales: dict[int, NDArray[np.float32]] = {}
        begin = 0
        for batch_slice in slices:
            for number, scale in batch_slice.sequence.adapters:
                rows = scales.setdefault(number, np.zeros(len(batch), np.float32))
                rows[begin : begin + batch_slice.rows] = scale
            begin += batch_slice.rows
        adapters.rows.begin(scales, batch.outputs)
        try:
            yield
        finally:
            adapters.rows.end()


def _split(rows: Rows, counts: list[int]) -> list[Rows]:
    """Return consecutive parts of `rows` with `counts` rows each."""
    ends = list(accumulate(counts))
    return [rows[end - count : end] for end, count in zip(ends, counts, strict=True)]

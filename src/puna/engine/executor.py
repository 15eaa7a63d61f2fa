"""Execution of batches: the model's results for each slice, with decode steps replayed to save time.

Batches whose rows all want logits, those of decoding sequences, can be replayed. The second pass with a given
number of rows is recorded, if the backend can (`Backend.recorder`). On the third, the program is verified:
its memory is filled with garbage, it runs, the model runs as usual, and the program is used from then on only
if both results are bit-identical. So a model, cache or kernel that breaks the rules of replaying costs speed,
never correctness. PUNA_REPLAY=0 turns recording off.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

from puna.batch import Batch, BatchArrays, KeptStates
from puna.config import env_bool
from puna.engine.batching import assemble
from puna.engine.sequence import EmbeddingInput

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from puna.engine.batching import BatchSlice
    from puna.kvcache.cache import Cache
    from puna.model.base import RunnableModel
    from puna.model.load import LoadedModel
    from puna.ops import Array, Backend, IndexBuffer
    from puna.ops.recording import Program

log = logging.getLogger("puna.engine")

#: With more rows, the overhead of Python is too small to be worth a program.
_MAX_ROWS = 64

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
            repeats = any(batch_slice.draft.known for batch_slice in slices)
            return _split(ops.numpy(self._logits(batch, repeats=repeats))[:, :vocab], counts)
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

    def _logits(self, batch: Batch, *, repeats: bool) -> Array:
        adapters = self._loaded.adapters
        if repeats or (adapters is not None and adapters.rows.active):
            # Recorded passes ignore adapters, and repeating an answer takes many numbers of rows, each once.
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


class Replay:
    """Forward passes of one model over one cache: a decode step is recorded once and replayed afterwards."""

    def __init__(self, model: RunnableModel, cache: Cache, kept: KeptStates | None = None) -> None:
        """`kept`, if given, receives the hidden states of passes."""
        self._model = model
        self._cache = cache
        self._kept = kept
        self._recorder = model.ops.recorder() if env_bool("REPLAY", True) else None
        self._seen: Counter[int] = Counter()
        self._steps: dict[int, _Step] = {}  # by rows
        self._generation: int | None = None

    def forward(self, batch: Batch) -> Array:
        """Return the logits of a batch, as `model.forward` does, after `cache.start_forward(batch)`.

        Raises the same errors. The logits may be in memory that the next call overwrites.
        """
        rows = len(batch)
        if self._recorder is None or batch.outputs is not None or batch.payloads or rows > _MAX_ROWS:
            return self._evaluate(batch)
        if batch.places is not None and batch.places.ndim > 1:
            return self._evaluate(batch)
        generation = self._cache.generation
        if generation != self._generation:
            self._steps.clear()
            self._generation = generation
        if generation is None:
            return self._evaluate(batch)
        step = self._steps.get(rows)
        if step is not None:
            return self._replay(step, batch)
        self._seen[rows] += 1
        if self._seen[rows] == 1:
            return self._evaluate(batch)
        return self._record(batch)

    def close(self) -> None:
        """Release all programs, which keep the cache's storage alive."""
        self._recorder = None
        self._steps.clear()

    def _replay(self, step: _Step, batch: Batch) -> Array:
        step.inputs.take(batch)
        if not step.proven:
            return self._try(step, batch)
        try:
            step.program.run()
        except Exception:  # the usual pass raises it again, with a better message
            return self._evaluate(batch)
        return step.program.result

    def _record(self, batch: Batch) -> Array:
        """Return the logits of a usual pass, recorded if possible."""
        assert self._recorder is not None
        inputs = _Inputs(self._model.ops, len(batch))
        inputs.take(batch)
        try:
            recorded = self._recorder.record(self._forward, [inputs.tokens, inputs.positions])
        except Exception as error:
            logits = self._evaluate(batch)
            self._give_up(f"{type(error).__name__}: {error}")  # the usual pass did not raise it
            return logits
        if recorded.program is None:
            self._give_up(recorded.obstacle)
            return recorded.result
        self._steps[len(batch)] = _Step(recorded.program, inputs)
        return recorded.result

    def _evaluate(self, batch: Batch) -> Array:
        return self._model.forward(batch.on(self._model.ops, self._kept), self._cache)

    def _forward(self, tokens: Array, positions: Array) -> Array:
        batch = BatchArrays(tokens, positions, outputs=None, kept=self._kept)
        return self._model.forward(batch, self._cache)

    def _try(self, step: _Step, batch: Batch) -> Array:
        """Return the logits of a usual pass, and prove the program if it gives the same bits."""
        numpy = self._model.ops.numpy
        step.program.spoil()
        try:
            step.program.run()
            replayed = numpy(step.program.result).copy()
        except Exception as error:
            replayed, complaint = None, f"{type(error).__name__}: {error}"
        else:
            complaint = "its logits differ"
        logits = self._evaluate(batch)
        expected = numpy(logits)
        if replayed is not None and np.array_equal(replayed.view(np.int32), expected.view(np.int32)):
            step.proven = True
        else:
            self._give_up(f"a replayed pass differs from the model's: {complaint}")
        return logits

    def _give_up(self, reason: str) -> None:
        log.debug("%s runs without replay: %s", type(self._model).__name__, reason)
        self.close()


class _Inputs:
    """Inputs of recorded passes, at fixed addresses."""

    def __init__(self, ops: Backend, rows: int) -> None:
        self.tokens: IndexBuffer = ops.index_buffer(rows)
        self.positions: IndexBuffer = ops.index_buffer(rows)

    def take(self, batch: Batch) -> None:
        self.tokens.host[:] = batch.tokens
        self.positions.host[:] = batch.positions if batch.places is None else batch.places
        self.tokens.upload()
        self.positions.upload()


@dataclass
class _Step:
    """A recorded pass and its inputs."""

    program: Program
    inputs: _Inputs
    proven: bool = False

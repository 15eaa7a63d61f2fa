"""Execution of batches: the model's results for each slice, with decode steps replayed to save time.

Batches whose rows all want logits, those of decoding sequences, can be replayed. The second pass with a given
number of rows is recorded, if the backends can (`Backend.recorder`). On the third, the program is verified:
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
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from puna.batch import Batch, BatchArrays, KeptStates
from puna.config import env_bool
from puna.engine.batching import assemble
from puna.model.base import parts_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from puna.engine.batching import BatchSlice
    from puna.kvcache.cache import Cache
    from puna.model.base import PassPart, RunnableModel
    from puna.model.load import LoadedModel
    from puna.nn.low_rank import StagesRowScales
    from puna.ops import Array, Backend, IndexBuffer, NumberBuffer
    from puna.ops.recording import Program, Recorder

log = logging.getLogger("puna.engine")

#: With more rows, the overhead of Python is too small to be worth a program.
_MAX_ROWS = 64

#: Logits float32 [rows, vocab] in the backend's memory, or hidden states [rows, hidden] on the host.
Rows = Any


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

        Logits are in the backend's memory, and the next pass may overwrite them. Afterwards the cache holds
        the inputs of all slices; after an error it is unchanged.
        """
        began = time.monotonic()
        batch = assemble(slices)
        self._cache.start_forward(batch)
        try:
            with self._adapted(batch, slices):
                results = self._forward(batch, slices)
            self._loaded.ops.finish()
        except BaseException:
            self._cache.undo_forward()
            raise
        self.seconds = time.monotonic() - began
        return results

    def close(self) -> None:
        self._replay.close()

    def _forward(self, batch: Batch, slices: list[BatchSlice]) -> list[Rows]:
        counts = [len(batch_slice.outputs) for batch_slice in slices]
        embeds = [not batch_slice.sequence.predicts for batch_slice in slices]
        # Some files pad the output beyond the vocabulary.
        vocab, ops, model = self._loaded.tokenizer.vocab_size, self._loaded.ops, self._loaded.model
        if not any(embeds):
            repeats = any(batch_slice.draft.known for batch_slice in slices)
            return _split(self._logits(batch, repeats=repeats)[:, :vocab], counts)
        if all(embeds):
            return _split(ops.numpy(model.hidden(batch.on(ops), self._cache)), counts)
        predicted = ops.array(np.flatnonzero(~np.repeat(embeds, counts)))
        hidden, logits = model.hidden_and_logits(batch.on(ops, self._kept), self._cache, predicted)
        predicting = [0 if embed else count for embed, count in zip(embeds, counts, strict=True)]
        states = _split(ops.numpy(hidden), counts)
        predictions = _split(logits[:, :vocab], predicting)
        return [
            state if embed else prediction
            for embed, state, prediction in zip(embeds, states, predictions, strict=True)
        ]

    def _logits(self, batch: Batch, *, repeats: bool) -> Array:
        adapters = self._loaded.adapters
        scales = adapters.rows if adapters is not None and adapters.rows.active else None
        if repeats or (scales is not None and adapters is not None and not adapters.recordable):
            # Repeating an answer takes many numbers of rows, each once.
            return self._loaded.model.forward(batch.on(self._loaded.ops, self._kept), self._cache)
        return self._replay.forward(batch, scales)

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
    """Forward passes of one model over one cache: a decode step is recorded once and replayed afterwards.

    Each part of a pass is recorded by its backend, and computed as usual if that cannot be.
    """

    def __init__(self, model: RunnableModel, cache: Cache, kept: KeptStates | None = None) -> None:
        """`kept`, if given, receives the hidden states of passes."""
        self._model = model
        self._cache = cache
        self._kept = kept
        self._parts = parts_of(model)
        self._recorders: dict[Backend, Recorder] = {}
        for ops in {part.ops for part in self._parts} if env_bool("REPLAY", True) else ():
            if (recorder := ops.recorder()) is not None:
                self._recorders[ops] = recorder
        self._seen: Counter[_Kind] = Counter()
        self._steps: dict[_Kind, _Step] = {}
        self._adapts = True  # steps with adapters can be recorded, as far as is known
        self._generation: int | None = None

    def forward(self, batch: Batch, scales: StagesRowScales | None = None) -> Array:
        """Return the logits of a batch, as `model.forward` does, after `cache.start_forward(batch)`.

        `scales` are those of adapters that take part. Raises the same errors. The logits may be in memory
        that the next call overwrites.
        """
        rows = len(batch)
        if not self._recorders or batch.outputs is not None or batch.payloads or rows > _MAX_ROWS:
            return self._evaluate(batch)
        if (batch.places is not None and batch.places.ndim > 1) or (scales is not None and not self._adapts):
            return self._evaluate(batch)
        generation = self._cache.generation
        if generation != self._generation:
            self._steps.clear()
            self._generation = generation
        if generation is None:
            return self._evaluate(batch)
        kind = _Kind(rows, scales is not None)
        step = self._steps.get(kind)
        if step is not None:
            return self._replay(step, batch)
        self._seen[kind] += 1
        if self._seen[kind] == 1:
            return self._evaluate(batch)
        return self._record(kind, batch, scales)

    def close(self) -> None:
        """Release all programs, which keep the cache's storage alive."""
        self._recorders.clear()
        self._steps.clear()

    def _replay(self, step: _Step, batch: Batch) -> Array:
        if not step.proven:
            return self._try(step, batch)
        try:
            return step.run(batch)
        except Exception:  # the usual pass raises it again, with a better message
            return self._evaluate(batch)

    def _record(self, kind: _Kind, batch: Batch, scales: StagesRowScales | None) -> Array:
        """Return the logits of a usual pass, recorded if possible."""
        pieces: list[_Piece] = []
        carried: list[NDArray[np.float32]] = []
        try:
            for part in self._parts:
                widths = [each.shape[1] for each in carried]
                piece = _Piece(part, self._cache, self._kept, kind.rows, widths, scales)
                piece.take(batch, carried)
                result = piece.record(self._recorders.get(part.ops))
                pieces.append(piece)
                if part is not self._parts[-1]:
                    carried = piece.handed_on(result)
        except Exception as error:
            logits = self._evaluate(batch)
            # The usual pass did not raise it.
            self._give_up(kind, f"{type(error).__name__}: {error}", logging.WARNING)
            return logits
        if any(piece.program is not None for piece in pieces):
            self._steps[kind] = _Step(kind, pieces)
        else:
            obstacles = (piece.obstacle for piece in pieces if piece.obstacle)
            self._give_up(kind, next(obstacles, "no part can be recorded"))
        return result

    def _evaluate(self, batch: Batch) -> Array:
        return self._model.forward(batch.on(self._model.ops, self._kept), self._cache)

    def _try(self, step: _Step, batch: Batch) -> Array:
        """Return the logits of a usual pass, and prove the programs if they give the same bits."""
        numpy = self._model.ops.numpy
        try:
            step.spoil()
            replayed = numpy(step.run(batch)).copy()
        except Exception as error:
            replayed, complaint = None, f"{type(error).__name__}: {error}"
        else:
            complaint = "its logits differ"
        logits = self._evaluate(batch)
        expected = numpy(logits)
        if replayed is not None and np.array_equal(replayed.view(np.int32), expected.view(np.int32)):
            step.proven = True
        else:
            reason = f"a replayed pass differs from the model's: {complaint}"
            self._give_up(step.kind, reason, logging.WARNING)
        return logits

    def _give_up(self, kind: _Kind, reason: str, level: int = logging.INFO) -> None:
        """Record no steps of this kind any more; the log says why: as a warning, if that is a defect."""
        name = type(self._model).__name__
        if not kind.adapted:
            log.log(level, "%s runs without replay: %s", name, reason)
            self.close()
            return
        log.log(level, "%s with adapters runs without replay: %s", name, reason)
        self._adapts = False
        self._steps = {other: step for other, step in self._steps.items() if not other.adapted}


class _Kind(NamedTuple):
    """The kind of decode steps that replay one program."""

    rows: int
    adapted: bool  # adapters take part


class _Piece:
    """One part of a recorded pass, and its inputs at fixed addresses."""

    def __init__(
        self,
        part: PassPart,
        cache: Cache,
        kept: KeptStates | None,
        rows: int,
        widths: Sequence[int],
        scales: StagesRowScales | None,
    ) -> None:
        """The part before it hands on arrays [rows, width]; `scales` are those of adapters that take part."""
        self._part = part
        self._cache = cache
        self._kept = kept
        self._tokens: IndexBuffer = part.ops.index_buffer(rows)
        self._positions: IndexBuffer = part.ops.index_buffer(rows)
        self._carried: list[NumberBuffer] = [part.ops.number_buffer(rows, width) for width in widths]
        self._scales = scales
        self._table: list[NumberBuffer] = []
        if scales is not None:
            self._table.append(part.ops.number_buffer(rows, scales.count))
        self._ends: list[int] = []  # of the columns of its own results
        self.program: Program | None = None
        self.obstacle = ""

    def take(self, batch: Batch, carried: Sequence[NDArray[np.float32]]) -> None:
        self._tokens.host[:] = batch.tokens
        self._positions.host[:] = batch.positions if batch.places is None else batch.places
        for buffer, given in zip(self._carried, carried, strict=True):
            buffer.host[:] = given
        if self._scales is not None:
            self._table[0].host[:] = self._scales.values(len(batch))
        for each in self._inputs:
            each.upload()

    def record(self, recorder: Recorder | None) -> Array:
        """Return the result of a usual pass, recorded if possible."""
        if recorder is None:
            self.obstacle = f"{self._part.ops.kernels} cannot be recorded"
            return self.run()
        recorded = recorder.record(self._compute, self._inputs)
        self.program, self.obstacle = recorded.program, recorded.obstacle
        return recorded.result

    def run(self) -> Array:
        if self.program is None:
            return self._compute(*(each.array for each in self._inputs))
        self.program.run()
        return self.program.result

    def handed_on(self, result: Array) -> list[NDArray[np.float32]]:
        """Return what the next part takes."""
        return np.split(np.asarray(self._part.ops.numpy(result)), self._ends[:-1], axis=1)

    @property
    def _inputs(self) -> list[IndexBuffer | NumberBuffer]:
        return [self._tokens, self._positions, *self._carried, *self._table]

    def _compute(self, tokens: Array, positions: Array, *others: Array) -> Array:
        batch = BatchArrays(tokens, positions, outputs=None, kept=self._kept)
        carried = list(others[: len(self._carried)])
        with contextlib.ExitStack() as stack:
            if self._scales is not None:
                stack.enter_context(self._scales.recorded(self._part.ops, others[-1]))
            found = self._part.compute(carried, batch, self._cache)
        self._ends = list(accumulate(each.shape[1] for each in found))
        return found[0] if len(found) == 1 else self._part.ops.join(found)


@dataclass
class _Step:
    """A recorded pass."""

    kind: _Kind
    pieces: list[_Piece]
    proven: bool = False

    def run(self, batch: Batch) -> Array:
        """Return the logits of `batch`. Raises the errors of the operations."""
        *others, last = self.pieces
        carried: list[NDArray[np.float32]] = []
        for piece in others:
            piece.take(batch, carried)
            carried = piece.handed_on(piece.run())
        last.take(batch, carried)
        return last.run()

    def spoil(self) -> None:
        """Overwrite everything that programs compute with nonsense."""
        for piece in self.pieces:
            if piece.program is not None:
                piece.program.spoil()

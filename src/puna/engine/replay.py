"""Forward passes without Python in the way: a decode step recorded once and replayed afterwards.

Only batches of which every row is wanted come into question: one row per stream that is decoding. The second
time a number of rows is seen, its pass is recorded (`ops/record.py`). The third time the program is tried:
its memory is filled with nonsense, it runs, the model runs as usual, and only if both gave the same bits is
the program used from then on. So a model, cache or kernel that breaks the rules of replaying costs speed,
never a wrong answer. With PUNA_REPLAY=0 nothing is recorded.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from puna import ops
from puna.batch import Batch
from puna.config import env_bool

if TYPE_CHECKING:
    from puna.kvcache.cache import Cache
    from puna.model.base import TextModel
    from puna.ops.record import Memory, Program

log = logging.getLogger("puna.engine")

#: With more rows than this, what Python takes is not worth a program.
_MOST_ROWS = 64


class Replay:
    """Runs a model's forward passes over one cache, replaying those it can."""

    def __init__(self, model: TextModel, cache: Cache) -> None:
        self._model = model
        self._cache = cache
        self._enabled = env_bool("REPLAY", True)
        self._seen: Counter[int] = Counter()
        self._steps: dict[int, _Step] = {}  # by rows
        self._memory: Memory | None = None  # of all programs
        self._generation: int | None = None

    def forward(self, batch: Batch) -> torch.Tensor:
        """`model.forward(batch, cache)` in inference mode, after `cache.start_forward(batch)`.

        Raises the same errors. The logits may lie in memory that the next call overwrites.
        """
        rows = len(batch)
        if not self._enabled or batch.outputs is not None or batch.payloads or rows > _MOST_ROWS:
            return self._evaluate(batch)
        generation = self._cache.generation
        if generation != self._generation:
            self._steps.clear()
            self._generation = generation
        if generation is None or ops.implementation() != "cpu":
            return self._evaluate(batch)
        step = self._steps.get(rows)
        if step is not None:
            return self._replay(step, batch)
        self._seen[rows] += 1
        if self._seen[rows] == 1:
            return self._evaluate(batch)
        return self._record(batch)

    def close(self) -> None:
        """Let go of all programs and what they keep alive, the cache's storage among it."""
        self._enabled = False
        self._steps.clear()
        self._memory = None

    def _evaluate(self, batch: Batch) -> torch.Tensor:
        with torch.inference_mode():
            return self._model.forward(batch, self._cache)

    def _replay(self, step: _Step, batch: Batch) -> torch.Tensor:
        step.take(batch)
        if not step.proven:
            return self._try(step, batch)
        try:
            step.program.run()
        except Exception:  # said better on the usual way, where it comes up again
            return self._evaluate(batch)
        return step.program.result

    def _record(self, batch: Batch) -> torch.Tensor:
        """The usual pass, recorded if that is possible."""
        from puna.ops.record import Memory, record

        self._memory = self._memory or Memory()
        fixed = Batch(batch.tokens.clone(), batch.positions.clone(), _SEALED, None)
        try:
            recorded = record(lambda: self._evaluate(fixed), self._memory)
        except Exception as error:
            logits = self._evaluate(batch)
            self._give_up(f"{type(error).__name__}: {error}")  # which the usual way has not met
            return logits
        if recorded.program is None:
            self._give_up(recorded.obstacle)
            return recorded.result
        self._steps[len(batch)] = _Step(recorded.program, fixed)
        return recorded.result

    def _try(self, step: _Step, batch: Batch) -> torch.Tensor:
        """Both ways; the program is kept if they agree to the bit."""
        step.program.spoil()
        try:
            step.program.run()
            replayed = step.program.result.clone()
        except Exception as error:
            replayed, complaint = None, f"{type(error).__name__}: {error}"
        else:
            complaint = "its logits differ"
        logits = self._evaluate(batch)
        if replayed is not None and torch.equal(replayed.view(torch.int32), logits.view(torch.int32)):
            step.proven = True
        else:
            self._give_up(f"a replayed pass is not the same as the model's: {complaint}")
        return logits

    def _give_up(self, reason: str) -> None:
        log.debug("%s runs without replay: %s", type(self._model).__name__, reason)
        self.close()


@dataclass
class _Step:
    """A recorded pass and the inputs it reads."""

    program: Program
    inputs: Batch
    proven: bool = False

    def __post_init__(self) -> None:
        self._tokens = self.inputs.tokens.numpy()
        self._positions = self.inputs.positions.numpy()

    def take(self, batch: Batch) -> None:
        self._tokens[:] = batch.tokens.numpy()
        self._positions[:] = batch.positions.numpy()


class _Sealed:
    """Stands for `Batch.sequences` in a recorded pass: what a model made of them would never change."""

    def _refuse(self, *_: Any) -> Any:
        raise TypeError("it reads Batch.sequences")

    __getattr__ = __getitem__ = __iter__ = __len__ = __array__ = __eq__ = _refuse


_SEALED: Any = _Sealed()

"""Passes that compile a GPU's kernels while a model is loaded, so that no request waits for that."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from puna.batch import Batch
from puna.kvcache.types import KVTypes
from puna.machine import is_out_of_memory
from puna.model.base import RunnableModel
from puna.ops.sampling import Draw

_log = logging.getLogger("puna.model")

#: Rows of the passes, those that a first request needs before others. Kernels differ for one row, up to 8 and
#: 16, up to 256 and more; and for multiples of 16, whose addresses are aligned.
_ROWS: Final = (40, 1, 300, 512, 5, 12, 64, 16)
#: Most rows of a pass where the processor computes a part of the model, and a long one takes seconds.
SHORT_ROWS: Final = 64
#: No pass begins after so many seconds.
_MOST_S: Final = 60.0
#: From so many seconds on, the log says how long it took.
_NOTABLE_S: Final = 1.0


def warm_up(
    model: RunnableModel,
    types: KVTypes,
    most_rows: int,
    progress: Callable[[int, int], None],
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Compute passes of up to `most_rows` rows, with a cache of `types`.

    `progress` is called with the number of passes done and of all. A failure is logged: what cannot be
    computed is an error of the request that needs it. Only a lack of memory is raised, since the model may be
    placed elsewhere. What an encoder reads is left out.
    """
    began = clock()
    rows = [] if model.encodes_prompts else [count for count in _ROWS if count <= most_rows]
    try:
        for done, count in enumerate(rows):
            if clock() - began > _MOST_S:
                break
            _compute(model, types, count)
            progress(done + 1, len(rows))
    except Exception as error:
        if is_out_of_memory(error):
            raise
        _log.warning("a pass that compiles kernels failed; requests may fail, too", exc_info=True)
    progress(1, 1)
    if (took := clock() - began) > _NOTABLE_S:
        _log.info("compiled kernels in %.1f s", took)


def _compute(model: RunnableModel, types: KVTypes, rows: int) -> None:
    cache = model.make_cache(sequences=1, context=rows, capacity=rows, types=types)
    try:
        batch = Batch.of([0] * rows, list(range(rows)), [0] * rows, [rows - 1])
        if rows == 1:
            batch.outputs = None  # as in decode steps
        cache.start_forward(batch)
        if not model.generates:
            model.ops.numpy(model.hidden(batch.on(model.ops), cache))
            return
        logits = model.forward(batch.on(model.ops), cache)[0]
        model.ops.choose([Draw(logits, temperature=0), Draw(logits, top_k=40, top_p=0.9)])
    finally:
        cache.close()

"""The state of the engine, as the page shows it: times of steps, sequences, cells and the prefix tree."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

import msgspec.structs

from puna.engine.sequence import Generation, Sequence
from puna.kvcache.cache import Picturing
from puna.protocol import LiveSequence, LiveState

if TYPE_CHECKING:
    from puna.engine.prefix_cache import PrefixCache
    from puna.engine.scheduler import StepClock
    from puna.kvcache.cache import Cache


def live_state(
    clock: StepClock, sequences: Iterable[Sequence], cache: Cache, prefix_cache: PrefixCache
) -> LiveState:
    """Return the state of an engine between two steps; `sequences` run or wait."""
    began = time.monotonic()
    described = [_described(each) for each in sequences]
    described += [
        LiveSequence(row=entry.row, state="idle", tokens=entry.evaluated) for entry in prefix_cache.idle
    ]
    return LiveState(
        totals=msgspec.structs.replace(clock.totals, cached_tokens=prefix_cache.reused_tokens),
        sequences=described,
        caches=cache.extents() if isinstance(cache, Picturing) else [],
        prefixes=prefix_cache.picture(),
        took_s=time.monotonic() - began,
    )


def _described(sequence: Sequence) -> LiveSequence:
    entry = sequence.entry
    state: Literal["running", "waiting", "held"] = "running" if entry is not None else "waiting"
    if isinstance(sequence, Generation) and sequence.held is not None:
        state = "held"
    age_s = (time.monotonic_ns() - sequence.admitted_ns) / 1e9 if sequence.admitted_ns else 0.0
    return LiveSequence(
        row=entry.row if entry is not None else -1,
        state=state,
        tokens=sequence.evaluated,
        request=sequence.id,
        client=sequence.request.client,
        embeds=not isinstance(sequence, Generation),
        prompt=sequence.prompt_length,
        cached=sequence.cached,
        generated=sequence.generated,
        age_s=age_s,
    )

"""The state of the engine, as the page shows it: times of steps, sequences, cells and the prefix tree."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

import msgspec.structs

from puna.engine.sequence import Generation, Sequence
from puna.kvcache.cache import Picturing
from puna.protocol import LiveSequence, LiveState, StepTotals

if TYPE_CHECKING:
    from puna.engine.batching import StepLoad
    from puna.engine.prefix_cache import PrefixCache
    from puna.kvcache.cache import Cache


class StepClock:
    """Adds up what the time of steps goes on. Owned by the engine's thread."""

    def __init__(self) -> None:
        self.totals = StepTotals()

    @contextmanager
    def spending(self, on: Literal["sample_s", "mask_s", "draft_s", "image_s", "other_s"]) -> Iterator[None]:
        """Count the time of this context as spent on one thing."""
        began = time.monotonic()
        try:
            yield
        finally:
            totals = self.totals
            setattr(totals, on, getattr(totals, on) + time.monotonic() - began)

    def passed(self, load: StepLoad, seconds: float) -> None:
        """Count a pass of `seconds`; prompts and answers share it by their rows."""
        totals = self.totals
        rows = load.prompt + load.decoding + load.drafted
        of_prompts = seconds * load.prompt / rows if rows else 0.0
        totals.steps += 1
        totals.prompt_s += of_prompts
        totals.decode_s += seconds - of_prompts
        totals.prompt_tokens += load.prompt
        totals.drafted += load.drafted


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

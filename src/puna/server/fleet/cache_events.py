"""Events of caches: what the replicas of all models remember, told to routers other than Puna's own.

Nothing is kept for a listener but the version that it has of each replica: runners know what has changed
since (`puna.engine.prefix_reports`). So a slow listener gets fewer and larger changes, or is told everything
anew.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterator
from typing import Final, Literal

import msgspec

from puna.errors import PunaError, ServerBusyError
from puna.prefix_blocks import BLOCK
from puna.protocol import PrefixReport
from puna.runner.client import ModelProcess
from puna.server.fleet.fleet import Fleet
from puna.server.http.replies import named_event

#: How often runners are asked, and how long each may take.
_EVERY_S: Final = 1.0
_PATIENCE_S: Final = 10.0
#: Replicas that are asked at a time.
_AT_ONCE: Final = 32
_MAX_LISTENERS: Final = 16
#: Blocks in one event.
_MOST_BLOCKS: Final = 4096
_DIGEST_BYTES: Final = 8


class CachesBegin(msgspec.Struct, frozen=True, tag="begin"):
    """The first event of a stream, after which all replicas follow. A reader rejects other versions."""

    block_tokens: int
    digest: str = "blake2b-64"
    version: Literal[1] = 1


class CacheChanged(msgspec.Struct, frozen=True, tag="blocks"):
    """Blocks that a replica remembers or has forgotten, by their digests, 16 hexadecimal digits each.

    If `whole`, all that were known before are gone; then `removed` ones are, and `added` ones are there.
    Digests may be added that were known, and removed that were not.
    """

    replica: str
    node: str
    model: str
    whole: bool
    added: list[str]
    removed: list[str]


class CacheGone(msgspec.Struct, frozen=True, tag="gone"):
    """A replica has ended, with all that it remembered."""

    replica: str


CacheEvent = CachesBegin | CacheChanged | CacheGone


class CacheListeners:
    """Streams of events of a fleet's caches, one for each listener."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._count = 0

    async def events(self) -> AsyncGenerator[bytes, None]:
        """Yield events as server-sent events without end. Raises ServerBusyError when too many listen."""
        if self._count >= _MAX_LISTENERS:
            raise ServerBusyError(f"{self._count} clients listen to events of caches, the most there may be")
        self._count += 1
        try:
            yield named_event(CachesBegin(BLOCK))
            known: dict[str, int] = {}  # versions by replica
            while True:
                async for event in self._news(known):
                    yield named_event(event)
                await asyncio.sleep(_EVERY_S)
        finally:
            self._count -= 1

    async def _news(self, known: dict[str, int]) -> AsyncGenerator[CacheEvent, None]:
        """Yield what has changed since the versions `known`, and note the new ones there."""
        models = {
            process.name: (entry.model.name, process)
            for entry in self._fleet.loaded()
            if entry.runner is not None
            for process in entry.runner.processes()
        }
        for gone in known.keys() - models.keys():
            del known[gone]
            yield CacheGone(gone)
        names = [*models]
        for begin in range(0, len(names), _AT_ONCE):
            asked = [models[name] for name in names[begin : begin + _AT_ONCE]]
            reports = await asyncio.gather(
                *(_report(process, known.get(process.name, 0)) for _, process in asked)
            )
            for (model, process), report in zip(asked, reports, strict=True):
                if report is not None and report.version != known.get(process.name):
                    known[process.name] = report.version
                    for event in _changes(model, process, report):
                        yield event


async def _report(process: ModelProcess, since: int) -> PrefixReport | None:
    """Return a process's report; None if it has ended, or does not answer soon."""
    with contextlib.suppress(PunaError, TimeoutError):
        async with asyncio.timeout(_PATIENCE_S):
            return await process.client.prefixes(since)
    return None


def _changes(model: str, process: ModelProcess, report: PrefixReport) -> Iterator[CacheChanged]:
    """Yield a report in pieces; only the first of a whole one is `whole`."""
    added, removed = _digests(report.added), _digests(report.removed)
    for begin in range(0, max(len(added), len(removed), 1), _MOST_BLOCKS):
        piece = slice(begin, begin + _MOST_BLOCKS)
        whole = report.whole and begin == 0
        yield CacheChanged(process.name, process.node, model, whole, added[piece], removed[piece])


def _digests(packed: bytes) -> list[str]:
    text, digits = packed.hex(), 2 * _DIGEST_BYTES
    return [text[begin : begin + digits] for begin in range(0, len(text), digits)]

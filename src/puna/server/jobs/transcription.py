"""Transcriptions of audio files, for the endpoints of all APIs."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec.structs

from puna.audio.decoder.client import Decoding
from puna.chat.templates.author import Author
from puna.chat.templates.choose import check_capabilities
from puna.errors import shown
from puna.protocol import Heard, Segment, Transcribe, Transcribed
from puna.server.http.connections import caller
from puna.server.http.forms import FormFile
from puna.server.jobs.jobs import capabilities
from puna.server.jobs.service import LoadRequest, Service, warnings
from puna.server.jobs.turns import run_in_thread

#: What a model needs to be able to do.
_NEEDS: Final = ("transcription",)


@dataclass(frozen=True)
class TranscriptionEnd:
    """The end of a transcription."""

    end: Transcribed
    warnings: Sequence[str]


#: Items of a transcription.
Part = Heard | Segment | TranscriptionEnd


async def transcribe(
    backend: Service, order: LoadRequest, request: Transcribe, file: FormFile
) -> AsyncGenerator[Part, None]:
    """Yield the parts of a transcription of `file`, `TranscriptionEnd` last.

    Closing the generator ends the work. Raises AudioError for a file that cannot be decoded, and RequestError
    for a model that does not transcribe.
    """
    check_capabilities(order.model.name, await capabilities(Author.of(order.model)), _NEEDS)
    with (
        backend.metrics.observation(order.model.name, order.arrived_ns) as observation,
        backend.requests.running(order.model.name, order.arrived_ns) as running,
    ):
        with running.waiting():
            samples = await _decoded(backend, file)
        request = msgspec.structs.replace(request, samples=samples, client=order.client)
        del file, samples  # which may be large
        async with contextlib.AsyncExitStack() as held:
            with running.waiting():
                runner = await held.enter_async_context(backend.runner(order, priority=request.priority))
            observation.loaded()
            running.loaded()
            events = await held.enter_async_context(contextlib.aclosing(runner.transcribe(request)))
            del request  # and so its samples, once the runner has them
            while True:
                with running.waiting():
                    event = await anext(events, None)
                if event is None:
                    return
                if isinstance(event, Transcribed):
                    observation.transcribed(event)
                    yield TranscriptionEnd(event, warnings(order, runner))
                    continue
                if isinstance(event, Segment):
                    observation.heard()
                    running.generated(len(event.tokens))
                yield event


async def _decoded(backend: Service, file: FormFile) -> memoryview:
    """Return the samples in `file`, decoded when it is the client's turn."""
    turn = backend.decoding.enter(caller().client)
    try:
        async for _ in turn.waiting():
            pass
        decoding = Decoding(file.data, f"the file {shown(file.name)}" if file.name else "the file")
        try:
            return await run_in_thread(decoding.samples)
        finally:
            decoding.stop()  # its client may have left
    finally:
        turn.leave()

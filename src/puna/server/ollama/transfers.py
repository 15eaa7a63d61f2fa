"""Routes of `/api/pull` and `/api/push`, which transfer models from and to registries with progress."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncGenerator, Callable
from typing import Any

from starlette.routing import Route
from starlette.types import ASGIApp

from puna.errors import InvalidNameError, PunaError, RequestError
from puna.registry.network import TransferCancelledError
from puna.registry.pull import pull
from puna.registry.push import push
from puna.registry.report import Report, TransferProgress
from puna.server.fleet.events import ModelPulled
from puna.server.http.bodies import body_route
from puna.server.http.connections import caller
from puna.server.http.replies import NDJSON, json_lines, json_reply
from puna.server.jobs.service import Service
from puna.server.jobs.turns import run_in_thread
from puna.server.ollama.wire import TransferRequest
from puna.store import ModelName


async def progress_reply(backend: Service, steps: AsyncGenerator[Any, None], stream: bool) -> ASGIApp:
    """Return a stream of JSON lines, or the last step once the work is done."""
    if stream:
        return backend.streams.lines(json_lines(steps))
    async with contextlib.aclosing(steps):
        all_steps = [step async for step in steps]
    return json_reply(all_steps[-1], content_type="application/json")


_log = logging.getLogger(__name__)

#: Work that reports its progress, and ends when the event is set.
_Work = Callable[[Report, threading.Event], object]


def routes(backend: Service) -> list[Route]:
    async def pull_model(body: TransferRequest) -> ASGIApp:
        """Download a model from a registry, a hub or a web server."""
        _check_name(body.wanted)
        steps = pulling(backend, body.wanted, insecure=body.insecure)
        return await progress_reply(backend, steps, body.stream)

    async def push_model(body: TransferRequest) -> ASGIApp:
        """Upload a model to a registry."""
        if not body.wanted.strip():
            raise RequestError("model is required")
        _check_name(body.wanted)

        def work(report: Report, cancelled: threading.Event) -> None:
            push(backend.store, body.wanted, report, insecure=body.insecure, cancelled=cancelled)

        return await progress_reply(backend, _followed(backend, body.wanted, work), body.stream)

    return [
        body_route("/api/pull", TransferRequest, pull_model, gives=TransferProgress, streams=NDJSON),
        body_route("/api/push", TransferRequest, push_model, gives=TransferProgress, streams=NDJSON),
    ]


def pulling(backend: Service, name: str, *, insecure: bool = False) -> AsyncGenerator[TransferProgress, None]:
    """Pull a model, yielding its progress."""

    def work(report: Report, cancelled: threading.Event) -> None:
        pull(backend.store, name, report, insecure=insecure, cancelled=cancelled)

    return _followed(backend, name, work, ModelPulled(ModelName.parse(name.strip()).display))


async def _followed(
    backend: Service, name: str, work: _Work, done: ModelPulled | None = None
) -> AsyncGenerator[TransferProgress, None]:
    """Run `work` on the model `name` in a thread, and yield its steps, only the latest one of each blob.

    Those who listen to the events of models are told `done` in the end.
    Closing the generator ends the work; the parts transferred so far are kept for the next time.
    """
    turn = backend.transfers.enter(caller().client, ModelName.parse(name.strip()).host.lower())
    loop = asyncio.get_running_loop()
    steps: dict[tuple[str, str], TransferProgress] = {}
    news = asyncio.Event()
    cancelled = threading.Event()

    def add(step: TransferProgress) -> None:
        steps[step.status, step.digest] = step
        news.set()

    def report(step: TransferProgress) -> None:
        loop.call_soon_threadsafe(add, step)

    try:
        async for ahead in turn.waiting():
            yield TransferProgress(f"waiting for {ahead} other {'transfer' if ahead == 1 else 'transfers'}")
        working: asyncio.Future[object] = run_in_thread(lambda: work(report, cancelled))
    except BaseException:
        turn.leave()
        raise
    working.add_done_callback(_log_failure)
    # A thread whose client has left still uses its slot.
    working.add_done_callback(lambda _: turn.leave())
    working.add_done_callback(lambda _: news.set())
    try:
        while not working.done() or steps:
            await news.wait()
            news.clear()
            for key in list(steps):
                yield steps.pop(key)
        await working
        if done is not None:
            backend.fleet.events.say(done)
    except PunaError as error:
        raise backend.store.for_clients(error) from error
    finally:
        cancelled.set()


def _log_failure(working: asyncio.Future[object]) -> None:
    """Log an unexpected error of a transfer, since its client may have left."""
    error = working.exception()
    if error is not None and not isinstance(error, PunaError | TransferCancelledError):
        _log.error("a transfer failed", exc_info=error)


def _check_name(name: str) -> None:
    try:
        ModelName.parse(name.strip())
    except InvalidNameError as error:
        raise InvalidNameError("invalid model name") from error

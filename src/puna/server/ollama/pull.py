"""`/api/pull`: a model from a registry, with progress."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator

from starlette.requests import Request
from starlette.routing import Route
from starlette.types import ASGIApp

from puna.errors import InvalidNameError
from puna.registry.pull import Progress, pull
from puna.server.http.decoding import read
from puna.server.http.routing import route
from puna.server.jobs.backend import Backend
from puna.server.jobs.threads import in_own_thread
from puna.server.ollama.progress import progress_reply
from puna.server.ollama.wire import PullRequest
from puna.store import ModelName


def routes(backend: Backend) -> list[Route]:
    async def answer(request: Request) -> ASGIApp:
        body = await read(request, PullRequest)
        try:
            ModelName.parse(body.wanted.strip())
        except InvalidNameError as error:
            raise InvalidNameError("invalid model name") from error
        return await progress_reply(pulling(backend, body.wanted, insecure=body.insecure), body.stream)

    return [route("/api/pull", answer, "POST")]


async def pulling(backend: Backend, name: str, *, insecure: bool = False) -> AsyncGenerator[Progress, None]:
    """The steps of pulling a model; of those that wait to be sent, only the last about each blob.

    Closing the generator ends the work, and what has come stays for the next time.
    """
    loop = asyncio.get_running_loop()
    steps: dict[tuple[str, str], Progress] = {}
    news = asyncio.Event()
    cancelled = threading.Event()

    def hear(step: Progress) -> None:
        steps[step.status, step.digest] = step
        news.set()

    def report(step: Progress) -> None:
        loop.call_soon_threadsafe(hear, step)

    async with backend.pulls:
        working = in_own_thread(
            lambda: pull(backend.store, name, report, insecure=insecure, cancelled=cancelled)
        )
        working.add_done_callback(lambda _: news.set())
        try:
            while not working.done() or steps:
                await news.wait()
                news.clear()
                for key in list(steps):
                    yield steps.pop(key)
        finally:
            cancelled.set()
        await working

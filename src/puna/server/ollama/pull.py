"""`/api/pull`: a model from a registry, with progress."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator

from starlette.requests import Request
from starlette.routing import Route
from starlette.types import ASGIApp

from puna.errors import InvalidNameError
from puna.registry.pull import Progress, pull
from puna.server.http.decoding import read
from puna.server.http.error_replies import native_error_line
from puna.server.http.replies import NDJSON, StreamReply, json_lines, json_reply, started
from puna.server.http.routing import route
from puna.server.jobs.backend import Backend
from puna.server.jobs.threads import in_own_thread
from puna.server.ollama.wire import PullRequest
from puna.store import ModelName


def routes(backend: Backend) -> list[Route]:
    async def answer(request: Request) -> ASGIApp:
        body = await read(request, PullRequest)
        try:
            ModelName.parse(body.wanted.strip())
        except InvalidNameError as error:
            raise InvalidNameError("invalid model name") from error
        steps = pulling(backend, body.wanted, insecure=body.insecure)
        if body.stream:
            return StreamReply(await started(json_lines(steps)), NDJSON, native_error_line)
        async with contextlib.aclosing(steps):
            heard = [step async for step in steps]
        return json_reply(heard[-1], content_type="application/json")

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

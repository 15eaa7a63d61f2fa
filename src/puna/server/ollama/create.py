"""Routes of `/api/create` and `/api/blobs`, which make models from uploaded files or other models."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from puna.chat.answers.registry import check_parser
from puna.chat.templates.choose import check_template
from puna.chat.templates.defaults import check_renderer
from puna.errors import InvalidNameError, PunaError, RequestError, TemplateError
from puna.quantize.mixture import file_type_of
from puna.registry.report import TransferProgress
from puna.server.fleet.events import ModelCreated
from puna.server.http.bodies import NOTHING, body_route, route
from puna.server.http.connections import caller
from puna.server.http.replies import NDJSON, empty
from puna.server.jobs.service import Service
from puna.server.jobs.turns import run_in_thread, run_parser
from puna.server.ollama.transfers import progress_reply, pulling
from puna.server.ollama.wire import CreateRequest
from puna.store import ModelName, ModelSpec, normalize_digest
from puna.store.create import needs_process, uploads_of
from puna.store.creator.client import creating


def _blobs(backend: Service) -> list[Route]:
    async def blob(request: Request) -> Response:
        """Upload a file by its digest, or check whether it exists."""
        digest = request.path_params["digest"]
        if request.method == "HEAD":
            # If a damaged file counted as present, clients would not send a good one.
            whole = await backend.in_store(lambda: backend.store.offer_blob(digest))
            return empty(200 if whole else 404)
        expected = normalize_digest(digest)
        existed = backend.store.has_blob(expected)
        with backend.store.blob_writer() as writer:
            try:
                async for chunk in request.stream():
                    writer.write(chunk)
            except ClientDisconnect:
                return empty(499)  # nobody reads this; the received part is discarded
            await backend.in_store(lambda: writer.commit(expected))  # this waits for the disk
        return empty(200 if existed else 201)

    return [route("/api/blobs/{digest}", blob, "HEAD", "POST", content_type=NOTHING)]


#: Stands for the digest that clients expect, which does not exist yet.
_NO_DIGEST = "0000000000000000000"


def routes(backend: Service) -> list[Route]:
    async def create(body: CreateRequest) -> ASGIApp:
        """Create a model from another model or from uploaded files."""
        spec = await run_parser(lambda: _spec(backend, body))
        statuses = _create(backend, body.wanted, spec, body.ignored)
        return await progress_reply(backend, statuses, body.stream)

    return [
        *_blobs(backend),
        body_route("/api/create", CreateRequest, create, gives=TransferProgress, streams=NDJSON),
    ]


def _spec(backend: Service, body: CreateRequest) -> ModelSpec:
    """Return the specification of a request after all checks that need no files."""
    try:
        ModelName.parse(body.wanted.strip())
    except InvalidNameError as error:
        raise InvalidNameError("invalid model name") from error
    if not body.from_model and body.files is None:
        raise RequestError("neither 'from' or 'files' was specified")
    if not body.from_model and not body.files:
        raise RequestError("unknown type: 'files' is empty")
    wanted = body.quantize or body.quantization
    if body.template:
        try:
            check_template(body.template)
        except TemplateError as error:
            raise RequestError(f"template error: {error}") from error
    if body.renderer:
        check_renderer(body.renderer)
    if body.parser:
        check_parser(body.parser)
    if body.from_model:
        ModelName.parse(body.from_model.strip())
    return ModelSpec(
        from_model=body.from_model or None,
        files=body.files or {},
        adapters=body.adapters,
        adapter_scales=body.adapter_scales,
        template=body.template or None,
        system=body.system or None,
        license=body.licenses,
        parameters={name: value for name, value in body.parameters.items() if value is not None},
        messages=[{"role": message.role, "content": message.content} for message in body.messages],
        renderer=body.renderer or None,
        parser=body.parser or None,
        requires=body.requires or None,
        quantize=file_type_of(wanted) if wanted else None,
    )


async def _create(
    backend: Service, name: str, spec: ModelSpec, warnings: Sequence[str]
) -> AsyncGenerator[dict[str, Any], None]:
    """Yield each status that the store reports, the last one with `warnings`.

    Files are converted, joined and quantised in a separate process, which ends when the client leaves. Work
    that is quick is finished in any case.
    """
    if spec.from_model and not backend.store.exists(spec.from_model):
        async for step in pulling(backend, spec.from_model):
            if step.status != "success":
                yield msgspec.to_builtins(step)
    made = _made(backend, name, spec) if needs_process(spec) else _assembled(backend, name, spec)
    async with contextlib.aclosing(made):
        try:
            async for status in made:
                ended = status["status"] == "success"
                yield {**status, **({"warnings": warnings} if warnings and ended else {})}
        except PunaError as error:
            raise backend.store.for_clients(error) from error


async def _made(backend: Service, name: str, spec: ModelSpec) -> AsyncGenerator[dict[str, Any], None]:
    """Make a model in a separate process, when it is this request's turn, and yield the steps."""
    turn = backend.creations.enter(caller().client)
    uploads = uploads_of(spec)
    spent: set[str] = set()
    try:
        with backend.store.blobs.held(uploads) as held:  # other requests may release the same uploads
            async for ahead in turn.waiting():
                others = "model" if ahead == 1 else "models"
                yield {"status": f"waiting for {ahead} other {others} to be created"}
            steps = creating(backend.store, name, spec, stall_timeout_s=backend.settings.create_timeout_s)
            async with contextlib.aclosing(steps):
                try:
                    async for step in steps:
                        counts = {"digest": _NO_DIGEST, "total": step.total, "completed": step.done}
                        yield {"status": step.status, **(counts if step.total else {})}
                    spent = held.unclaimed()
                    _say_created(backend, name)
                except RequestError:
                    spent = held.unclaimed()
                    raise
    finally:
        turn.leave()
        if spent:
            run_in_thread(lambda: backend.store.drop_unused(spent))


async def _assembled(backend: Service, name: str, spec: ModelSpec) -> AsyncGenerator[dict[str, Any], None]:
    """Make a model of files that can be used as they are, and yield the steps."""
    loop = asyncio.get_running_loop()
    steps: asyncio.Queue[str | None] = asyncio.Queue()

    def report(status: str) -> None:
        loop.call_soon_threadsafe(steps.put_nowait, status)

    def work() -> None:
        from puna.model.header import check_file  # only needed to create models

        try:
            backend.store.create(name, spec, report, check_file)
        finally:
            loop.call_soon_threadsafe(steps.put_nowait, None)

    working = asyncio.ensure_future(backend.in_store(work))
    working.add_done_callback(
        lambda done: None if done.cancelled() or done.exception() else _say_created(backend, name)
    )
    while (status := await steps.get()) is not None:
        yield {"status": status}
    await working


def _say_created(backend: Service, name: str) -> None:
    backend.fleet.events.say(ModelCreated(ModelName.parse(name.strip()).display))

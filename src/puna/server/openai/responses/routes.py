"""Routes of `/v1/responses`: answering, and the responses stored for later requests."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from contextlib import ExitStack

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from puna.errors import RequestError, ResponseNotFoundError, shown
from puna.server.http.bodies import body_route, route
from puna.server.http.connections import caller
from puna.server.http.replies import SSE, json_reply, named_event, openai_error_event
from puna.server.jobs.documents import read_files
from puna.server.jobs.jobs import job, one_job
from puna.server.jobs.service import Service
from puna.server.openai.responses import conversation_routes
from puna.server.openai.responses.answering import Answering, Kept
from puna.server.openai.responses.background import BackgroundResponse, BackgroundResponses, interrupted
from puna.server.openai.responses.reply import (
    CountedInput,
    DeletedResponse,
    InputItems,
    ResponseEvent,
    ResponseObject,
    listed,
    response_of,
)
from puna.server.openai.responses.wire import Item, ResponsesRequest, files, input_items, resolved


def routes(backend: Service, background: BackgroundResponses) -> list[Route]:
    kept = Kept(backend)

    async def conversation(body: ResponsesRequest) -> tuple[list[Item], list[Item]]:
        given = input_items(body.input)
        await read_files(backend, files(given))
        return await asyncio.to_thread(_conversation, kept, body, given)

    async def answer(body: ResponsesRequest) -> ASGIApp:
        """Answer a conversation, and store the response so that later requests can continue from it."""
        new, before = await conversation(body)
        todo = one_job(await job(backend, body.spec([*before, *new])))
        answering = Answering(backend, kept, body, new, todo)
        if body.background:
            begun = await _begin(background, answering)
            if not body.stream:
                return json_reply(begun.response)
            return backend.streams.numbered(begun.events(-1), openai_error_event, at_once=False)
        if body.stream:
            return backend.streams.events(_encoded(answering), openai_error_event)
        return json_reply(await answering.whole())

    async def count(body: ResponsesRequest) -> Response:
        """Count the tokens of a request."""
        new, before = await conversation(body)
        todo = one_job(await job(backend, body.spec([*before, *new])))
        prompt = await backend.render(todo.order, todo.requests[0])
        return json_reply(CountedInput("response.input_tokens", len(prompt.tokens)))

    async def get(request: Request) -> ASGIApp:
        """Return a stored response; one in the background also as a stream, after any event."""
        id, owner = request.path_params["id"], caller().digest
        running = background.find(id, owner)
        if request.query_params.get("stream") == "true":
            if running is None:
                await asyncio.to_thread(kept.responses.get, id, owner)
                raise RequestError(
                    "only a response in the background can be streamed, until five minutes after its end: "
                    "leave out stream"
                )
            events = running.events(_starting_after(request))
            return backend.streams.numbered(events, openai_error_event, at_once=False)
        if running is not None and running.is_running:
            return json_reply(running.response)
        found = await asyncio.to_thread(kept.responses.get, id, owner)
        return json_reply(interrupted(found.response))

    async def cancel(request: Request) -> Response:
        """End a response in the background, and return what there is of it."""
        id, owner = request.path_params["id"], caller().digest
        if (running := background.find(id, owner)) is not None:
            await running.stop()
            return json_reply(running.response)
        found = await asyncio.to_thread(kept.responses.get, id, owner)
        if not found.response.get("background"):
            raise RequestError("only a response in the background can be cancelled")
        return json_reply(interrupted(found.response))

    async def delete(request: Request) -> Response:
        """Delete a stored response; one in the background ends."""
        id, owner = request.path_params["id"], caller().digest
        if (running := background.find(id, owner)) is not None:
            await running.stop()
            background.forget(id)
        await asyncio.to_thread(kept.responses.delete, id, owner)
        return json_reply(DeletedResponse(id, "response", True))

    async def items(request: Request) -> Response:
        """List the input items of a response."""
        found = await asyncio.to_thread(kept.responses.get, request.path_params["id"], caller().digest)
        before = await asyncio.to_thread(_before, kept, found.previous)
        return json_reply(listed([*before, *found.input], request.query_params))

    one = "/v1/responses/{id}"
    return [
        body_route(
            "/v1/responses",
            ResponsesRequest,
            answer,
            gives=ResponseObject,
            events=ResponseEvent,
            streams=SSE,
        ),
        body_route("/v1/responses/input_tokens", ResponsesRequest, count, gives=CountedInput),
        route(one, get, "GET", gives=ResponseObject, query=("stream", "starting_after")),
        route(one, delete, "DELETE", gives=DeletedResponse),
        route(one + "/cancel", cancel, "POST", gives=ResponseObject),
        route(one + "/input_items", items, "GET", gives=InputItems, query=("order", "limit", "after")),
        *conversation_routes.routes(kept.conversations),
    ]


async def _begin(background: BackgroundResponses, answering: Answering) -> BackgroundResponse:
    slot: ExitStack = caller().in_progress.pop_all()
    try:
        return await background.start(answering, slot)
    except BaseException:
        slot.close()
        raise


async def _encoded(answering: Answering) -> AsyncGenerator[bytes, None]:
    async with contextlib.aclosing(answering.events()) as events:
        async for event in events:
            yield named_event(event)


def _starting_after(request: Request) -> int:
    """Return the number of the last event that a client knows. Raises RequestError."""
    given = request.query_params.get("starting_after") or request.headers.get("last-event-id") or "-1"
    if given != "-1" and not (given.isascii() and given.isdecimal() and len(given) < 10):
        raise RequestError(f"starting_after must be the sequence_number of an event, not {shown(given)}")
    return int(given)


def _conversation(kept: Kept, body: ResponsesRequest, given: list[Item]) -> tuple[list[Item], list[Item]]:
    """Return the items of a request, and the items of the conversation before it."""

    def find(item_id: str) -> Item:
        id, number = response_of(item_id)
        try:
            found: Item = kept.responses.get(id, caller().digest).response["output"][number]
        except (ResponseNotFoundError, IndexError):
            raise RequestError(f"item {shown(item_id)} not found: send the item itself") from None
        return found

    new = resolved(given, find)
    if body.conversation_id:
        return new, kept.conversations.used(body.conversation_id, caller().digest).items
    return new, _before(kept, body.previous_response_id or None)


def _before(kept: Kept, previous: str | None) -> list[Item]:
    documents = kept.responses.chain(previous, caller().digest) if previous else []
    return [item for document in documents for item in [*document.input, *document.response["output"]]]

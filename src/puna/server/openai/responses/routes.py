"""Routes of `/v1/responses`: answering, and the responses stored for later requests."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from puna.errors import PunaError, RequestError, ResponseNotFoundError, StoreError, shown
from puna.protocol import Chunk
from puna.server.http.bodies import body_route, route
from puna.server.http.connections import caller
from puna.server.http.replies import SSE, json_reply, named_event, openai_error_event
from puna.server.jobs.answer import AnswerBuilder
from puna.server.jobs.jobs import Job, job, one_job
from puna.server.jobs.service import Finished, Part, Service
from puna.server.openai.responses.kept import Document, KeptResponses
from puna.server.openai.responses.reply import (
    CountedInput,
    DeletedResponse,
    InputItems,
    ResponseEvent,
    ResponseObject,
    ResponseWriter,
    response_of,
)
from puna.server.openai.responses.wire import Item, ResponsesRequest, input_items, resolved

_MAX_LISTED: Final = 100


def routes(backend: Service) -> list[Route]:
    settings = backend.settings
    kept = KeptResponses(backend.store.root / "responses", settings.responses_bytes, settings.max_body_bytes)

    async def answer(body: ResponsesRequest) -> ASGIApp:
        """Answer a conversation, and store the response so that later requests can continue from it."""
        given = input_items(body.input)
        new, before = await asyncio.to_thread(_conversation, kept, body, given)
        todo = one_job(await job(backend, body.spec([*before, *new])))
        answering = _Answering(backend, kept, body, new, todo)
        if body.stream:
            return backend.streams.events(answering.events(), openai_error_event)
        return json_reply(await answering.whole())

    async def count(body: ResponsesRequest) -> Response:
        """Count the tokens of a request."""
        new, before = await asyncio.to_thread(_conversation, kept, body, input_items(body.input))
        todo = one_job(await job(backend, body.spec([*before, *new])))
        prompt = await backend.render(todo.order, todo.requests[0])
        return json_reply(CountedInput("response.input_tokens", len(prompt.tokens)))

    async def get(request: Request) -> Response:
        """Return a stored response."""
        if request.query_params.get("stream") == "true":
            raise RequestError("a stored response cannot be streamed: leave out stream")
        found = await asyncio.to_thread(kept.get, request.path_params["id"], caller().digest)
        return json_reply(found.response)

    async def delete(request: Request) -> Response:
        """Delete a stored response."""
        id = request.path_params["id"]
        await asyncio.to_thread(kept.delete, id, caller().digest)
        return json_reply(DeletedResponse(id, "response", True))

    async def items(request: Request) -> Response:
        """List the input items of a response."""
        found = await asyncio.to_thread(kept.get, request.path_params["id"], caller().digest)
        before = await asyncio.to_thread(_before, kept, found.previous)
        return json_reply(_listed([*before, *found.input], dict(request.query_params)))

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
        route("/v1/responses/{id}", get, "GET", gives=ResponseObject),
        route("/v1/responses/{id}", delete, "DELETE", gives=DeletedResponse),
        route(
            "/v1/responses/{id}/input_items",
            items,
            "GET",
            gives=InputItems,
            query=("order", "limit", "after"),
        ),
    ]


def _conversation(
    kept: KeptResponses, body: ResponsesRequest, given: list[Item]
) -> tuple[list[Item], list[Item]]:
    """Return the items of a request, and the items of the conversation before it."""

    def find(item_id: str) -> Item:
        id, number = response_of(item_id)
        try:
            found: Item = kept.get(id, caller().digest).response["output"][number]
        except (ResponseNotFoundError, IndexError):
            raise RequestError(f"item {shown(item_id)} not found: send the item itself") from None
        return found

    return resolved(given, find), _before(kept, body.previous_response_id or None)


def _before(kept: KeptResponses, previous: str | None) -> list[Item]:
    documents = kept.chain(previous, caller().digest) if previous else []
    return [item for document in documents for item in [*document.input, *document.response["output"]]]


def _listed(items: list[Item], query: dict[str, str]) -> InputItems:
    """Return the page of `items` that `query` asks for. Raises RequestError."""
    if query.get("order", "desc") not in ("asc", "desc"):
        raise RequestError(f'order must be "asc" or "desc", not {shown(query["order"])}')
    limit = query.get("limit", "20")
    if not (limit.isascii() and limit.isdigit()) or not 1 <= int(limit[:9]) <= _MAX_LISTED:
        raise RequestError(f"limit must be between 1 and {_MAX_LISTED}, not {shown(limit)}")
    if query.get("order", "desc") == "desc":
        items = items[::-1]
    if after := query.get("after"):
        place = next((place for place, item in enumerate(items) if item.get("id") == after), None)
        if place is None:
            raise RequestError(f"after: there is no item {shown(after)}")
        items = items[place + 1 :]
    page = items[: int(limit)]
    ids = [item.get("id") for item in page]
    return InputItems(
        object="list",
        data=page,
        first_id=ids[0] if ids else None,
        last_id=ids[-1] if ids else None,
        has_more=len(page) < len(items),
    )


class _Answering:
    """The work on one response."""

    def __init__(
        self, backend: Service, kept: KeptResponses, body: ResponsesRequest, new: list[Item], todo: Job
    ) -> None:
        self._backend = backend
        self._kept = kept
        self._body = body
        self._new = new
        self._todo = todo
        self._writer = ResponseWriter(body)
        self._answer = AnswerBuilder()

    async def whole(self) -> ResponseObject:
        async with contextlib.aclosing(self._parts()) as parts:
            async for part in parts:
                if isinstance(part, Chunk | Finished):
                    self._answer.feed(part)
        return await self._stored_response()

    async def events(self) -> AsyncGenerator[bytes, None]:
        begun = False
        try:
            async with contextlib.aclosing(self._parts()) as parts:
                async for part in parts:
                    if not isinstance(part, Chunk | Finished):
                        continue
                    if not begun:
                        begun = True
                        for event in self._writer.started():
                            yield named_event(event)
                    for delta in self._answer.feed(part):
                        for event in self._writer.events(delta):
                            yield named_event(event)
            yield named_event(self._writer.ended(await self._stored_response()))
        except PunaError as error:
            if not begun:
                raise
            yield named_event(self._writer.failed(error))

    def _parts(self) -> AsyncGenerator[Part, None]:
        return self._backend.generate(self._todo.order, self._todo.requests)

    async def _stored_response(self) -> ResponseObject:
        """Return the complete response, stored unless the request or the server does not allow it."""
        response = self._writer.whole(self._answer, stored=self._body.store)
        if not self._body.store:
            return response
        document = Document(
            msgspec.to_builtins(response),
            self._new,
            self._body.previous_response_id or None,
            caller().digest,
        )
        try:
            if await asyncio.to_thread(self._kept.put, document):
                return response
            why = "it is larger than all stored responses may be (PUNA_RESPONSES_MB)"
        except StoreError as error:
            why = str(error)
        response.store = False
        response.warnings = [*(response.warnings or ()), f"not stored: {why}"]
        return response

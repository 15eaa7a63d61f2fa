"""`/v1/responses`: answers of the Responses API, and what is kept of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from puna.errors import PunaError, RequestError, ResponseNotFoundError, StoreError, shown
from puna.server.http.bodies import body_route, route
from puna.server.http.connections import caller
from puna.server.http.replies import SSE, StreamReply, json_reply, named_event, openai_error_event, started
from puna.server.jobs.jobs import Job, job, one_job
from puna.server.jobs.service import AnswerDelta, Finished, Service
from puna.server.jobs.tools import Segments
from puna.server.openai.responses.kept import Document, KeptResponses
from puna.server.openai.responses.reply import (
    CountedInput,
    DeletedResponse,
    InputItems,
    ResponseEvent,
    ResponseObject,
    ResponseShape,
    response_of,
)
from puna.server.openai.responses.wire import Item, ResponsesRequest, input_items, resolved

_MAX_LISTED: Final = 100


def routes(backend: Service) -> list[Route]:
    settings = backend.settings
    kept = KeptResponses(backend.store.root / "responses", settings.responses_bytes, settings.max_body_bytes)

    async def answer(body: ResponsesRequest) -> ASGIApp:
        """Answer a conversation, and keep the answer so that others can go on from it."""
        given = input_items(body.input)
        new, before = await asyncio.to_thread(_conversation, kept, body, given)
        todo = one_job(await job(backend, body.asked([*before, *new])))
        answering = _Answering(backend, kept, body, new, todo)
        if body.stream:
            return StreamReply(await started(answering.events()), SSE, openai_error_event)
        return json_reply(await answering.whole())

    async def count(body: ResponsesRequest) -> Response:
        """Tokens of a request."""
        new, before = await asyncio.to_thread(_conversation, kept, body, input_items(body.input))
        todo = one_job(await job(backend, body.asked([*before, *new])))
        prompt = await backend.render(todo.order, todo.requests[0])
        return json_reply({"object": "response.input_tokens", "input_tokens": len(prompt.tokens)})

    async def get(request: Request) -> Response:
        """A response that is kept."""
        if request.query_params.get("stream") == "true":
            raise RequestError("a response that has ended cannot be streamed again: leave out stream")
        found = await asyncio.to_thread(kept.get, request.path_params["id"], caller().digest)
        return json_reply(found.response)

    async def delete(request: Request) -> Response:
        """Forget a response."""
        id = request.path_params["id"]
        await asyncio.to_thread(kept.delete, id, caller().digest)
        return json_reply({"id": id, "object": "response", "deleted": True})

    async def items(request: Request) -> Response:
        """What a response answered: its input items."""
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
    """The items of a request, and those of the conversation before it."""

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


def _listed(items: list[Item], query: dict[str, str]) -> dict[str, Any]:
    """A page of a list. Raises RequestError."""
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
    return {
        "object": "list",
        "data": page,
        "first_id": ids[0] if ids else None,
        "last_id": ids[-1] if ids else None,
        "has_more": len(page) < len(items),
    }


class _Answering:
    """One response under way."""

    def __init__(
        self, backend: Service, kept: KeptResponses, body: ResponsesRequest, new: list[Item], todo: Job
    ) -> None:
        self._backend = backend
        self._kept = kept
        self._body = body
        self._new = new
        self._todo = todo
        self._shape = ResponseShape(body)
        self._segments = Segments()

    async def whole(self) -> dict[str, Any]:
        async with contextlib.aclosing(self._parts()) as items:
            async for item in items:
                if isinstance(item, AnswerDelta):
                    for _ in self._segments.feed(item):
                        pass
                elif isinstance(item, Finished):
                    return await self._kept_response(item)
        raise AssertionError("an answer ends with its end")

    async def events(self) -> AsyncGenerator[bytes, None]:
        begun = False
        try:
            async with contextlib.aclosing(self._parts()) as items:
                async for item in items:
                    if not begun:
                        begun = True
                        for event in self._shape.started():
                            yield named_event(event)
                    steps = (
                        self._segments.feed(item)
                        if isinstance(item, AnswerDelta)
                        else self._segments.finish()
                    )
                    for step in steps:
                        for event in self._shape.steps(step):
                            yield named_event(event)
                    if isinstance(item, Finished):
                        yield named_event(self._shape.ended(await self._kept_response(item)))
        except PunaError as error:
            if not begun:
                raise
            yield named_event(self._shape.failed(error))

    def _parts(self) -> AsyncGenerator[Any, None]:
        return self._backend.generate(self._todo.order, self._todo.requests)

    async def _kept_response(self, end: Finished) -> dict[str, Any]:
        """The whole response, which is kept unless the request or the server says not to."""
        if not self._body.store:
            return self._shape.whole(self._segments.all, end, False)
        response = self._shape.whole(self._segments.all, end, True)
        document = Document(response, self._new, self._body.previous_response_id or None, caller().digest)
        try:
            if await asyncio.to_thread(self._kept.put, document):
                return response
            why = "it is larger than what may be kept (PUNA_RESPONSES_MB)"
        except StoreError as error:
            why = str(error)
        response |= {"store": False, "warnings": [*response.get("warnings", ()), f"not stored: {why}"]}
        return response

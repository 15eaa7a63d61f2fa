"""Routes of `/v1/messages/batches`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal

import msgspec
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from puna.errors import RequestError, shown
from puna.server.anthropic.batches import Batches
from puna.server.anthropic.kept_batches import StoredBatch
from puna.server.anthropic.pages import QUERY, page
from puna.server.http.bodies import Body, Many, read, route
from puna.server.http.connections import caller
from puna.server.http.replies import StreamReply, anthropic_error_event, json_reply

#: Maximum requests of a batch.
_MAX_REQUESTS: Final = 10_000
_PIECE_BYTES: Final = 1 << 18
_JSON_LINES: Final = "application/x-jsonl"


class BatchRequest(Body):
    custom_id: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    params: dict[str, Any]


class NewBatch(Body):
    requests: Annotated[Many[BatchRequest], Field(max_length=_MAX_REQUESTS)]


class RequestCounts(msgspec.Struct):
    processing: int
    succeeded: int
    errored: int
    canceled: int
    expired: int


class MessageBatch(msgspec.Struct, kw_only=True):
    id: str
    type: Literal["message_batch"] = "message_batch"
    processing_status: Literal["in_progress", "canceling", "ended"]
    request_counts: RequestCounts
    created_at: str
    expires_at: str
    ended_at: str | None
    cancel_initiated_at: str | None
    archived_at: None = None
    results_url: str | None


class BatchPage(msgspec.Struct):
    data: list[MessageBatch]
    has_more: bool
    first_id: str | None
    last_id: str | None


class DeletedBatch(msgspec.Struct):
    id: str
    type: Literal["message_batch_deleted"]


def routes(batches: Batches) -> list[Route]:
    def found(request: Request) -> StoredBatch:
        return batches.get(request.path_params["id"], caller().digest)

    async def create(request: Request) -> Response:
        """Answer many requests later, while nobody waits for them."""
        body = await read(request, NewBatch)
        requests = [one.model_dump() for one in body.requests]
        if not requests:
            raise RequestError("requests must not be empty")
        ids = set[str]()
        for one in requests:
            if one["custom_id"] in ids:
                raise RequestError(f"custom_id {shown(one['custom_id'])} is given twice")
            ids.add(one["custom_id"])
        return json_reply(described(await batches.create(caller(), requests)))

    async def listed(request: Request) -> Response:
        """List the batches, newest first, a page at a time."""
        own = [described(batch) for batch in batches.of(caller().digest)]
        return json_reply(page(own, request.query_params, BatchPage))

    async def get(request: Request) -> Response:
        """Return a batch, with the number of its requests in each state."""
        return json_reply(described(found(request)))

    async def cancel(request: Request) -> Response:
        """End a batch; requests without a result are canceled."""
        batch = found(request)
        batches.cancel(batch)
        return json_reply(described(batch))

    async def delete(request: Request) -> Response:
        """Delete a batch that has ended."""
        batch = found(request)
        batches.delete(batch)
        return json_reply(DeletedBatch(batch.state.id, "message_batch_deleted"))

    async def results(request: Request) -> ASGIApp:
        """Return the results of a batch that has ended, a JSON object on each line."""
        batch = found(request)
        if not batch.has_ended:
            raise RequestError("the batch has not ended: its results are there once it has")
        return StreamReply(_pieces(batch), _JSON_LINES, anthropic_error_event)

    all_batches, one_batch = "/v1/messages/batches", "/v1/messages/batches/{id}"
    return [
        route(all_batches, create, "POST", takes=NewBatch, gives=MessageBatch),
        route(all_batches, listed, "GET", gives=BatchPage, query=QUERY),
        route(one_batch, get, "GET", gives=MessageBatch),
        route(one_batch, delete, "DELETE", gives=DeletedBatch),
        route(one_batch + "/cancel", cancel, "POST", gives=MessageBatch),
        route(one_batch + "/results", results, "GET", content_type=_JSON_LINES),
    ]


def described(batch: StoredBatch) -> MessageBatch:
    """Return a batch as clients see it; as in Anthropic's API, its results count once it has ended."""
    state = batch.state
    counts = batch.counts if batch.has_ended else {}
    outcomes = [counts.get(name, 0) for name in ("succeeded", "errored", "canceled", "expired")]
    running = "in_progress" if state.cancelled_s is None else "canceling"
    return MessageBatch(
        id=state.id,
        processing_status="ended" if batch.has_ended else running,  # type: ignore[arg-type]
        request_counts=RequestCounts(state.count - sum(outcomes), *outcomes),
        created_at=_time(state.created_s),
        expires_at=_time(batch.expires_s),
        ended_at=None if state.ended_s is None else _time(state.ended_s),
        cancel_initiated_at=None if state.cancelled_s is None else _time(state.cancelled_s),
        # Relative, because only the client knows by which address it reaches the server.
        results_url=f"/v1/messages/batches/{state.id}/results" if batch.has_ended else None,
    )


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


async def _pieces(batch: StoredBatch) -> AsyncGenerator[bytes, None]:
    with batch.results.open("rb") as file:
        while piece := await asyncio.to_thread(file.read, _PIECE_BYTES):
            yield piece

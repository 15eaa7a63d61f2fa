"""Routes of `/v1/models` in Anthropic's form, for clients that send an `anthropic-version` header."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from puna.errors import RequestError, shown
from puna.server.http.bodies import route
from puna.server.http.replies import ANTHROPIC_VERSION, json_reply
from puna.server.jobs.service import Service
from puna.store import StoredModel

#: Anthropic's default and largest page.
_PAGE, _LARGEST_PAGE = 20, 1000


class ModelInfo(msgspec.Struct, kw_only=True):
    """A model of the store. `max_input_tokens` is its trained context."""

    id: str
    type: Literal["model"] = "model"
    display_name: str
    created_at: str
    lifecycle: Literal["active"] = "active"
    max_input_tokens: int | None = None


class ModelPage(msgspec.Struct):
    """A page of the list of models; `first_id` and `last_id` are the cursors of its neighbours."""

    data: list[ModelInfo]
    has_more: bool
    first_id: str | None
    last_id: str | None


def routes(backend: Service) -> list[Route]:
    async def models(request: Request) -> Response:
        """List the models of the store, a page at a time."""
        stored = await asyncio.to_thread(backend.store.list)
        return json_reply(_page([_info(model, model.name) for model in stored], request.query_params))

    async def model(request: Request) -> Response:
        """Describe a model of the store."""
        name = request.path_params["model"]
        return json_reply(_info(backend.find(name), name))

    query = ("after_id", "before_id", "limit")
    return [
        route("/v1/models", models, "GET", gives=ModelPage, query=query, header=ANTHROPIC_VERSION),
        route("/v1/models/{model:path}", model, "GET", gives=ModelInfo, header=ANTHROPIC_VERSION),
    ]


def _info(model: StoredModel, name: str) -> ModelInfo:
    created = datetime.fromtimestamp(model.modified_ns // 10**9, UTC)
    return ModelInfo(
        id=name,
        display_name=name,
        created_at=f"{created:%Y-%m-%dT%H:%M:%SZ}",
        max_input_tokens=(model.facts.context_length or None) if model.facts else None,
    )


def _page(models: Sequence[ModelInfo], query: Mapping[str, str]) -> ModelPage:
    """Return the page after or before the model that `query` names. Raises `RequestError`."""
    ids = [model.id for model in models]
    limit = _limit(query.get("limit"))
    begin, end = 0, len(ids)
    if after := query.get("after_id"):
        begin = _place(ids, "after_id", after) + 1
    if before := query.get("before_id"):
        end = _place(ids, "before_id", before)
        page = models[max(end - limit, begin) : end]
        has_more = end - limit > begin
    else:
        page = models[begin : begin + limit]
        has_more = begin + limit < end
    return ModelPage(list(page), has_more, page[0].id if page else None, page[-1].id if page else None)


def _limit(given: str | None) -> int:
    if given is None:
        return _PAGE
    if not given.isdecimal() or len(given) > 4 or not 1 <= int(given) <= _LARGEST_PAGE:
        raise RequestError(f"limit must be a number from 1 to {_LARGEST_PAGE}, not {shown(given)}")
    return int(given)


def _place(ids: Sequence[str], name: str, id: str) -> int:
    if id not in ids:
        raise RequestError(f"{name}: there is no model {shown(id)}")
    return ids.index(id)

"""Routes of `/v1/models` in Anthropic's form, for clients that send an `anthropic-version` header."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from puna.server.anthropic.pages import QUERY, page
from puna.server.http.bodies import route
from puna.server.http.replies import ANTHROPIC_VERSION, json_reply
from puna.server.jobs.service import Service
from puna.store import StoredModel


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
        return json_reply(
            page([_info(model, model.name) for model in stored], request.query_params, ModelPage)
        )

    async def model(request: Request) -> Response:
        """Describe a model of the store."""
        name = request.path_params["model"]
        return json_reply(_info(backend.find(name), name))

    return [
        route("/v1/models", models, "GET", gives=ModelPage, query=QUERY, header=ANTHROPIC_VERSION),
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

"""Routes of `/v1/conversations`."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Final, Literal

import msgspec
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from puna.server.http.bodies import Body, Many, read, route
from puna.server.http.connections import caller
from puna.server.http.replies import json_reply
from puna.server.openai.responses.conversations import KeptConversations, StoredConversation, item_of
from puna.server.openai.responses.reply import InputItems, listed
from puna.server.openai.responses.wire import Item, Metadata, input_items, prompt_messages

#: Maximum items that one request adds, as in OpenAI's API.
_MAX_ADDED: Final = 20

_Added = Annotated[Many[dict[str, Any]], Field(max_length=_MAX_ADDED)]


class NewConversation(Body):
    items: _Added = Field(default_factory=list)
    metadata: Metadata = Field(default_factory=dict)


class ConversationUpdate(Body):
    metadata: Metadata


class NewItems(Body):
    items: _Added


class ConversationObject(msgspec.Struct):
    id: str
    object: Literal["conversation"]
    created_at: int
    metadata: dict[str, str]


class DeletedConversation(msgspec.Struct):
    id: str
    object: Literal["conversation.deleted"]
    deleted: Literal[True]


def routes(kept: KeptConversations) -> list[Route]:
    async def create(request: Request) -> Response:
        """Begin a conversation, to which responses can add."""
        body = await read(request, NewConversation)
        items = _checked(body.items) if body.items else []
        return _described(await asyncio.to_thread(kept.create, caller().digest, body.metadata, items))

    async def get(request: Request) -> Response:
        """Return a conversation without its items."""
        return _described(await asyncio.to_thread(kept.get, _id(request), caller().digest))

    async def update(request: Request) -> Response:
        """Replace the metadata of a conversation."""
        body = await read(request, ConversationUpdate)
        changed = await asyncio.to_thread(kept.update, _id(request), caller().digest, body.metadata)
        return _described(changed)

    async def delete(request: Request) -> Response:
        """Delete a conversation with its items."""
        await asyncio.to_thread(kept.delete, _id(request), caller().digest)
        return json_reply(DeletedConversation(_id(request), "conversation.deleted", True))

    async def items(request: Request) -> Response:
        """List the items of a conversation."""
        found = await asyncio.to_thread(kept.get, _id(request), caller().digest)
        return json_reply(listed(found.items, request.query_params))

    async def add(request: Request) -> Response:
        """Add items to a conversation."""
        added = _checked((await read(request, NewItems)).items)
        await asyncio.to_thread(kept.add, _id(request), caller().digest, added)
        return json_reply(InputItems("list", added, added[0]["id"], added[-1]["id"], False))

    async def item(request: Request) -> Response:
        """Return an item of a conversation."""
        found = await asyncio.to_thread(kept.get, _id(request), caller().digest)
        return json_reply(item_of(found, request.path_params["item"]))

    async def remove(request: Request) -> Response:
        """Remove an item from a conversation."""
        id, item = _id(request), request.path_params["item"]
        return _described(await asyncio.to_thread(kept.remove, id, caller().digest, item))

    one, all_items = "/v1/conversations/{id}", "/v1/conversations/{id}/items"
    pages = ("order", "limit", "after")
    return [
        route("/v1/conversations", create, "POST", takes=NewConversation, gives=ConversationObject),
        route(one, get, "GET", gives=ConversationObject),
        route(one, update, "POST", takes=ConversationUpdate, gives=ConversationObject),
        route(one, delete, "DELETE", gives=DeletedConversation),
        route(all_items, items, "GET", gives=InputItems, query=pages),
        route(all_items, add, "POST", takes=NewItems, gives=InputItems),
        route(all_items + "/{item}", item, "GET", gives=dict[str, Any]),
        route(all_items + "/{item}", remove, "DELETE", gives=ConversationObject),
    ]


def _id(request: Request) -> str:
    id: str = request.path_params["id"]
    return id


def _described(found: StoredConversation) -> Response:
    return json_reply(ConversationObject(found.id, "conversation", found.created_at, found.metadata))


def _checked(given: list[dict[str, Any]]) -> list[Item]:
    """Return items with ids and states. Raises RequestError for what no response could continue."""
    items = input_items(given)
    prompt_messages(items)
    return [{"status": "completed", **item} if item["type"] == "message" else item for item in items]

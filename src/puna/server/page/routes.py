"""The page's own routes below `/api/puna`: the caller, chats, files, presets, runs and tools."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from typing import Final
from urllib.parse import quote, unquote

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from puna import __version__
from puna.errors import RequestError
from puna.server.history import chats
from puna.server.history.chats import ChatHead, ChatPage, StoredChat, StoredFile, StoredMessage
from puna.server.http.bodies import NOTHING, body_route, read, route
from puna.server.http.connections import caller
from puna.server.http.event_log import last_event
from puna.server.http.replies import (
    SSE,
    StreamReply,
    empty,
    json_reply,
    native_error_event,
    native_error_line,
)
from puna.server.page.exchange import exported, import_chats, markdown_of
from puna.server.page.live import Live
from puna.server.page.memory import MemoryNeed, memory_need
from puna.server.page.runs import RunEvent
from puna.server.page.service import PageService
from puna.server.page.tools import CallResult, OfferedTools, ToolServers
from puna.server.page.wire import (
    ChatChanges,
    Deleted,
    ImportReport,
    Me,
    NewChat,
    NewMessage,
    NewRun,
    PresetBody,
    Presets,
    RunBegun,
    RunList,
    RunState,
    ToolCall,
    ToolsOf,
)

EXPORTED: Final = "application/json"
MARKDOWN: Final = "text/markdown; charset=utf-8"
_MEDIA_TYPE: Final = re.compile(r"[a-z]+/[\w.+-]+", re.ASCII)


def routes(page: PageService) -> list[Route]:
    """Return the routes of the page."""
    parts = (_caller, _engine, _chats, _exchange, _files, _presets, _runs, _tools)
    return [route for part in parts for route in part(page)]


def _caller(page: PageService) -> list[Route]:
    async def me(request: Request) -> Response:
        """Tell the caller its key's name and scopes, and whether chats are kept."""
        who, settings = caller(), page.backend.settings
        return json_reply(
            Me(
                version=__version__,
                keys=settings.keyring.required,
                name=who.key or None,
                scopes=list(who.scopes),
                history=page.history is not None,
                mcp=page.tools.allows(request),
            )
        )

    return [route("/api/puna/me", me, "GET", gives=Me)]


def _engine(page: PageService) -> list[Route]:
    async def live(request: Request) -> ASGIApp:
        """Stream the state of the engine, twice a second, of a model's `replica` if one is named."""
        replica = request.query_params.get("replica", "")
        return page.backend.streams.events(page.live.events(caller(), replica), native_error_event)

    async def memory(request: Request) -> Response:
        """Forecast the memory that a model takes, layer by layer."""
        given, backend = request.query_params, page.backend
        model = backend.find(given.get("model", ""))
        need = await memory_need(backend.store, model, given.get("num_ctx", ""), given.get("parallel", ""))
        return json_reply(need)

    return [
        route("/api/puna/live", live, "GET", events=Live, content_type=SSE, query=("replica",)),
        route("/api/puna/memory", memory, "GET", gives=MemoryNeed, query=("model", "num_ctx", "parallel")),
    ]


def _chats(page: PageService) -> list[Route]:
    async def list_chats(request: Request) -> Response:
        """List chats, pinned ones and the last used first, or those that a search finds."""
        given = request.query_params
        limit = given.get("limit", "50")
        if not (limit.isascii() and limit.isdigit() and len(limit) < 9):
            raise RequestError(f"limit must be a number, not {limit:.40}")
        found = await page.with_history(
            chats.list_chats,
            query=given.get("query", ""),
            folder=given.get("folder", ""),
            tag=given.get("tag", ""),
            cursor=given.get("cursor", ""),
            limit=int(limit),
        )
        return json_reply(found)

    async def add(body: NewChat) -> Response:
        """Begin a chat."""
        added = await page.with_history(
            chats.add_chat, title=body.title, folder=body.folder, tags=body.tags, settings=body.settings
        )
        return json_reply(added)

    async def get(request: Request) -> Response:
        """Return a chat with the messages of all its branches."""
        return json_reply(await page.with_history(chats.get_chat, request.path_params["id"]))

    async def change(request: Request) -> Response:
        """Change a chat's title, folder, tags, settings or shown branch, or pin it."""
        body = await read(request, ChatChanges)
        return json_reply(await page.with_history(chats.change_chat, request.path_params["id"], body.given))

    async def delete(request: Request) -> Response:
        """Delete a chat, which can be restored for a minute."""
        await page.with_history(chats.delete_chat, request.path_params["id"])
        page.purge_later()
        return json_reply(Deleted(1, chats.UNDO_S))

    async def delete_all(request: Request) -> Response:
        """Delete all chats of the caller; each can be restored for a minute."""
        count = await page.with_history(chats.delete_all)
        page.purge_later()
        return json_reply(Deleted(count, chats.UNDO_S))

    async def restore(request: Request) -> Response:
        """Bring a deleted chat back."""
        return json_reply(await page.with_history(chats.restore_chat, request.path_params["id"]))

    async def add_message(request: Request) -> Response:
        """Add a message to a chat; one with the parent of another is another branch."""
        body = await read(request, NewMessage)
        return json_reply(await page.with_history(chats.add_message, request.path_params["id"], body.draft))

    query = ("query", "folder", "tag", "cursor", "limit")
    return [
        route("/api/puna/chats", list_chats, "GET", gives=ChatPage, query=query),
        body_route("/api/puna/chats", NewChat, add, gives=StoredChat),
        route("/api/puna/chats", delete_all, "DELETE", gives=Deleted),
        route("/api/puna/chats/{id}", get, "GET", gives=StoredChat),
        route("/api/puna/chats/{id}", change, "PATCH", gives=ChatHead, takes=ChatChanges),
        route("/api/puna/chats/{id}", delete, "DELETE", gives=Deleted),
        route("/api/puna/chats/{id}/restore", restore, "POST", gives=ChatHead),
        route("/api/puna/chats/{id}/messages", add_message, "POST", gives=StoredMessage, takes=NewMessage),
    ]


def _exchange(page: PageService) -> list[Route]:
    async def export(request: Request) -> ASGIApp:
        """Export a chat with its files as JSON, or its shown branch as Markdown (`format=markdown`)."""
        id, form = request.path_params["id"], request.query_params.get("format", "json")
        if form == "markdown":
            return _download(await markdown_of(page, id), "chat.md")
        if form != "json":
            raise RequestError(f"format must be json or markdown, not {form:.40}")
        return _streamed(exported(page, [id]), "chat.json")

    async def export_all(request: Request) -> ASGIApp:
        """Export all chats of the caller with their files, as JSON."""
        return _streamed(exported(page, await page.with_history(chats.chat_ids)), "chats.json")

    async def import_all(request: Request) -> Response:
        """Import chats that Puna, ChatGPT or Open WebUI has exported; the body is the file."""
        return json_reply(await import_chats(page, await request.body()))

    markdown = route("/api/puna/chats/{id}/export", export, "GET", content_type=EXPORTED, query=("format",))
    markdown.content_types = (EXPORTED, MARKDOWN)
    return [
        markdown,
        route("/api/puna/export", export_all, "GET", content_type=EXPORTED),
        route("/api/puna/import", import_all, "POST", gives=ImportReport),
    ]


def _streamed(parts: AsyncGenerator[bytes, None], name: str) -> ASGIApp:
    return StreamReply(parts, EXPORTED, native_error_line, _saved_as(name))


def _download(text: str, name: str) -> Response:
    return Response(text, headers={"content-type": MARKDOWN, **_saved_as(name)})


def _saved_as(name: str) -> dict[str, str]:
    return {"content-disposition": f'attachment; filename="{name}"', "x-content-type-options": "nosniff"}


def _files(page: PageService) -> list[Route]:
    async def add(request: Request) -> Response:
        """Upload a file for a message: type and name in the headers (`X-File-Name`, percent-encoded)."""
        name = unquote(request.headers.get("x-file-name", ""))
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if not _MEDIA_TYPE.fullmatch(kind):
            kind = "application/octet-stream"
        data = await request.body()
        if not data:
            raise RequestError("the file is empty")
        return json_reply(await page.with_history(chats.add_file, name, kind, data))

    async def get(request: Request) -> Response:
        """Return the content of a file, which browsers download and never show as a page."""
        file, data = await page.with_history(chats.get_file, request.path_params["id"])
        headers = {
            "content-type": file.type,
            "content-disposition": f"attachment; filename*=UTF-8''{quote(file.name or file.id)}",
            "content-security-policy": "sandbox; default-src 'none'",
            "x-content-type-options": "nosniff",
            "cache-control": "private, max-age=31536000, immutable",
        }
        return Response(data, headers=headers)

    return [
        route("/api/puna/files", add, "POST", gives=StoredFile),
        route("/api/puna/files/{id}", get, "GET", content_type=NOTHING),
    ]


def _presets(page: PageService) -> list[Route]:
    async def presets(request: Request) -> Response:
        """List the caller's presets with their settings."""
        return json_reply(Presets(await page.with_history(chats.presets)))

    async def put(request: Request) -> Response:
        """Keep settings under a name."""
        body = await read(request, PresetBody)
        await page.with_history(chats.put_preset, request.path_params["name"], body.settings)
        return empty(200)

    async def delete(request: Request) -> Response:
        """Remove a preset."""
        await page.with_history(chats.delete_preset, request.path_params["name"])
        return empty(200)

    return [
        route("/api/puna/presets", presets, "GET", gives=Presets),
        route("/api/puna/presets/{name:path}", put, "PUT", takes=PresetBody, content_type=NOTHING),
        route("/api/puna/presets/{name:path}", delete, "DELETE", content_type=NOTHING),
    ]


def _runs(page: PageService) -> list[Route]:
    async def begin(body: NewRun) -> Response:
        """Generate answers that go on when the client leaves; `events` streams them."""
        run = await page.begin(body)
        return json_reply(RunBegun(run.id, run.start.chat, run.start.messages))

    async def list_runs(request: Request) -> Response:
        """List the caller's runs, those included that ended within a minute."""
        found = [
            RunState(
                run.id, run.start.chat, run.start.messages, run.start.model, run.state, run.start.created
            )
            for run in page.runs.of(caller().digest)
        ]
        return json_reply(RunList(found))

    async def events(request: Request) -> ASGIApp:
        """Stream the events of a run after number `after`, or after the header `Last-Event-ID`."""
        run = page.runs.get(caller().digest, request.path_params["id"])
        return page.backend.streams.numbered(run.events(last_event(request)), native_error_event)

    async def stop(request: Request) -> Response:
        """Stop a run; what it has generated is kept."""
        await page.runs.get(caller().digest, request.path_params["id"]).stop()
        return empty(200)

    return [
        body_route("/api/puna/runs", NewRun, begin, gives=RunBegun),
        route("/api/puna/runs", list_runs, "GET", gives=RunList),
        route(
            "/api/puna/runs/{id}/events", events, "GET", events=RunEvent, content_type=SSE, query=("after",)
        ),
        route("/api/puna/runs/{id}", stop, "DELETE", content_type=NOTHING),
    ]


def _tools(page: PageService) -> list[Route]:
    async def servers(request: Request) -> Response:
        """List the MCP servers that the server's owner has configured."""
        page.tools.check(request)
        return json_reply(await page.tools.servers())

    async def offer(request: Request) -> Response:
        """Connect MCP servers, and return the tools that they have."""
        page.tools.check(request)
        body = await read(request, ToolsOf)
        return json_reply(await page.tools.offered(body.servers))

    async def call(request: Request) -> Response:
        """Call a tool of an MCP server; the call ends with the request."""
        page.tools.check(request)
        body = await read(request, ToolCall)
        return json_reply(await page.tools.call(body))

    return [
        route("/api/puna/mcp", servers, "GET", gives=ToolServers),
        route("/api/puna/mcp/tools", offer, "POST", gives=OfferedTools, takes=ToolsOf),
        route("/api/puna/mcp/call", call, "POST", gives=CallResult, takes=ToolCall),
    ]

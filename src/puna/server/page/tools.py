"""Tools of MCP servers for the page, which run with the rights of the server's user.

So the server's owner has to want it, and only those may call tools who may do everything on this server:
with keys, who has the scope `manage`; without, who is on this machine. No other site's page may.
"""

from __future__ import annotations

import asyncio
import base64
import logging
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final

import msgspec
from starlette.datastructures import Headers
from starlette.requests import Request

from puna.errors import RequestError, ScopeError, ServerBusyError, UnavailableError, shown
from puna.mcp.config import ServerConfig, configured
from puna.mcp.server import MCPServer
from puna.mcp.toolbox import offered
from puna.server.http.connections import caller, is_loopback
from puna.server.http.origins import host_name, is_local_address, is_local_name
from puna.server.page.wire import ToolCall
from puna.server.settings import Settings

#: Calls under way of one caller, and in all.
_MAX_OF_CALLER: Final = 8
_MAX_CALLS: Final = 32
#: How long a server that nobody uses stays connected.
_IDLE_S: Final = 600.0
#: Headers of reverse proxies, behind which a stranger looks like a program of this machine.
_FORWARDED: Final = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via")

_log = logging.getLogger(__name__)


class ToolServer(msgspec.Struct, frozen=True):
    """An MCP server of the configuration; `place` is its program or host."""

    name: str
    transport: str
    place: str


class ToolServers(msgspec.Struct, frozen=True):
    servers: list[ToolServer]


class OfferedTool(msgspec.Struct, frozen=True):
    """A tool that a model may be offered as `name`; `allowed` calls need no confirmation."""

    name: str
    server: str
    tool: str
    description: str
    parameters: Mapping[str, Any]
    allowed: bool


class OfferedTools(msgspec.Struct, frozen=True):
    """Tools, and sentences about those that are left out."""

    tools: list[OfferedTool]
    warnings: list[str]


class CallResult(msgspec.Struct, frozen=True):
    """A result as a model reads it: a text, and image files in base64. `failed`: the text is an error."""

    text: str
    images: list[str]
    failed: bool


def refusal(request: Request, settings: Settings) -> str:
    """Return why the caller may not use tools; empty if it may."""
    if not settings.mcp:
        return "this server offers no tools of MCP servers; 'puna serve --mcp' does"
    headers, host = request.headers, request.headers.get("host", "")
    own = ("", f"http://{host}", f"https://{host}")
    site = headers.get("sec-fetch-site", "")
    if headers.get("origin", "") not in own or site not in ("", "none", "same-origin"):
        return "pages of other sites may not call tools"
    if settings.keyring.required:
        return "" if "manage" in caller().scopes else "calling tools needs a key with the scope 'manage'"
    if not _is_of_this_machine(request, headers):
        return "without keys, only this machine may call tools; make one with 'puna key new'"
    return ""


def _is_of_this_machine(request: Request, headers: Headers) -> bool:
    address = request.client.host if request.client is not None else ""
    name = host_name(headers.get("host", ""))
    is_local = name is not None and (is_local_address(name) or is_local_name(name))
    return is_loopback(address) and is_local and not any(header in headers for header in _FORWARDED)


class PageTools:
    """The MCP servers that the page uses: connected at the first use, for all callers together."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._connected: dict[str, MCPServer] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._users: Counter[str] = Counter()  # work under way, by server
        self._ends: dict[str, asyncio.TimerHandle] = {}
        self._calls: Counter[str] = Counter()  # by caller
        self._closing: set[asyncio.Task[None]] = set()

    def check(self, request: Request) -> None:
        """Raise UnavailableError or ScopeError unless the caller may use tools."""
        if why := refusal(request, self._settings):
            raise (ScopeError if self._settings.mcp else UnavailableError)(why)

    def allows(self, request: Request) -> bool:
        return not refusal(request, self._settings)

    async def servers(self) -> ToolServers:
        """Return the servers of the configuration, without connecting any. Raises MCPServerError."""
        found = await asyncio.to_thread(configured)
        return ToolServers([ToolServer(one.name, one.transport, one.place) for one in found.values()])

    async def offered(self, names: Sequence[str]) -> OfferedTools:
        """Connect servers and return their tools. Raises MCPServerError and RequestError."""
        configs = await self._configs(names)
        async with AsyncExitStack() as stack:
            servers = [await stack.enter_async_context(self._using(config)) for config in configs]
            tools = offered(servers)
            warnings = [sentence for server in servers for sentence in server.refused]
        return OfferedTools(
            [
                OfferedTool(
                    name=name,
                    server=tool.server.name,
                    tool=tool.tool.name,
                    description=tool.tool.description,
                    parameters=tool.tool.schema,
                    allowed=tool.server.allows(tool.tool.name),
                )
                for name, tool in tools.items()
            ],
            warnings,
        )

    async def call(self, body: ToolCall) -> CallResult:
        """Call a tool. What goes wrong in it is a result, too; it ends with its request.

        Raises MCPServerError without a connection, RequestError for an unknown tool and for one that needs
        to be confirmed, and ServerBusyError.
        """
        who = caller()
        if self._calls[who.client] >= _MAX_OF_CALLER or self._calls.total() >= _MAX_CALLS:
            raise ServerBusyError(
                f"{self._calls[who.client]} tools of yours and {self._calls.total()} in all are at work, of "
                f"{_MAX_OF_CALLER} and {_MAX_CALLS}: wait for some to end"
            )
        (config,) = await self._configs([body.server])
        self._calls[who.client] += 1
        try:
            async with self._using(config) as connected:
                if all(one.name != body.tool for one in connected.tools):
                    raise RequestError(f"MCP server '{config.name}' has no tool {shown(body.tool)}")
                if not (body.confirmed or connected.allows(body.tool)):
                    raise RequestError(
                        f"{config.name}/{body.tool} is called only if somebody has confirmed it"
                    )
                # Arguments and results may be private.
                _log.info("%s calls %s/%s", who.key or who.client or "the page", config.name, body.tool)
                result = await connected.acall(body.tool, body.arguments)
        finally:
            self._calls[who.client] -= 1
            if not self._calls[who.client]:
                del self._calls[who.client]
        images = [base64.b64encode(image).decode() for image in result.images]
        return CallResult(result.text, images, result.failed)

    async def close(self) -> None:
        """Disconnect all servers."""
        for end in self._ends.values():
            end.cancel()
        servers, self._connected = [*self._connected.values()], {}
        await asyncio.gather(*(asyncio.to_thread(server.close) for server in servers), *self._closing)

    async def _configs(self, names: Sequence[str]) -> list[ServerConfig]:
        known = await asyncio.to_thread(configured)
        for name in names:
            if name not in known:
                raise RequestError(f"there is no MCP server {shown(name)} in the configuration")
        return [known[name] for name in dict.fromkeys(names)]

    @asynccontextmanager
    async def _using(self, config: ServerConfig) -> AsyncIterator[MCPServer]:
        """Hold a connected server. Raises MCPServerError."""
        name = config.name
        self._users[name] += 1
        if (end := self._ends.pop(name, None)) is not None:
            end.cancel()
        try:
            async with self._locks.setdefault(name, asyncio.Lock()):
                server = self._connected.get(name)
                if server is not None and server.config != config:  # the file has changed
                    self._disconnect(name)
                    server = None
                if server is None:
                    server = self._connected[name] = MCPServer.of(config)
                await asyncio.to_thread(server.connect)
            yield server
        finally:
            self._users[name] -= 1
            if not self._users[name]:
                loop = asyncio.get_running_loop()
                self._ends[name] = loop.call_later(_IDLE_S, self._disconnect, name)

    def _disconnect(self, name: str) -> None:
        if (server := self._connected.pop(name, None)) is not None:
            task = asyncio.create_task(asyncio.to_thread(server.close))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

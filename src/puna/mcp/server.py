"""A connection to an MCP server, with its tools, for synchronous code and for asyncio."""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import logging
import re
import threading
import weakref
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from puna.errors import MCPServerError, UnavailableError
from puna.mcp.config import ServerConfig, named
from puna.mcp.limits import (
    CALL_S,
    CONNECT_S,
    END_S,
    MAX_PAGES,
    MAX_TOOL_BYTES,
    MAX_TOOLS,
)
from puna.mcp.results import ToolResult, error_result, result_of

if TYPE_CHECKING:
    import anyio
    from mcp import Client

    from puna.mcp.transports import ConnectionWatch

#: Called with a call's progress, its total if known, and a message.
Progress = Callable[[float, float | None, str | None], None]

_TOOL_NAME: Final = re.compile(r"[A-Za-z0-9_./-]{1,128}")
#: How often a waiting main thread looks up, so that Ctrl-C is handled.
_POLL_S: Final = 0.1


@dataclass(frozen=True)
class ServerTool:
    """A tool as its server describes it, checked."""

    name: str
    description: str
    schema: Mapping[str, Any]  # of its arguments


class MCPServer:
    """An MCP server whose tools a model may call: a command to start, or a URL of streamable HTTP.

    It is connected on first use, in a thread of its own. Use it as a context manager, or `close` it, to end
    the connection and a server that was started. Calls of tools other than those in `allow` ("*": all) need
    leave each time (`on_tool_call` of `Model.chat`). Texts in `env` and `headers` are never shown.
    """

    def __init__(
        self,
        name: str,
        *,
        command: str = "",
        args: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        url: str = "",
        headers: Mapping[str, str] | None = None,
        allow: Sequence[str] = (),
        timeout: float = CALL_S,
    ) -> None:
        """Describe a server; `timeout` is that of a call, in seconds. Raises `MCPServerError`."""
        config = ServerConfig(
            name=name,
            command=command,
            args=tuple(args),
            env=dict(env or {}),
            cwd=None if cwd is None else str(cwd),
            url=url,
            headers=dict(headers or {}),
            allow=(allow,) if isinstance(allow, str) else tuple(allow),
            timeout_s=timeout,
        )
        self._set_up(config)

    @classmethod
    def configured(cls, name: str, path: str | Path | None = None) -> Self:
        """Return the server `name` of a file; by default that of `PUNA_MCP_CONFIG`, or `~/.puna/mcp.json`.

        Raises `MCPServerError`.
        """
        return cls.of(named(name, path))

    @classmethod
    def of(cls, config: ServerConfig) -> Self:
        server = cls.__new__(cls)
        server._set_up(config)
        return server

    def _set_up(self, config: ServerConfig) -> None:
        self.config = config
        self._connection: _Connection | None = None
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        state = "connected" if self.is_connected else "not connected"
        return f"<puna.MCPServer '{self.name}': {self.config.transport}, {state}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def is_connected(self) -> bool:
        return self._connection is not None and not self._connection.ended

    @property
    def tools(self) -> list[ServerTool]:
        """The server's tools, which are listed once, when it is connected. Raises `MCPServerError`."""
        return self._connected().tools

    @property
    def refused(self) -> list[str]:
        """A sentence for each tool that is left out, because of its name, schema or size."""
        return self._connected().refused

    def allows(self, tool: str) -> bool:
        """Whether calls of `tool` need no leave."""
        return "*" in self.config.allow or tool in self.config.allow

    def connect(self) -> None:
        """Connect, again if the connection has ended. Raises `MCPServerError` and `UnavailableError`."""
        if not self.is_connected:
            self.close()
        self._connected()

    def call(
        self,
        tool: str,
        arguments: Mapping[str, Any],
        *,
        on_progress: Progress | None = None,
        interrupted: Callable[[], bool] = lambda: False,
    ) -> ToolResult:
        """Call a tool and wait. All that goes wrong is a result, too, which names the server and the tool.

        Once `interrupted` returns True, the call is cancelled.
        """
        try:
            connection = self._connected()
            call = connection.submit(tool, arguments, on_progress)
        except MCPServerError as error:
            return error_result(str(error))
        while True:
            try:
                return call.result(_POLL_S)
            except TimeoutError:
                if interrupted() or not connection.is_alive:
                    call.cancel()
            except concurrent.futures.CancelledError:
                return error_result(str(self.config.error("the call was cancelled", tool)))

    async def acall(
        self, tool: str, arguments: Mapping[str, Any], *, on_progress: Progress | None = None
    ) -> ToolResult:
        """Call `call` from asyncio. Cancelling the task cancels the call."""
        try:
            connection = await asyncio.to_thread(self._connected)
            return await asyncio.wrap_future(connection.submit(tool, arguments, on_progress))
        except MCPServerError as error:
            return error_result(str(error))

    def close(self) -> None:
        """End the connection, and the server if it was started here."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _connected(self) -> _Connection:
        with self._lock:
            if self._connection is None:
                self._connection = _Connection(self.config)
                # Also at the interpreter's exit, so that no server outlives it.
                weakref.finalize(self, self._connection.close)
            return self._connection


class _Connection:
    """A session with a server, in an event loop of its own thread. Raises `MCPServerError` without one."""

    def __init__(self, config: ServerConfig) -> None:
        check_mcp_package()
        from puna.mcp.transports import ConnectionWatch

        # Messages of the package about a server's bytes are for those who set up its logger.
        logging.getLogger("mcp").addHandler(logging.NullHandler())
        self.config = config
        self.tools: list[ServerTool] = []
        self.refused: list[str] = []
        self._found: dict[str, ServerTool | None] = {}  # None: two tools have this name
        self._listed = False
        self.watch: ConnectionWatch = ConnectionWatch()
        self._client: Client | None = None
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._scope: anyio.CancelScope | None = None
        ready: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._thread = threading.Thread(
            target=self._run, args=(ready,), name=f"mcp {config.name}", daemon=True
        )
        self._thread.start()
        try:
            ready.result()
        except BaseException:
            self.close()
            raise

    @property
    def ended(self) -> bool:
        return self.watch.ended or not self.is_alive

    @property
    def is_alive(self) -> bool:
        """Whether calls can still end."""
        return self._thread.is_alive()

    def close(self) -> None:
        """End the session, politely at first."""
        for end in (self._stop.set, self._cancel):
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(end)
            self._thread.join(4 * END_S)

    def _cancel(self) -> None:
        if self._scope is not None:
            self._scope.cancel()

    def submit(
        self, tool: str, arguments: Mapping[str, Any], on_progress: Progress | None
    ) -> concurrent.futures.Future[ToolResult]:
        if self.ended:
            raise self._error(self._why() or "the connection has ended; connect it again", tool)
        return _submitted(self._call(tool, arguments, on_progress), self._loop)

    def _run(self, ready: concurrent.futures.Future[None]) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            try:
                runner.run(self._serve(ready))
            except BaseException as error:
                if not ready.done():
                    ready.set_exception(self._translated(error))
            finally:
                self.watch.ended = True

    async def _serve(self, ready: concurrent.futures.Future[None]) -> None:
        """Keep the session open until `close`."""
        import anyio
        from mcp import Client
        from mcp.types import Implementation

        from puna import __version__
        from puna.mcp.transports import connected

        with anyio.CancelScope() as scope:
            self._scope = scope
            deadline = self._loop.call_later(CONNECT_S, scope.cancel)
            client = Client(
                connected(self.config, self.watch, self._checked),
                client_info=Implementation(name="puna", version=__version__),
                read_timeout_seconds=CONNECT_S,
                cache=None,
            )
            async with client:
                self._client = client
                await self._list_tools(client)
                deadline.cancel()
                ready.set_result(None)
                await self._stop.wait()
        if scope.cancelled_caught:
            raise TimeoutError

    async def _list_tools(self, client: Client) -> None:
        """List the tools. `_checked` keeps those that can be offered."""
        cursor = None
        for _ in range(MAX_PAGES):
            page = await client.list_tools(cursor=cursor)
            cursor = page.next_cursor
            if not cursor or len(self._found) == MAX_TOOLS:
                break
        else:
            raise self._error(f"its list of tools has more than {MAX_PAGES} pages")
        self.tools = [tool for tool in self._found.values() if tool is not None]
        self._listed = True

    def _checked(self, tools: list[Any]) -> list[dict[str, Any]]:
        """Note the tools of a list, and return them without schemas of results.

        The package holds results against those, and a regular expression may take for ever.
        """
        if self._listed:
            return []
        checked = []
        for given in tools:
            if len(self._found) == MAX_TOOLS:
                self.refused.append(str(self._error(f"only its first {MAX_TOOLS} tools are offered")))
                break
            tool = given if isinstance(given, dict) else {}
            name: Any = tool.get("name")
            about, schema = tool.get("description"), tool.get("inputSchema", {})
            problem = self._problem(name, about, schema)
            if problem:
                shown = self.config.quoted(name) if isinstance(name, str) else ""
                self.refused.append(f"{self._error(problem, shown or '(no name)')}; the tool is left out")
                continue
            self._found[name] = ServerTool(name, about or "", schema)
            checked.append({"name": name, "description": about or "", "inputSchema": schema})
        return checked

    def _problem(self, name: Any, about: Any, schema: Any) -> str:
        """Return why a tool cannot be offered; empty if it can."""
        if not isinstance(name, str) or not _TOOL_NAME.fullmatch(name):
            return "its name may only have letters, digits, and _./-, up to 128"
        if name in self._found:
            self._found[name] = None  # which is meant?
            return "there are two of this name"
        if not isinstance(about, str | None) or not isinstance(schema, dict):
            return "its description or its schema is of a wrong type"
        try:
            size = len(json.dumps([about, schema]))
        except RecursionError:
            return "the schema of its arguments is too deep"
        if size > MAX_TOOL_BYTES:
            return f"its description and schema are larger than {MAX_TOOL_BYTES >> 10} KB"
        return _schema_problem(schema)

    async def _call(
        self, tool: str, arguments: Mapping[str, Any], on_progress: Progress | None
    ) -> ToolResult:
        import anyio

        assert self._client is not None
        self.watch.begin()

        async def report(progress: float, total: float | None, message: str | None) -> None:
            if on_progress is not None:
                on_progress(progress, total, message and self.config.quoted(message))

        try:
            with anyio.fail_after(self.config.timeout_s):
                result = await self._client.call_tool(
                    tool, dict(arguments), self.config.timeout_s, progress_callback=report
                )
            return result_of(result.content, result.structured_content, result.is_error)
        except Exception as error:
            return error_result(str(self._translated(error, tool)))

    def _why(self) -> str:
        """Return why the connection ended, if the server is the cause."""
        if self.watch.broken:
            return self.watch.broken
        said = self.config.quoted(self.watch.errors.decode("utf-8", "replace"))
        noise = self.config.quoted(self.watch.noise.decode("utf-8", "replace"))
        why = "it ended the connection" if self.watch.ended else ""
        if said:
            why += f"{' after' if why else 'it'} writing on standard error: {said}"
        elif noise:
            why += f"{' after' if why else 'it'} writing what is no message: {noise}"
        return why

    def _error(self, what: str, tool: str = "") -> MCPServerError:
        return self.config.error(what, tool)

    def _translated(self, error: BaseException, tool: str = "") -> MCPServerError:
        """Return the error that says in one sentence what happened to a connection or a call."""
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        if isinstance(error, MCPServerError):
            return error
        if self.watch.broken:
            return self._error(self.watch.broken, tool)
        if isinstance(error, OSError) and not isinstance(error, TimeoutError) and not tool:
            return self._error(f"'{self.config.place}' cannot be started or reached ({_reason(error)})")
        if isinstance(error, TimeoutError) or getattr(error, "code", 0) == _REQUEST_TIMEOUT:
            seconds = self.config.timeout_s if tool else CONNECT_S
            why = f"; {self._why()}" if not tool and self._why() else ""
            return self._error(f"no answer within {seconds:g} seconds{why}", tool)
        if self.watch.ended:
            return self._error(self._why(), tool)
        text = str(error) if type(error).__name__ == "MCPError" else f"{type(error).__name__}: {error}"
        return self._error(self.config.quoted(text) or "it gave an error without a message", tool)


def check_mcp_package() -> None:
    """Raise UnavailableError if there is no `mcp` package."""
    try:
        import mcp  # noqa: F401
    except ImportError as error:
        raise UnavailableError(
            f"MCP servers need the package mcp ({error}); install it with: pip install 'puna[mcp]'"
        ) from None


def _schema_problem(schema: Mapping[str, Any]) -> str:
    """Return why `schema` cannot describe arguments; empty if it can."""
    from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
    from jsonschema.exceptions import SchemaError  # type: ignore[import-untyped]

    if schema.get("type") != "object":
        return "the schema of its arguments is not that of an object"
    try:
        Draft202012Validator.check_schema(dict(schema))
    except SchemaError as error:
        return f"the schema of its arguments is invalid at {error.json_path}"
    except RecursionError:
        return "the schema of its arguments is too deep"
    return ""


#: The code of the package's own error for a request that nothing answers.
_REQUEST_TIMEOUT: Final = -32001


def _reason(error: OSError) -> str:
    return error.strerror or type(error).__name__


def _submitted(
    work: Coroutine[Any, Any, ToolResult], loop: asyncio.AbstractEventLoop
) -> concurrent.futures.Future[ToolResult]:
    try:
        return asyncio.run_coroutine_threadsafe(work, loop)
    except RuntimeError:  # the loop was closed at this moment
        work.close()
        raise MCPServerError("the connection to the MCP server has ended") from None

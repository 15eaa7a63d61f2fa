"""Tools whose calls are executed: Python functions and MCP servers, in rounds until the model answers."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final

import PIL.Image
from pydantic import TypeAdapter

from puna.errors import RequestError
from puna.library.completion import Call, Completion
from puna.library.functions import arguments_of, checked_tools
from puna.library.images import image_file
from puna.mcp.results import ToolResult, cut, error_result
from puna.mcp.server import MCPServer
from puna.mcp.toolbox import MCPTool, offered
from puna.protocol import Generate

#: Called before each call: False refuses it, True lets it run, and None leaves that to `allow`.
OnToolCall = Callable[[Call], bool | Awaitable[bool | None] | None] | None

MAX_ROUNDS: Final = 1000
_REFUSED: Final = "error: this call was not allowed"


class ToolSet:
    """The tools of a request: their descriptions, and what executes their calls."""

    def __init__(self, tools: Any) -> None:
        """Describe `tools`; connects MCP servers. Raises `RequestError` and `MCPServerError`."""
        given = _listed(tools)
        rest = checked_tools([tool for tool in given if not isinstance(tool, MCPServer)])
        names = [str(tool.get("function", {}).get("name", "")) for tool in rest]
        self._mcp = offered([tool for tool in given if isinstance(tool, MCPServer)], names)
        self._functions: dict[str, Callable[..., Any]] = {}
        self.described: list[dict[str, Any]] = []
        described = iter(rest)
        for tool in given:
            if isinstance(tool, MCPServer):
                self.described += [each.described for each in self._mcp.values() if each.server is tool]
                continue
            description = next(described)
            self.described.append(description)
            if not isinstance(tool, Mapping):
                self._functions[description["function"]["name"]] = tool

    def check_executable(self, asks: bool) -> None:
        """Raise `RequestError` for a tool that cannot be executed; `asks`: leave is asked for each call."""
        executable = {*self._functions, *self._mcp}
        for description in self.described:
            name = description.get("function", {}).get("name")
            if name not in executable:
                raise RequestError(
                    f"the tool {name!r} is only described; max_tool_rounds needs functions or MCP servers"
                )
        for tool in self._mcp.values():
            if not asks and not tool.server.allows(tool.tool.name):
                raise RequestError(
                    f"calls of {tool.path} need leave: pass on_tool_call, or give the MCP server "
                    f"allow=['{tool.tool.name}'] (or ['*'] for all)"
                )

    def permits(self, call: Call, answer: bool | None) -> bool:
        """Whether `call` may run, after `answer` of `on_tool_call`."""
        tool = self._mcp.get(call.name)
        allowed = tool is None or tool.server.allows(tool.tool.name)
        return answer is True or (answer is None and allowed)

    def run(self, call: Call) -> ToolResult:
        """Execute a call. All that goes wrong is a result, for the model to read."""
        found = self._find(call)
        if isinstance(found, MCPTool):
            return found.server.call(found.tool.name, call.arguments)
        if isinstance(found, ToolResult):
            return found
        return _called(found, call)

    async def arun(self, call: Call) -> ToolResult:
        """Execute a call from asyncio: coroutine functions in this task, others in a thread."""
        found = self._find(call)
        if isinstance(found, MCPTool):
            return await found.server.acall(found.tool.name, call.arguments)
        if isinstance(found, ToolResult):
            return found
        if not inspect.iscoroutinefunction(found):
            return await asyncio.to_thread(_called, found, call)
        try:
            return _converted(await found(**arguments_of(found, call.arguments)))
        except Exception as error:
            return _failure(error)

    def _find(self, call: Call) -> MCPTool | Callable[..., Any] | ToolResult:
        found = self._mcp.get(call.name) or self._functions.get(call.name)
        return found if found is not None else error_result(f"there is no tool {call.name!r}")


class ToolRounds:
    """A chat whose calls are executed, in at most `limit` rounds. `messages` is what has been said in it."""

    def __init__(
        self,
        ask: Callable[[list[Mapping[str, Any]], list[dict[str, Any]], str], Generate],
        messages: Iterable[Mapping[str, Any]],
        tools: ToolSet,
        tool_choice: str,
        limit: int,
        on_call: OnToolCall,
        sees: bool,
    ) -> None:
        """`ask` makes a request from messages, described tools and the choice of tools."""
        tools.check_executable(on_call is not None)
        self._ask = ask
        self._before = list(messages)
        self._tools = tools
        self._choice = tool_choice
        self._left = limit
        self._on_call = on_call
        self._sees = sees
        self.messages: list[dict[str, Any]] = []

    def request(self) -> Generate:
        """Return the request of the next round."""
        return self._ask([*self._before, *self.messages], self._tools.described, self._choice)

    def take(self, completion: Completion) -> list[Call]:
        """Add an answer to the conversation and return the calls to execute; none if it is the last one."""
        message: dict[str, Any] = {"role": "assistant", "content": completion.text}
        if completion.thinking:
            message["thinking"] = completion.thinking
        if completion.calls:
            message["tool_calls"] = [
                {"id": call.id, "function": {"name": call.name, "arguments": call.arguments}}
                for call in completion.calls
            ]
        self.messages.append(message)
        if not completion.calls or not self._left:
            return []
        self._left -= 1
        self._choice = "auto"  # a required call has been made; otherwise there would be no end
        return completion.calls

    def execute(self, call: Call) -> None:
        """Execute a call and add its result to the conversation."""
        answer = self._on_call(call) if self._on_call is not None else None
        if inspect.isawaitable(answer):
            if inspect.iscoroutine(answer):
                answer.close()
            raise RequestError("on_tool_call is a coroutine function; use achat, or a plain function")
        permitted = self._tools.permits(call, answer)
        self._add(call, self._tools.run(call) if permitted else ToolResult(_REFUSED, failed=True))

    async def aexecute(self, call: Call) -> None:
        """Call `execute` from asyncio."""
        answer = self._on_call(call) if self._on_call is not None else None
        if inspect.isawaitable(answer):
            answer = await answer
        permitted = self._tools.permits(call, answer)
        self._add(call, await self._tools.arun(call) if permitted else ToolResult(_REFUSED, failed=True))

    def _add(self, call: Call, result: ToolResult) -> None:
        read = result.read_by(self._sees)
        message = {"role": "tool", "tool_name": call.name, "tool_call_id": call.id, "content": read.text}
        self.messages.append(message | ({"images": list(read.images)} if read.images else {}))


def _listed(tools: Any) -> list[Any]:
    if tools is None:
        return []
    if isinstance(tools, MCPServer):
        raise RequestError("tools must be a list; use [server]")
    if isinstance(tools, str | bytes | Mapping) or callable(tools) or not isinstance(tools, Iterable):
        checked_tools(tools)  # raises
    return list(tools)


def _called(function: Callable[..., Any], call: Call) -> ToolResult:
    try:
        given = arguments_of(function, call.arguments)
        if inspect.iscoroutinefunction(function):
            raise RequestError(f"{call.name} is a coroutine function; use achat")
        return _converted(function(**given))
    except Exception as error:
        return _failure(error)


def _failure(error: Exception) -> ToolResult:
    """Return a function's exception as a result: a model often corrects its arguments."""
    return error_result(cut(f"{type(error).__name__}: {error}"))


def _converted(value: Any) -> ToolResult:
    """Return what a function returned: a text as it is, pictures, and all else as JSON."""
    if isinstance(value, ToolResult):
        return value
    if isinstance(value, str):
        return ToolResult(cut(value))
    if isinstance(value, PIL.Image.Image):
        return ToolResult("", [image_file(value)])
    written = TypeAdapter(Any).dump_json(value, fallback=str)
    return ToolResult(cut(written.decode("utf-8", "replace")))

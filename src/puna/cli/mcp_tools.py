"""Tools of MCP servers in `puna run`: each call is shown, and confirmed unless it is allowed by name."""

from __future__ import annotations

import base64
import json
import sys
import termios
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from puna.cli import terminal
from puna.errors import MCPServerError, PunaError
from puna.mcp import MCPServer, MCPTool, Toolbox, ToolResult
from puna.mcp.config import config_path, configured, named

_MAX_SHOWN: Final = 200

Message = dict[str, Any]


class ChatTools:
    """The MCP servers of a chat. `interrupt` ends a call or a question and is for a signal handler."""

    def __init__(self, allowed: Sequence[str] = ()) -> None:
        """`allowed` are tools that need no confirmation: TOOL, SERVER/TOOL or SERVER/*."""
        self._toolbox = Toolbox()
        self._allowed = set(allowed)
        self._asking = self._calling = False
        self.interrupted = False

    def close(self) -> None:
        self._toolbox.close()

    def connect(self, name: str) -> None:
        """Connect the server `name` of the configuration, again if it is. Raises `MCPServerError`."""
        server = MCPServer.of(named(name))
        with terminal.spinner(f"connecting {name}"):
            self._toolbox.add(server)
        for sentence in server.refused:
            terminal.warn(terminal.printable(sentence))

    def disconnect(self, name: str) -> bool:
        """Disconnect a server. Return whether it was connected."""
        return self._toolbox.remove(name)

    @property
    def described(self) -> list[dict[str, Any]]:
        """The tools as requests have them."""
        return self._toolbox.described

    def overview(self) -> str:
        """Return the servers and tools as `/mcp` shows them."""
        lines = []
        connected = {server.name for server in self._toolbox.servers}
        for server in self._toolbox.servers:
            state = "" if server.is_connected else ", disconnected"
            lines.append(f"{server.name} ({server.config.place}{state})")
            lines += [
                f"  {tool.name}{'  (allowed)' if self._allows(tool) else ''}"
                for tool in self._toolbox.tools.values()
                if tool.server is server
            ]
        try:
            others = [name for name in configured() if name not in connected]
        except MCPServerError as error:
            others = []
            if not lines:
                lines.append(str(error))
        if others:
            lines.append(f"Not connected: {', '.join(others)}. Type /mcp <server> to connect one.")
        return "\n".join(lines) or f"There are no MCP servers in {config_path()}"

    def interrupt(self) -> None:
        """End a call that runs. Raises KeyboardInterrupt while a question waits for its answer."""
        if self._calling:
            self.interrupted = True
        if self._asking:
            raise KeyboardInterrupt

    def answer(self, calls: Sequence[Mapping[str, Any]], sees: bool) -> list[Message]:
        """Execute the model's `calls` and return their results as messages, one for each.

        After Ctrl-C, `interrupted` is True and the results of the remaining calls say so.
        """
        self.interrupted = False
        messages: list[Message] = []
        for call in calls:
            function = call.get("function") or {}
            name, arguments = str(function.get("name", "")), function.get("arguments") or {}
            result = self._result(name, arguments).read_by(sees)
            message: Message = {"role": "tool", "tool_name": name, "content": result.text}
            if call.get("id"):
                message["tool_call_id"] = str(call["id"])
            if result.images:
                message["images"] = [base64.b64encode(image).decode() for image in result.images]
            messages.append(message)
        return messages

    def _result(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        if self.interrupted:
            return ToolResult("error: the user stopped before this call", failed=True)
        tool = self._toolbox.tools.get(name)
        written = json.dumps(arguments, ensure_ascii=False)
        if tool is None:
            terminal.note(terminal.printable(f"Call: {name} {written}\n  There is no such tool."))
            return ToolResult(f"error: there is no tool {name!r}", failed=True)
        terminal.note(terminal.printable(f"Call: {tool.path} {written}"))
        refusal = self._refusal(tool)
        result = ToolResult(f"error: {refusal}", failed=True) if refusal else self._called(tool, arguments)
        terminal.note(terminal.printable(f"  {tool.server.config.hidden(_summary(result))}"))
        return result

    def _called(self, tool: MCPTool, arguments: Mapping[str, Any]) -> ToolResult:
        self._calling = True
        try:
            with terminal.spinner(f"waiting for {tool.path}"), terminal.silent_keys():
                return tool.server.call(tool.tool.name, arguments, interrupted=lambda: self.interrupted)
        except PunaError as error:
            return ToolResult(f"error: {error}", failed=True)
        finally:
            self._calling = False

    def _allows(self, tool: MCPTool) -> bool:
        names = {tool.tool.name, tool.path, f"{tool.server.name}/*"}
        return tool.server.allows(tool.tool.name) or bool(names & self._allowed)

    def _refusal(self, tool: MCPTool) -> str:
        """Return why the call may not run; empty if it may."""
        if self._allows(tool):
            return ""
        if not terminal.is_interactive():
            terminal.warn(f"{tool.path} is not allowed; allow it with --mcp-allow {tool.path}")
            return "the user has not allowed this tool"
        answer = self._ask(f"Allow {tool.path}? [y]es, [n]o, [a]lways: ")
        if answer in ("a", "always"):
            self._allowed.add(tool.path)
        return "" if answer in ("y", "yes", "a", "always") else "the user refused this call"

    def _ask(self, question: str) -> str:
        """Return the answer to a question, in lower case; empty after Ctrl-C or Ctrl-D."""
        with suppress(termios.error):
            # Keys typed before the question was there do not answer it.
            termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)
        try:
            self._asking = True  # before anyone can react to the question
            print(question, end="", flush=True)
            return sys.stdin.readline().strip().lower()
        except KeyboardInterrupt:
            print()
            self.interrupted = True
            return ""
        finally:
            self._asking = False


def _summary(result: ToolResult) -> str:
    """Return a result as the terminal shows it: the start of it, and how much more there is."""
    text = " ".join(result.text.split())
    more = [f"{len(text) - _MAX_SHOWN} more characters"] if len(text) > _MAX_SHOWN else []
    more += [f"{len(result.images)} image(s)"] if result.images else []
    return (text[:_MAX_SHOWN] or "(no text)") + (f" ({', '.join(more)})" if more else "")

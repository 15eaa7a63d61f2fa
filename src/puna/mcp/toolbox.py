"""The tools of several MCP servers together, each by a name of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from puna.errors import MCPServerError
from puna.mcp.server import MCPServer, ServerTool


@dataclass(frozen=True)
class MCPTool:
    """A tool of a server, offered to a model as `name`."""

    server: MCPServer
    tool: ServerTool
    name: str

    @property
    def described(self) -> dict[str, Any]:
        """The tool as requests describe it."""
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.tool.description,
                "parameters": dict(self.tool.schema),
            },
        }

    @property
    def path(self) -> str:
        """The tool's place for people: `server/tool`."""
        return f"{self.server.name}/{self.tool.name}"


def offered(servers: Sequence[MCPServer], taken: Collection[str] = ()) -> dict[str, MCPTool]:
    """Return the tools of `servers` by the names a model gets; connects servers that are not connected.

    A name of two servers, or one in `taken`, is prefixed by its server's: `files_read` and `web_read`.
    Raises `MCPServerError` for two servers of one name and for names that clash even so.
    """
    _check_names(servers)
    found = [(server, tool) for server in servers for tool in server.tools]
    counts = Counter(tool.name for _, tool in found) + Counter(taken)
    tools: dict[str, MCPTool] = {}
    for server, tool in found:
        name = tool.name if counts[tool.name] == 1 else f"{server.name}_{tool.name}"
        if name in tools or (name != tool.name and counts[name]):
            raise server.config.error(f"another tool is called '{name}', too; rename the server", tool.name)
        tools[name] = MCPTool(server, tool, name)
    return tools


def _check_names(servers: Iterable[MCPServer]) -> None:
    for name, count in Counter(server.name for server in servers).items():
        if count > 1:
            raise MCPServerError(f"there are {count} MCP servers called '{name}'; rename one")


class Toolbox:
    """Connected servers, and the names by which a model calls their tools."""

    def __init__(self) -> None:
        self.servers: list[MCPServer] = []
        self.tools: Mapping[str, MCPTool] = {}

    def add(self, server: MCPServer) -> None:
        """Connect a server, in place of one of the same name. If that fails, nothing changes."""
        server.connect()
        others = [other for other in self.servers if other.name != server.name]
        replaced = [other for other in self.servers if other.name == server.name]
        try:
            self.tools = offered([*others, server])
        except MCPServerError:
            server.close()
            raise
        self.servers = [*others, server]
        for other in replaced:
            other.close()

    def remove(self, name: str) -> bool:
        """Disconnect the server `name`. Return whether there was one."""
        removed = [server for server in self.servers if server.name == name]
        self.servers = [server for server in self.servers if server.name != name]
        for server in removed:
            server.close()
        # The other servers' tools get their own names back.
        self.tools = offered([server for server in self.servers if server.is_connected])
        return bool(removed)

    def close(self) -> None:
        for server in self.servers:
            server.close()
        self.servers, self.tools = [], {}

    @property
    def described(self) -> list[dict[str, Any]]:
        return [tool.described for tool in self.tools.values()]

"""Tools of several servers, each by a name of its own."""

from __future__ import annotations

import pytest

from puna.errors import MCPServerError
from puna.mcp import MCPServer, Toolbox
from puna.mcp.server import ServerTool
from puna.mcp.toolbox import offered


class Still(MCPServer):
    """A server whose tools are known without a connection."""

    def __init__(self, name: str, *tools: str) -> None:
        super().__init__(name, command="none")
        self.listed = [ServerTool(tool, f"{tool} of {name}", {"type": "object"}) for tool in tools]

    @property
    def tools(self) -> list[ServerTool]:
        return self.listed

    @property
    def is_connected(self) -> bool:
        return True

    def connect(self) -> None: ...


def test_names_that_clash_are_prefixed_by_their_servers() -> None:
    found = offered([Still("files", "read", "list"), Still("web", "read")], taken=["list"])
    assert {name: tool.path for name, tool in found.items()} == {
        "files_read": "files/read",
        "files_list": "files/list",
        "web_read": "web/read",
    }


def test_names_that_clash_even_so_are_an_error() -> None:
    servers = [Still("a", "b_c"), Still("a_b", "c", "d"), Still("x", "c", "b_c")]
    with pytest.raises(MCPServerError, match="'a_b', tool 'c': another tool is called 'a_b_c', too"):
        offered(servers)
    with pytest.raises(MCPServerError, match="2 MCP servers called 'a'"):
        offered([Still("a"), Still("a")])


def test_a_toolbox_changes_only_if_a_server_can_be_added() -> None:
    box = Toolbox()
    box.add(Still("files", "read"))
    box.add(Still("web", "read"))
    assert list(box.tools) == ["files_read", "web_read"]
    with pytest.raises(MCPServerError):
        box.add(Still("more", "read", "read"))
    assert list(box.tools) == ["files_read", "web_read"]
    assert box.remove("web")
    assert list(box.tools) == ["read"]
    assert not box.remove("web")
    assert box.described[0]["function"] == {
        "name": "read",
        "description": "read of files",
        "parameters": {"type": "object"},
    }

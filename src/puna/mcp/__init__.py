"""MCP servers as a source of tools, by the official `mcp` package (`pip install 'puna[mcp]'`).

An MCP server is a stranger: what it sends is bounded in time, size and number (`limits`), its names and
schemas are checked before a model reads them, and its environment and headers are never shown.
"""

from puna.mcp.config import ServerConfig, configured
from puna.mcp.results import ToolResult
from puna.mcp.server import MCPServer
from puna.mcp.toolbox import MCPTool, Toolbox

__all__ = ["MCPServer", "MCPTool", "ServerConfig", "ToolResult", "Toolbox", "configured"]

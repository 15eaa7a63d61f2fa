"""The file that names MCP servers, in the form other programs use: `{"mcpServers": {NAME: {...}}}`."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from puna import config
from puna.errors import MCPServerError, shown
from puna.lines import shortened
from puna.mcp.limits import CALL_S, MAX_CALL_S, MAX_QUOTED
from puna.unknown import did_you_mean

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,40}")
_VARIABLE: Final = re.compile(r"\$\{(\w+)\}")
_FIELDS: Final = ("command", "args", "env", "cwd", "url", "headers", "type", "allow", "timeout", "disabled")
#: Shorter values, such as "1", stand in many texts and are no secrets.
_SHORTEST_SECRET: Final = 4
_MAX_FILE_BYTES: Final = 1 << 20


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """An MCP server: a command to start, or the address of one that runs."""

    name: str
    command: str = field(default="", repr=False)
    args: tuple[str, ...] = field(default=(), repr=False)
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    cwd: str | None = None
    url: str = field(default="", repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    allow: tuple[str, ...] = ()  # tools that need no confirmation; "*": all
    timeout_s: float = CALL_S  # of a call

    def __post_init__(self) -> None:
        """Raise `MCPServerError` for values that cannot be right."""
        if not _NAME.fullmatch(self.name):
            raise MCPServerError(
                f"an MCP server's name must be up to 40 letters, digits, - or _, not {shown(self.name)}"
            )
        if bool(self.command) == bool(self.url):
            raise self.error("must have either a command or a url")
        if self.url and (urlsplit(self.url).scheme not in ("http", "https") or not urlsplit(self.url).netloc):
            raise self.error("its url must begin with http:// or https://")
        if not 0 < self.timeout_s <= MAX_CALL_S:
            raise self.error(f"its timeout must be up to {MAX_CALL_S:.0f} seconds, not {self.timeout_s:g}")

    @property
    def transport(self) -> Literal["stdio", "http"]:
        return "http" if self.url else "stdio"

    @property
    def place(self) -> str:
        """The server's program or host, for people, without anything secret."""
        return urlsplit(self.url).hostname or "" if self.url else Path(self.command).name

    def error(self, what: str, tool: str = "") -> MCPServerError:
        """Return an error that names the server, and the tool if there is one."""
        place = f", tool '{tool}'" if tool else ""
        return MCPServerError(f"MCP server '{self.name}'{place}: {what}")

    def quoted(self, text: str) -> str:
        """Return a server's own words for an error: short, on one line, without secrets."""
        hidden = self.hidden(text)
        return shortened("".join(c if c.isprintable() else " " for c in hidden).strip(), MAX_QUOTED)

    def hidden(self, text: str) -> str:
        """Return `text` with the values of `env`, `headers` and the address replaced."""
        for secret in sorted(self._secrets(), key=len, reverse=True):
            text = text.replace(secret, "***")
        return text

    def _secrets(self) -> set[str]:
        found = {*self.env.values(), *self.headers.values()}
        found |= {word for value in self.headers.values() for word in value.split()}  # "Bearer TOKEN"
        if self.url:
            parts = urlsplit(self.url)
            found |= {self.url, parts.query, parts.password or "", parts.username or ""}
        return {secret for secret in found if len(secret) >= _SHORTEST_SECRET and secret != "Bearer"}


def config_path() -> Path:
    """Return the file of MCP servers: `PUNA_MCP_CONFIG`, default `~/.puna/mcp.json`."""
    return config.path_of(config.env("MCP_CONFIG") or str(config.home() / "mcp.json"))


def configured(path: str | Path | None = None) -> dict[str, ServerConfig]:
    """Return the servers in the file at `path` (default: `config_path()`) by their names.

    Raises `MCPServerError` for a file that is missing, too large, or not of the form.
    """
    file = config.path_of(str(path)) if path is not None else config_path()
    try:
        with file.open("rb") as opened:
            data = opened.read(_MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        raise MCPServerError(
            f'{file}: no such file; write {{"mcpServers": {{"NAME": {{"command": "..."}}}}}} there, '
            "or name another file in PUNA_MCP_CONFIG"
        ) from None
    except OSError as error:
        raise MCPServerError(f"{file}: {error.strerror or error}") from error
    if len(data) > _MAX_FILE_BYTES:
        raise MCPServerError(f"{file}: larger than {_MAX_FILE_BYTES >> 20} MB")
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise MCPServerError(f"{file}: not valid JSON: {error}") from None
    servers = content.get("mcpServers") if isinstance(content, dict) else None
    if not isinstance(servers, dict):
        raise MCPServerError(f'{file}: must have the form {{"mcpServers": {{NAME: {{...}}}}}}')
    return {
        name: _server(name, given)
        for name, given in servers.items()
        if not (isinstance(given, dict) and given.get("disabled") is True)
    }


def named(name: str, path: str | Path | None = None) -> ServerConfig:
    """Return the server `name` of the file. Raises `MCPServerError` if it is not there."""
    servers = configured(path)
    if name not in servers:
        file = path or config_path()
        known = f"; it has {', '.join(sorted(servers))}" if servers else ""
        raise MCPServerError(f"no MCP server '{name}' in {file}{did_you_mean(name, servers) or known}")
    return servers[name]


def _server(name: str, given: Any) -> ServerConfig:
    where = f"MCP server '{name}'"
    if not isinstance(given, dict):
        raise MCPServerError(f"{where}: must be an object, not {shown(given)}")
    for key in given:
        if key not in _FIELDS:
            raise MCPServerError(f"{where}: unknown field '{key}'{did_you_mean(key, _FIELDS)}")
    kind = given.get("type", "")
    if kind not in ("", "stdio", "http", "streamable-http", "streamableHttp"):
        raise MCPServerError(f"{where}: the type {shown(kind)} is not supported; use stdio or http")
    timeout = given.get("timeout", CALL_S)
    if isinstance(timeout, bool) or not isinstance(timeout, int | float):
        raise MCPServerError(f"{where}: timeout must be a number of seconds")
    return ServerConfig(
        name=name,
        command=_text(where, given, "command"),
        args=_texts(where, given, "args"),
        env=_mapping(where, given, "env"),
        cwd=_text(where, given, "cwd") or None,
        url=_text(where, given, "url"),
        headers=_mapping(where, given, "headers"),
        allow=_texts(where, given, "allow"),
        timeout_s=float(timeout),
    )


# Values may be secrets, so no error shows one.


def _text(where: str, given: Mapping[str, Any], key: str) -> str:
    value = given.get(key, "")
    if not isinstance(value, str) or "\0" in value:
        raise MCPServerError(f"{where}: {key} must be a text")
    return value


def _texts(where: str, given: Mapping[str, Any], key: str) -> tuple[str, ...]:
    value = given.get(key, [])
    if not isinstance(value, list) or not all(isinstance(item, str) and "\0" not in item for item in value):
        raise MCPServerError(f"{where}: {key} must be a list of texts")
    return tuple(value)


def _mapping(where: str, given: Mapping[str, Any], key: str) -> dict[str, str]:
    value = given.get(key, {})
    if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
        raise MCPServerError(f"{where}: {key} must map names to texts")
    return {name: _expanded(f"{where}: {key} '{name}'", text) for name, text in value.items()}


def _expanded(where: str, text: str) -> str:
    """Return `text` with each `${NAME}` replaced by that variable, so that no secret need be in the file."""

    def value(found: re.Match[str]) -> str:
        if found[1] not in os.environ:
            raise MCPServerError(f"{where} uses the variable {found[1]}, which is not set")
        return os.environ[found[1]]

    return _VARIABLE.sub(value, text)

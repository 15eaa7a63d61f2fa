"""The Host header check: no web page may reach a local server through a name it controls (DNS rebinding)."""

from __future__ import annotations

import ipaddress
import re
import socket

import psutil
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from puna.hosts import Host
from puna.server.http.replies import empty

#: A host and its port: an IPv6 address in brackets, or anything that could be a name.
_HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([\w.~-]*))(?::[0-9]{0,5})?")

_LOCAL_SUFFIXES = (".localhost", ".local", ".internal")

#: Narrower than `is_private`, which counts documentation and test networks too.
_PRIVATE_NETWORKS = tuple(
    map(ipaddress.ip_network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7"))
)


class HostCheckMiddleware:
    """Refuses foreign Host headers with 403 while the server listens on loopback; else lets all through."""

    def __init__(self, app: ASGIApp, bound: Host) -> None:
        self._app = app
        self._active = bound.is_loopback

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._active:
            name = host_name(Headers(scope=scope).get("host", ""))
            if name is None:
                await empty(400)(scope, receive, send)
                return
            if not is_local_address(name):
                if not is_local_name(name):
                    await empty(403)(scope, receive, send)
                    return
                if scope["method"] == "OPTIONS":
                    await empty(204)(scope, receive, send)
                    return
        await self._app(scope, receive, send)


def host_name(header: str) -> str | None:
    """The host of a Host header, lower-cased, without port and brackets; None if it is malformed."""
    header = header.strip().lower()
    match = _HOST.fullmatch(header)
    if match is None:
        return header if _is_ipv6(header) else None
    in_brackets, name = match.groups()
    if in_brackets is not None:
        return in_brackets if _is_ipv6(in_brackets) else None
    return name


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


def is_local_address(host: str) -> bool:
    """Whether `host` is an IP literal: loopback, private, unspecified, or of an interface of this machine."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    if address.is_loopback or address.is_unspecified:
        return True
    if any(address in network for network in _PRIVATE_NETWORKS):
        return True
    return any(
        entry.address.partition("%")[0] == str(address)
        for entries in psutil.net_if_addrs().values()
        for entry in entries
    )


def is_local_name(host: str) -> bool:
    """Whether `host` names this machine or a private network."""
    return host in ("", "localhost", socket.gethostname().lower()) or host.endswith(_LOCAL_SUFFIXES)

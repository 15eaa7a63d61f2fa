"""Network addresses: the server's (`PUNA_HOST` or `OLLAMA_HOST`), and the test for public ones."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, replace

from puna.config import find, warn_once

DEFAULT_ADDRESS = "127.0.0.1"
DEFAULT_PORT = 11434
SCHEME_PORTS = {"http": 80, "https": 443}
#: IPv4 addresses as seen from IPv6 networks (RFC 6052).
_TRANSLATED = ipaddress.IPv6Network("64:ff9b::/96")


@dataclass(frozen=True)
class Host:
    """The address of a server.

    `address` is a host name or an IP address without brackets; empty means all interfaces. `path` is a
    prefix that clients add (`/ollama` behind a reverse proxy): empty, or with a leading slash.
    """

    scheme: str = "http"
    address: str = DEFAULT_ADDRESS
    port: int = DEFAULT_PORT
    path: str = ""

    @property
    def netloc(self) -> str:
        """`address:port` with IPv6 addresses in brackets, as the server prints it."""
        return f"{_bracketed(self.address)}:{self.port}"

    @property
    def bind_address(self) -> str:
        """The address the server binds to: every IPv4 interface if `address` is empty."""
        return self.address or "0.0.0.0"

    @property
    def client_address(self) -> str:
        """The address a client on the same machine connects to: loopback if unspecified."""
        return {"": DEFAULT_ADDRESS, "0.0.0.0": DEFAULT_ADDRESS, "::": "::1"}.get(self.address, self.address)

    @property
    def client_url(self) -> str:
        """Base URL for a client, without a trailing slash."""
        return f"{self.scheme}://{_bracketed(self.client_address)}:{self.port}{self.path}"

    @property
    def is_loopback(self) -> bool:
        """Whether a server listening here is only reachable from this machine."""
        if self.address == "localhost" or self.address.endswith(".localhost"):
            return True
        try:
            return ipaddress.ip_address(self.address).is_loopback
        except ValueError:
            return False

    @property
    def is_local(self) -> bool:
        """Whether a client may start the server itself: plain HTTP to this machine, without a path."""
        return self.scheme == "http" and not self.path and (self.is_loopback or self.address in _UNSPECIFIED)


_UNSPECIFIED = ("", "0.0.0.0", "::")


def host_from_env() -> Host:
    """Return the host in `PUNA_HOST` or `OLLAMA_HOST`, or `http://127.0.0.1:11434` if neither is set."""
    variable, text = find("HOST")
    return parse_host(text, variable)


def chosen_host(address: str | None, port: int | None) -> Host:
    """Return the host in the environment, overridden by `address` (in the form of PUNA_HOST) and `port`."""
    host = host_from_env() if address is None else parse_host(address, "--host")
    return host if port is None else replace(host, port=port)


def parse_host(text: str, variable: str = "host") -> Host:
    """Parse `[scheme://][address][:port][/path]`, the value of `variable`.

    The port defaults to the scheme's own (80, 443) if there is a scheme, else to 11434. A port that is not
    a number from 0 to 65535 is ignored with a warning.
    """
    text = text.strip().strip("\"'").strip()
    scheme, separator, rest = text.partition("://")
    if not separator:
        scheme, rest = "http", text
        default_port = DEFAULT_PORT
        if text == "ollama.com":  # the only public host, which requires TLS
            scheme, default_port = "https", 443
    else:
        scheme = scheme.lower()
        default_port = SCHEME_PORTS.get(scheme, DEFAULT_PORT)
    authority, _, path = rest.partition("/")
    address, port_text = _split(authority)
    port = default_port
    if port_text is not None:
        if port_text.isascii() and port_text.isdigit() and int(port_text) <= 65535:
            port = int(port_text)
        else:
            warn_once(
                f"{variable}={text}: the port must be a number from 0 to 65535, not {port_text!r}; "
                f"using {default_port}"
            )
    path = path.strip("/")
    return Host(scheme, address, port, f"/{path}" if path else "")


def _split(authority: str) -> tuple[str, str | None]:
    """Split into the address without brackets, and the text of the port or None."""
    bare = authority.removeprefix("[").removesuffix("]")
    if not authority:
        return DEFAULT_ADDRESS, None
    if is_ipv6(bare):
        return bare, None
    address, colon, port = authority.rpartition(":")
    if not colon:
        return bare, None
    return address.removeprefix("[").removesuffix("]"), port


def is_ipv6(text: str) -> bool:
    """Whether `text` is an IPv6 address, without brackets."""
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


def _bracketed(address: str) -> str:
    return f"[{address}]" if ":" in address else address


def is_public(address: str) -> bool:
    """Whether `address` is on the public Internet, including IPv4 addresses embedded in IPv6."""
    try:
        given = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(given, ipaddress.IPv6Address):
        inner = given.ipv4_mapped or given.sixtofour or (given.teredo or (None, None))[1]
        if inner is not None:
            return is_public(str(inner))
        if given in _TRANSLATED:
            return is_public(str(ipaddress.IPv4Address(int(given) & 0xFFFFFFFF)))
    return given.is_global and not given.is_multicast and not given.is_reserved

"""The caller of the request being served: address, key, and what the key is for."""

from __future__ import annotations

import ipaddress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final, Literal, get_args

from puna.errors import ScopeError


def is_loopback(address: str) -> bool:
    """Whether `address` is of this machine itself: only its own programs have it."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(found, "ipv4_mapped", None)  # how IPv4 looks on a socket for both
    return (mapped or found).is_loopback


def network_of(address: str) -> str:
    """What to tell clients apart by: the address, or the /64 of IPv6, all of which one client may have."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is not None:
            return str(found.ipv4_mapped)
        return str(ipaddress.ip_network((found, 64), strict=False))
    return str(found)


#: `read`: look at models and at the server. `generate`: have models loaded, text generated, texts embedded.
#: `manage`: change what is stored, unload models, look into caches.
KeyScope = Literal["read", "generate", "manage"]
SCOPES: Final[tuple[KeyScope, ...]] = get_args(KeyScope)


@dataclass(frozen=True)
class Caller:
    """`client` tells callers apart where they wait: by the digest of a key, else by the network address."""

    client: str = ""
    key: str = ""  # its name
    digest: str = ""  # of the key, which alone has what was kept for it: a name may be used again
    scopes: tuple[KeyScope, ...] = SCOPES

    def require(self, scope: KeyScope, what: str) -> None:
        """Raise ScopeError if the caller's key does not allow `what`."""
        if scope not in self.scopes:
            raise ScopeError(f"{what} needs the scope '{scope}', which the key '{self.key}' does not have")


#: Set while a request is served, and in the tasks started for it.
current: ContextVar[Caller | None] = ContextVar("caller", default=None)


def caller() -> Caller:
    """Who sent the current request; outside of a request, somebody who may do everything."""
    return current.get() or Caller()

"""Addresses of clients."""

from __future__ import annotations

import ipaddress


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

"""Outgoing connections, restricted to public addresses and configured exceptions."""

from __future__ import annotations

import platform
import socket
import threading
import time
import urllib.request
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any
from urllib.parse import urlsplit

import httpcore
import httpx

from puna import __version__
from puna.config import env
from puna.errors import RefusedAddressError, UnreachableError
from puna.hosts import SCHEME_PORTS, is_public

#: Returns the addresses of a name and a port, as `socket.getaddrinfo` does.
Resolve = Callable[[str, int], list[str]]

_MAX_REDIRECTS = 10
_MAX_ADDRESSES = 8  # tried per host, one after another
_CONNECT_S = 10.0
#: Seconds between two checks whether the transfer was cancelled.
_CHECK_S = 0.25
#: Maximum time for a manifest, a list of files or the header of a response, however slow.
DOCUMENT_S = 60.0
USER_AGENT = f"puna/{__version__} ({platform.machine()} {platform.system().lower()})"


#: The time by which this thread's request must finish, by `time.monotonic`, and the error if it does not.
_deadline: ContextVar[tuple[float, str]] = ContextVar("deadline", default=(float("inf"), ""))


class TransferCancelledError(Exception):
    """The transfer was cancelled."""


@contextmanager
def in_time(what: str) -> Iterator[None]:
    """Limit this thread's reading in the block to DOCUMENT_S. Raises UnreachableError that names `what`."""
    until = (time.monotonic() + DOCUMENT_S, f"{what} did not arrive within {DOCUMENT_S:g} s")
    token = _deadline.set(min(until, _deadline.get()))
    try:
        yield
    finally:
        _deadline.reset(token)


def private_hosts() -> frozenset[str]:
    """Return the hosts of `PUNA_PRIVATE_REGISTRIES`, whose addresses need not be public.

    They are separated by commas, with or without a port; `*` means any.
    """
    return frozenset(host.strip().lower() for host in env("PRIVATE_REGISTRIES").split(",") if host.strip())


def open_client(
    *,
    insecure: bool = False,
    stall_s: float = 30.0,
    endpoint: str = "",
    cancelled: threading.Event | None = None,
) -> httpx.Client:
    """Open a client for registries. `insecure` allows plain HTTP and untrusted certificates.

    `stall_s` limits the silence of a connection. An `endpoint` is the choice of this machine's administrator,
    so it may be in a private network, and without TLS if its URL says so. Once `cancelled` is set, reading
    raises TransferCancelledError.
    """
    private, plain = private_hosts(), ""
    if endpoint:
        host = urlsplit(endpoint).netloc.lower()
        private |= {host}
        plain = host if urlsplit(endpoint).scheme == "http" else ""
    return httpx.Client(
        transport=GuardedTransport(insecure=insecure, private=private, plain=plain, cancelled=cancelled),
        timeout=httpx.Timeout(stall_s, connect=min(_CONNECT_S, stall_s), pool=None),
        follow_redirects=True,
        max_redirects=_MAX_REDIRECTS,
        # Compressed replies could grow beyond all limits.
        headers={"user-agent": USER_AGENT, "accept-encoding": "identity"},
    )


def what_failed(error: Exception) -> str:
    """Describe a connection's error; if TLS failed, say what to do."""
    text = str(error) or type(error).__name__
    if "[SSL" not in text:
        return text
    return f'{text}; --insecure (in the API, "insecure": true) allows plain HTTP and unknown certificates'


class GuardedTransport(httpx.BaseTransport):
    """Transport that sends each request, even a redirected one, to an address checked first.

    Otherwise clients could make the server send requests to its own network by pulling from there. The name
    is resolved once, here, and the connection goes to that address, so a second DNS reply changes nothing. If
    the environment names a proxy, the proxy resolves names and decides.
    """

    def __init__(
        self,
        *,
        insecure: bool,
        private: Collection[str] = (),
        plain: str = "",
        resolve: Resolve | None = None,
        cancelled: threading.Event | None = None,
    ) -> None:
        """`private` hosts need not be public, and the host `plain` needs no TLS."""
        self._insecure = insecure
        self._plain = plain
        self._private = private
        self._resolve = resolve or _resolve
        self._cancelled = cancelled or threading.Event()
        # One per host, because a connection's certificate was checked only for that host's name.
        self._direct: dict[tuple[str, str, int], httpx.HTTPTransport] = {}

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        url = request.url
        if url.scheme not in SCHEME_PORTS:
            raise RefusedAddressError(f"{url.scheme}: is not supported; use https or http")
        if url.scheme == "http" and not self._insecure and url.netloc.decode().lower() != self._plain:
            raise RefusedAddressError(
                f"insecure protocol http: add --insecure to connect to {url.host} without TLS"
            )
        port = url.port or SCHEME_PORTS[url.scheme]
        if proxy := _proxy(url.scheme, url.host):
            return self._transport(("proxy", proxy, 0), proxy).handle_request(request)
        transport = self._transport((url.scheme, url.host, port))
        failure: Exception | None = None
        for address in self._addresses(url.host, port)[:_MAX_ADDRESSES]:
            # A new request, because redirects are relative to the original's name.
            try:
                return transport.handle_request(
                    httpx.Request(
                        request.method,
                        url.copy_with(host=address),
                        headers=request.headers,
                        stream=request.stream,
                        extensions={**request.extensions, "sni_hostname": url.host},
                    )
                )
            except httpx.ConnectError as error:
                failure = error
        assert failure is not None
        raise failure

    def close(self) -> None:
        for transport in self._direct.values():
            transport.close()

    def _transport(self, key: tuple[str, str, int], proxy: str | None = None) -> httpx.HTTPTransport:
        if key not in self._direct:
            made = self._direct[key] = httpx.HTTPTransport(verify=not self._insecure, proxy=proxy)
            made._pool._network_backend = _WatchedBackend(self._cancelled)
        return self._direct[key]

    def _addresses(self, host: str, port: int) -> list[str]:
        """Return the addresses of `host` that may be connected to, in the resolver's order."""
        try:
            found = self._resolve(host, port)
        except OSError as error:
            raise httpx.ConnectError(f"cannot find {host}: {error.strerror or error}") from error
        if not self._private or not {"*", host.lower(), f"{host.lower()}:{port}"} & set(self._private):
            allowed = [address for address in found if is_public(address)]
            if not allowed:
                place = host if host in found else f"{host} is at {', '.join(found[:3])}, which"
                raise RefusedAddressError(
                    f"{place} is not a public address; start the server with PUNA_PRIVATE_REGISTRIES={host} "
                    "to allow it ('puna serve --stop' stops a running server)"
                )
            return allowed
        return found


class _WatchedBackend(httpcore.NetworkBackend):
    """Maker of connections that stop reading once the transfer is cancelled or time is up."""

    def __init__(self, cancelled: threading.Event) -> None:
        self._cancelled = cancelled
        self._inner = httpcore.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        left_s = _time_left(self._cancelled)
        within_s = min(_CONNECT_S if timeout is None else timeout, left_s)
        made = self._inner.connect_tcp(host, port, within_s, local_address, socket_options)
        return _WatchedStream(made, self._cancelled)


class _WatchedStream(httpcore.NetworkStream):
    def __init__(self, inner: httpcore.NetworkStream, cancelled: threading.Event) -> None:
        self._inner = inner
        self._cancelled = cancelled

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        until_s = time.monotonic() + (float("inf") if timeout is None else timeout)
        while True:
            left_s = min(_CHECK_S, _time_left(self._cancelled), max(until_s - time.monotonic(), 0.001))
            try:
                return self._inner.read(max_bytes, left_s)
            except httpcore.ReadTimeout:
                if time.monotonic() >= until_s:
                    raise

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        _time_left(self._cancelled)
        self._inner.write(buffer, timeout)

    def close(self) -> None:
        self._inner.close()

    def start_tls(self, *args: Any, **named: Any) -> httpcore.NetworkStream:
        return _WatchedStream(self._inner.start_tls(*args, **named), self._cancelled)

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)


def _time_left(cancelled: threading.Event) -> float:
    """Return how many seconds this thread may wait. Raises TransferCancelledError and UnreachableError."""
    if cancelled.is_set():
        raise TransferCancelledError
    until_s, late = _deadline.get()
    left_s = until_s - time.monotonic()
    if left_s <= 0:
        raise UnreachableError(late)
    return left_s


def _resolve(host: str, port: int) -> list[str]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def _proxy(scheme: str, host: str) -> str | None:
    proxies = urllib.request.getproxies()
    proxy = proxies.get(scheme) or proxies.get("all")
    return proxy if proxy and not urllib.request.proxy_bypass(host) else None

"""Start and shutdown of the server: the address, TLS, the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import signal
import socket
import ssl
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import uvicorn

from puna import __version__
from puna.cluster.cluster import Cluster
from puna.cluster.ray_node import connected
from puna.cluster.settings import ClusterSettings
from puna.config import env, models_dir, path_of
from puna.devices import devices
from puna.errors import PunaError
from puna.hosts import Host, host_from_env, parse_host
from puna.mcp.server import check_mcp_package
from puna.server.anthropic.batches import Batches
from puna.server.app import create_app
from puna.server.fleet.fleet import Fleet
from puna.server.fleet.resident import LocalLauncher
from puna.server.http.connections import AcceptErrors, Connection, Connections
from puna.server.http.logs import set_up_logging
from puna.server.metrics import Metrics
from puna.server.page.static import is_built
from puna.server.settings import Settings
from puna.server.settings import root_path as normal_root_path
from puna.store import Store
from puna.system.processes import raise_descriptor_limit, report_ready

#: How long requests in progress may take to end when the server shuts down.
SHUTDOWN_TIMEOUT_S = 5

#: How long an idle connection stays open, which is longer than common clients keep theirs in pools.
KEEP_ALIVE_TIMEOUT_S = 75

#: Maximum open files and connections, if the system allows as many.
DESCRIPTORS = 65536

#: Descriptors reserved for files and runners.
_NOT_FOR_CONNECTIONS = 128

#: Ticks of uvicorn (0.1 s) between two searches for connections that keep the server waiting.
_TICKS_PER_SWEEP = 10

_log = logging.getLogger(__name__)


def serve(
    host: Host | str | None = None,
    *,
    models: Path | None = None,
    tls_cert: str = "",
    tls_key: str = "",
    root_path: str = "",
    mcp: bool = False,
    cluster: ClusterSettings | None = None,
) -> int:
    """Serve until SIGINT or SIGTERM; see `puna.server.serve`."""
    try:
        set_up_logging()
        wanted = host_from_env() if host is None else parse_host(host) if isinstance(host, str) else host
        settings = Settings.from_env()
        if root_path:
            settings = replace(settings, root_path=normal_root_path(root_path))
        if mcp or settings.mcp:
            settings = replace(settings, mcp=True)
            check_mcp_package()
        tls = tls_from(tls_cert or env("TLS_CERT"), tls_key or env("TLS_KEY"))
        listener = listen(wanted)
    except PunaError as error:
        print(f"Error: {error}", file=sys.stderr, flush=True)
        return 1
    # Runners and other child processes must not inherit the keys.
    os.environ.pop("PUNA_API_KEYS", None)
    descriptors = raise_descriptor_limit(DESCRIPTORS)
    for_connections = max(descriptors - _NOT_FOR_CONNECTIONS, descriptors // 2)
    limits = settings.connections
    connections = Connections(replace(limits, total=min(limits.total, for_connections)))
    with listener, contextlib.ExitStack() as stack:
        address, port = listener.getsockname()[:2]
        bound = Host(address=address, port=port)
        _warn_of_open_access(bound, settings, encrypted=tls is not None)
        store = Store(models or models_dir())
        _tidy(store)
        for sentence in devices().sentences():
            _log.info("device: %s", sentence)
        metrics = Metrics()
        nodes: Cluster | None = None
        if cluster is not None:
            try:
                stack.enter_context(connected(cluster))
            except PunaError as error:
                print(f"Error: {error}", file=sys.stderr, flush=True)
                return 1
            nodes = Cluster(
                cluster, keep_alive_s=settings.keep_alive_s, step_timeout_s=settings.step_timeout_s
            )
        fleet = Fleet(settings, metrics, nodes or LocalLauncher())
        app = create_app(store, fleet, settings, metrics, bound, nodes)
        http: Any = partial(Connection, connections=connections)  # uvicorn expects a class here
        config = uvicorn.Config(
            app,
            http=http,
            ws="none",
            log_config=None,
            access_log=False,  # the request log says more
            server_header=False,
            lifespan="off",
            timeout_keep_alive=KEEP_ALIVE_TIMEOUT_S,
            timeout_graceful_shutdown=SHUTDOWN_TIMEOUT_S,
        )
        config.load()
        config.ssl = tls
        announcement = f"Listening on {bound.netloc} (version {__version__})"
        if settings.page is not None and is_built(settings.page):
            scheme = "http" if tls is None else "https"
            announcement += f"\nOpen {replace(bound, scheme=scheme, path=settings.root_path).client_url}"
        if cluster is not None and not cluster.ray:
            announcement += f"\nOther nodes join with: puna serve --cluster --join {cluster.address}"
        server = _Server(
            config, app.state.batches, app.state.lasting, fleet, nodes, connections, announcement
        )
        server.run(sockets=[listener])
    return 0


def listen(host: Host) -> socket.socket:
    """Return a socket that listens on `host`. Raises `PunaError` with the reason if it cannot."""
    where = host.netloc
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host.bind_address, host.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise PunaError(f"cannot listen on {where}: {error.strerror or error}; check PUNA_HOST") from error
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        if os.name == "posix":  # elsewhere this option would let two servers share the port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(2048)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise PunaError(
                f"cannot listen on {where}: the address is already in use; "
                "is a server running already? Set PUNA_HOST to use another port"
            ) from error
        raise PunaError(f"cannot listen on {where}: {error.strerror or error}; check PUNA_HOST") from error
    listener.setblocking(False)
    return listener


def tls_from(cert: str, key: str) -> ssl.SSLContext | None:
    """Return the TLS context for PEM files of a certificate chain and its key; None if both are empty.

    Raises `PunaError` if one is missing or unreadable, or they do not belong together.
    """
    if not cert and not key:
        return None
    if not cert or not key:
        raise PunaError("TLS needs a certificate and its key: set both PUNA_TLS_CERT and PUNA_TLS_KEY")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(path_of(cert), path_of(key), password=_no_password)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise PunaError(
            f"cannot use the certificate {cert} with the key {key} (PUNA_TLS_CERT, PUNA_TLS_KEY): "
            f"{error.strerror if isinstance(error, OSError) and error.strerror else error}"
        ) from error
    return context


def _no_password() -> str:
    raise ValueError("the key has a password, and nobody is there to type it")


def _warn_of_open_access(bound: Host, settings: Settings, *, encrypted: bool) -> None:
    if bound.is_loopback:
        return
    if not settings.keyring.required:
        _log.warning(
            "ANYBODY WHO CAN REACH %s CAN USE THIS SERVER, and change and delete its models: it requires no "
            "key. Make one with 'puna key new', or set PUNA_HOST=127.0.0.1 (docs/security.md)",
            bound.netloc,
        )
    elif not encrypted:
        _log.warning(
            "keys and prompts travel to %s unencrypted: set PUNA_TLS_CERT and PUNA_TLS_KEY, or let only a "
            "reverse proxy that speaks TLS reach this address (docs/security.md)",
            bound.netloc,
        )


def _tidy(store: Store) -> None:
    """Remove the remains of interrupted uploads. A store that is read-only is served as it is."""
    try:
        removed = store.prune()
    except PunaError as error:
        _log.warning("cannot tidy the model store: %s", error)
    else:
        if removed:
            _log.info("removed %d unused files from the model store", removed)


class Lasting(Protocol):
    """Work that outlives requests, and is ended while the server's loop still runs."""

    async def close(self) -> None: ...


class _Server(uvicorn.Server):
    """A server that announces itself on standard output, ends runners first, and exits with 0 on a signal."""

    def __init__(
        self,
        config: uvicorn.Config,
        batches: Batches,
        lasting: Sequence[Lasting],
        fleet: Fleet,
        cluster: Cluster | None,
        connections: Connections,
        announcement: str,
    ) -> None:
        super().__init__(config)
        self._batches = batches
        self._lasting = lasting
        self._fleet = fleet
        self._cluster = cluster
        self._connections = connections
        self._announcement = announcement

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().set_exception_handler(AcceptErrors())
        if self._cluster is not None:
            await self._cluster.start()
        await super().startup(sockets=sockets)
        self._batches.resume()
        print(self._announcement, flush=True)
        report_ready()

    async def on_tick(self, counter: int) -> bool:
        if counter % _TICKS_PER_SWEEP == 0:
            self._connections.sweep(time.monotonic())
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        for work in self._lasting:
            await work.close()  # keeps the answers in progress
        # Streams in progress end with an error line once their runner is gone, so end runners before waiting.
        await self._fleet.close()
        if self._cluster is not None:
            await self._cluster.close()
        await super().shutdown(sockets=sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {
            number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.run(self.serve(sockets=sockets))

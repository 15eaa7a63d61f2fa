"""Advice to the system about this process, its open files and its connections."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from puna.system import has_linux

if TYPE_CHECKING:
    import psutil

#: Least likely to survive (-1000 to 1000) are processes that can be started again.
_EXPENDABLE: Final = "800"
#: Open files that macOS allows a process whatever its limit says.
_OPEN_FILES: Final = 10240
#: How long sent data may be unacknowledged before the other machine counts as gone (Linux).
_UNACKNOWLEDGED_MS: Final = 6000


def be_expendable() -> None:
    """Have the system end this process before others when memory runs out, where it can be told."""
    if has_linux():
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text(_EXPENDABLE)


def report_ready() -> None:
    """Tell a service manager that waits for it that this process is ready (systemd: `Type=notify`)."""
    # Taken away from the processes that this one starts: they are not the service.
    address = os.environ.pop("NOTIFY_SOCKET", "")
    if address.startswith(("/", "@")):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel, contextlib.suppress(OSError):
            channel.setblocking(False)
            channel.sendto(b"READY=1", address.replace("@", "\0", 1) if address[0] == "@" else address)


def raise_descriptor_limit(wanted: int) -> int:
    """Raise the limit of open files to `wanted`, or as near as the system allows; return the new limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY:
        wanted = min(hard, wanted)
    for limit in (wanted, min(wanted, _OPEN_FILES)):
        if soft == resource.RLIM_INFINITY or soft >= limit:
            return limit if soft == resource.RLIM_INFINITY else soft
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
            return limit
    return soft


def read_in_order(descriptor: int) -> None:
    """Tell the system that a file will be read from its start to its end."""
    if has_linux():
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_SEQUENTIAL)


def notice_loss(connection: socket.socket) -> None:
    """Have the system end a connection soon after the other machine is gone.

    Linux ends it if data is not acknowledged; others after three questions, 2 s apart.
    """
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options = [("TCP_KEEPIDLE", 2), ("TCP_KEEPALIVE", 2), ("TCP_KEEPINTVL", 2), ("TCP_KEEPCNT", 3)]
    if has_linux():
        options.append(("TCP_USER_TIMEOUT", _UNACKNOWLEDGED_MS))
    for option, value in options:
        if hasattr(socket, option):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def listener_at(places: Collection[tuple[Any, ...]]) -> psutil.Process | None:
    """Return this user's process that listens at one of the addresses; None if there is none."""
    import psutil

    for pid, connection in _connections():
        if connection.status == psutil.CONN_LISTEN and pid and tuple(connection.laddr) in places:
            return psutil.Process(pid)
    return None


def _connections() -> Iterator[tuple[int | None, Any]]:
    """Yield the connections that this user may see, with their processes."""
    import psutil

    if has_linux():
        yield from ((connection.pid, connection) for connection in psutil.net_connections("tcp"))
        return
    for process in psutil.process_iter():  # macOS lists all connections for root only
        with contextlib.suppress(psutil.Error):
            if process.uids().real == os.getuid():
                yield from ((process.pid, connection) for connection in process.net_connections("tcp"))

"""Ask a process that has imported everything for its forks (see `tests.forks.__main__`)."""

from __future__ import annotations

import json
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Literal

#: The most bytes of a request: arguments and environment together.
MAX_BYTES = 200_000
#: The environment at the start; what is imported now has read it.
ENVIRONMENT = dict(os.environ)

_LIMITS = sorted({value for name, value in vars(resource).items() if name.startswith("RLIMIT_")})


@cache
def forking_process() -> socket.socket:
    """Return the socket for requests; the process starts at first use and ends with this one."""
    requests, served = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with served:
        subprocess.Popen(
            [sys.executable, "-m", "tests.forks", str(served.fileno())],
            cwd=Path(__file__).parents[2],
            pass_fds=[served.fileno()],
            env=ENVIRONMENT | {"OPENBLAS_NUM_THREADS": "1"},  # threads do not survive a fork
            start_new_session=True,  # Ctrl-C goes to the tests; this process ends when they do
        )
    return requests


def fork(
    requests: socket.socket,
    kind: Literal["command", "runner"],
    words: Sequence[str],
    *,
    env: Mapping[str, str],
    descriptors: Sequence[int],
    cwd: Path | None = None,
    at_terminal: bool = False,
) -> socket.socket:
    """Ask for a process with these descriptors, from 0 on; return the socket that tells its id, and more.

    The process gets the limits of this one.
    """
    request = {
        "kind": kind,
        "words": words,
        "env": dict(env),
        "cwd": str(cwd or Path.cwd()),
        "limits": [(limit, resource.getrlimit(limit)) for limit in _LIMITS],
        "at_terminal": at_terminal,
    }
    our_end, their_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with their_end:
        socket.send_fds(requests, [json.dumps(request).encode()], [*descriptors, their_end.fileno()])
    return our_end

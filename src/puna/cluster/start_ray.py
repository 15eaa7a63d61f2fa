"""The command `python -m puna.cluster.start_ray ARGUMENT...`: `ray start` that keeps to loopback if told to.

By itself Ray takes 127.0.0.1 for this machine's address in the network, and listens there.
"""

from __future__ import annotations

import os
import signal
import sys
import threading


def keep_loopback() -> None:
    """Make Ray, in this process, use loopback addresses as they are."""
    from ray._private import services

    services.resolve_ip_for_localhost = lambda host: host


def _end_with_parent() -> None:
    """Wait for the end of standard input, which the parent never writes to, and end Ray then."""
    while os.read(0, 1):  # `sys.stdin` would be locked, which an interpreter that ends takes for fatal
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    from ray.scripts.scripts import cli

    threading.Thread(target=_end_with_parent, daemon=True).start()
    keep_loopback()
    cli(["start", *sys.argv[1:]])


if __name__ == "__main__":
    main()

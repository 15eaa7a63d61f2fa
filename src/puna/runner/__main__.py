"""The command `python -m puna.runner FD`, run by a server; FD is the runner's end of the socket pair."""

from __future__ import annotations

import logging
import signal
import socket
import sys

from puna.lines import LineFormatter


def main() -> None:
    if len(sys.argv) != 2 or not sys.argv[1].isdigit():
        sys.exit("usage: python -m puna.runner FD (started by `puna serve`, not by hand)")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, which then closes our socket
    output = logging.StreamHandler(sys.stderr)
    output.setFormatter(LineFormatter("%(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[output])
    from puna.runner.process import serve

    with socket.socket(fileno=int(sys.argv[1])) as server:
        serve(server)


if __name__ == "__main__":
    main()

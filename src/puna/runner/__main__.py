"""The command `python -m puna.runner FD [listening]`, run by a server or by an actor of a cluster.

FD is the runner's end of a socket pair, or a listening socket that the server connects with, in which case
standard input is a connection with the actor.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import signal
import socket
import sys

from puna.lines import LineFormatter


def main() -> None:
    gc.disable()  # imports leave no garbage, and looking for it takes a sixth of the start
    number, *form = sys.argv[1:] or [""]
    if not number.isdigit() or form not in ([], ["listening"]):
        sys.exit("usage: python -m puna.runner FD [listening] (started by `puna serve`, not by hand)")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, which then closes our socket
    output = logging.StreamHandler(sys.stderr)
    output.setFormatter(LineFormatter("%(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[output])
    with contextlib.ExitStack() as stack:
        given = stack.enter_context(socket.socket(fileno=int(number)))
        if form:
            from puna.runner.peers import await_server

            owner = stack.enter_context(socket.socket(fileno=sys.stdin.fileno()))
            server = await_server(given, owner)
        else:
            server = given
        from puna.runner.process import serve

        gc.freeze()
        gc.enable()
        serve(server)


if __name__ == "__main__":
    main()

"""The process that has imported commands, server and model process, and forks into those that tests start.

A fork gets its standard streams, environment, working directory and limits, and exits as the original would.
Python is not started anew, nor taken apart at the end: tests that depend on that (`PYTHON*` variables, import
paths) run `python -m puna` themselves.
"""

from __future__ import annotations

import atexit
import faulthandler
import fcntl
import gc
import importlib
import json
import os
import pkgutil
import resource
import signal
import socket
import sys
import termios
import threading
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NoReturn

import puna.cli
import puna.runner.__main__
from puna.cli.app import app
from puna.cli.entry import parser
from tests.forks.asking import MAX_BYTES
from tests.forks.runners import NURSERY, forked_runners
from tests.model_process.sitecustomize import watch_model_process

_MAX_DESCRIPTORS = 5


def _serve(requests: socket.socket) -> NoReturn:
    """Fork for each request, and exit after the last."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody collects their exit statuses
    while True:
        message, descriptors, _, _ = socket.recv_fds(requests, MAX_BYTES, _MAX_DESCRIPTORS)
        if not message:
            os._exit(0)
        request = json.loads(message)
        child = os.fork()
        if child == 0:
            requests.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            (_run_command if request["kind"] == "command" else _run_runner)(request, *descriptors)
        if request["kind"] == "runner":
            with suppress(ChildProcessError):  # it has ended
                os.waitpid(child, 0)
        for descriptor in descriptors:
            os.close(descriptor)


def _run_command(request: dict[str, Any], stdin: int, stdout: int, stderr: int, asker: int) -> NoReturn:
    """Run a command in a child, and report its id and exit status."""
    streams = (stdin, stdout, stderr)
    if command := os.fork():
        for descriptor in streams:
            os.close(descriptor)
        os.write(asker, b"%d" % command)
        _, ended = os.waitpid(command, 0)
        os.write(asker, b"%d" % os.waitstatus_to_exitcode(ended))
        os._exit(0)
    os.close(asker)
    with ExitStack() as stack:
        if request["words"][:1] == ["serve"] and sys.platform == "linux":
            stack.enter_context(forked_runners(_nursery(streams)))
        _become(request, streams)
        sys.argv[1:] = request["words"]
        if request["at_terminal"]:
            os.setsid()
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
            faulthandler.enable()
        _exit(puna.cli.main())


def _nursery(streams: Sequence[int]) -> socket.socket:
    """Fork a child that serves requests like this process; it keeps none of the descriptors `streams`.

    A server needs one below itself to become the parent of its model processes.
    """
    requests, served = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        for descriptor in streams:
            os.close(descriptor)
        requests.close()
        _take_name(NURSERY)
        _serve(served)
    served.close()
    return requests


def _run_runner(request: dict[str, Any], *descriptors: int) -> NoReturn:
    """Leave a model process to whoever adopts orphans, and report its id."""
    *given, asker = descriptors
    _take_name("python")  # before the server has another child, which must not be taken for the nursery
    if runner := os.fork():
        os.write(asker, b"%d" % runner)
        os._exit(0)
    os.close(asker)
    os.setsid()
    _become(request, given)
    watch_model_process()
    sys.argv[1:] = ["3", *request["words"]]
    puna.runner.__main__.main()
    _exit(0)


def _take_name(name: str) -> None:
    Path("/proc/self/comm").write_text(name)


def _become(request: dict[str, Any], descriptors: Sequence[int]) -> None:
    """Take on the surroundings of a process, as a freshly started Python would find them."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, descriptor in enumerate(descriptors):  # in ascending order, and none below its number
        os.dup2(descriptor, number)
    for descriptor in descriptors:
        if descriptor >= len(descriptors):
            os.close(descriptor)
    for limit, values in request["limits"]:
        resource.setrlimit(limit, values)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        before = getattr(sys, name)
        buffering = 1 if name == "stderr" else -1
        stream = open(  # noqa: SIM115
            number, mode, buffering, encoding=before.encoding, errors=before.errors, closefd=False
        )
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _exit(status: int) -> NoReturn:
    """End as by `sys.exit`, but without taking apart everything that the forking process imported."""
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    commands = [module.name for module in pkgutil.walk_packages(puna.cli.__path__, "puna.cli.")]
    for name in (*commands, "puna.server.serving", "puna.runner.process", "puna.runner.peers"):
        importlib.import_module(name)
    parser(app)
    gc.freeze()
    _serve(socket.socket(fileno=int(sys.argv[1])))

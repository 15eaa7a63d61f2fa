"""`puna version`: the versions of Puna and its parts."""

from __future__ import annotations

import json
import platform
import re
import socket
import sys
from collections.abc import Iterator
from importlib import metadata, util

from puna import __version__
from puna.cli import terminal
from puna.errors import PunaError
from puna.hosts import host_from_env


def print_version(*, as_json: bool) -> None:
    """Print the versions of Puna and its parts; warn if the running server has another or is not Puna.

    Programs read the first line, or the JSON.
    """
    if as_json:
        print(json.dumps({"puna": __version__, "parts": dict(parts())}))
    else:
        print(f"puna version is {__version__}")
        for name, version in parts():
            print(f"  {name:<18} {version}")
    sys.stdout.flush()
    host = host_from_env()
    try:
        # Try a bare connection first, to spare importing the HTTP library if there is no server.
        socket.create_connection((host.client_address, host.port), timeout=1.0).close()
    except OSError:
        return
    from puna.cli.client import Client

    try:
        with Client(host) as client:
            reply = client.get("/api/version")
    except PunaError as error:
        terminal.warn(str(error))
        return
    if "puna" not in reply:
        terminal.warn(f"the server at {host.client_url} is not Puna (its version is {reply.get('version')})")
    elif reply["puna"] != __version__:  # "version" is the version of the API, which clients compare
        terminal.warn(f"the server at {host.client_url} runs version {reply['puna']}; restart it to update")


def parts() -> Iterator[tuple[str, str]]:
    """Yield the names and versions of Python, the kernels and the required libraries."""
    yield "python", platform.python_version()
    yield "C++ kernels", "compiled" if has_kernels() else "missing"
    for name in requirements():
        yield name, installed_version(name) or "missing"


def has_kernels() -> bool:
    """Whether the extension is installed, without importing it."""
    return util.find_spec("puna._native") is not None


def requirements() -> list[str]:
    """Return the names of the distributions that Puna requires, without its extras."""
    try:
        lines = metadata.requires("puna") or []
    except metadata.PackageNotFoundError:  # running from a source folder
        return []
    return [re.split(r"[^\w.-]", line, maxsplit=1)[0] for line in lines if "extra ==" not in line]


def installed_version(name: str) -> str:
    """Return the version of an installed distribution, or an empty string."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""

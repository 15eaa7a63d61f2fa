"""The commands that manage models: list, ps, show, cp, rm, stop; and version."""

from __future__ import annotations

import socket
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from puna.cli import terminal
from puna.errors import ConnectionFailedError, PunaError, ServerError
from puna.hosts import host_from_env

if TYPE_CHECKING:
    from puna.cli.client import Client


def list_models(prefix: str) -> None:
    """Print the models whose name starts with `prefix`, ignoring case."""
    from puna.cli import tables
    from puna.cli.server_process import connect

    with connect() as client:
        models = client.get("/api/tags").get("models") or []
    chosen = [model for model in models if model["name"].lower().startswith(prefix.lower())]
    print(tables.model_table(chosen, datetime.now(UTC)))


def list_running(prefix: str) -> None:
    """Print the loaded models. Without a local server there are none, which is not an error."""
    from puna.cli import tables
    from puna.cli.server_process import connect

    models: list[dict[str, Any]] = []
    try:
        with connect(start=False) as client:
            models = client.get("/api/ps").get("models") or []
    except ConnectionFailedError:
        if not host_from_env().is_local:
            raise
        terminal.note(f"No server is running at {host_from_env().client_url}.")
    chosen = [model for model in models if model["name"].startswith(prefix)]
    print(tables.running_table(chosen, datetime.now(UTC)))


def show_model(name: str, field: str | None, verbose: bool) -> None:
    """Print the overview of a model, or one `field` of the reply verbatim."""
    from puna.cli import show
    from puna.cli.server_process import connect

    with connect() as client:
        shown = client.post("/api/show", {"model": name, "verbose": verbose})
    if field is None:
        print(show.overview(shown, verbose), end="")
        return
    text = shown.get(field) or ""
    ending = "" if field in ("system", "template") or text.endswith("\n") else "\n"
    print(text, end=ending)


def copy_model(source: str, destination: str) -> None:
    from puna.cli.server_process import connect

    with connect() as client:
        client.post("/api/copy", {"source": source, "destination": destination})
    print(f"copied '{source}' to '{destination}'")


def remove_models(names: Sequence[str]) -> None:
    """Unload and delete each model; stops at the first error."""
    from puna.cli.server_process import connect

    with connect() as client:
        for name in names:
            try:
                _unload(client, name)
            except ServerError as error:
                if error.status_code != 404:  # deleting it will report that
                    terminal.warn(f"unable to stop model '{name}'")
            client.delete("/api/delete", {"model": name})
            print(f"deleted '{name}'")


def stop_model(name: str) -> None:
    from puna.cli.server_process import connect

    with connect(start=False) as client:
        try:
            _unload(client, name)
        except ServerError as error:
            if error.status_code == 404:
                raise ServerError(f'couldn\'t find model "{name}" to stop', 404) from None
            raise


def _unload(client: Client, name: str) -> None:
    client.post("/api/generate", {"model": name, "keep_alive": 0, "stream": False})


def print_version(own: str) -> None:
    """Print our version, and warn if the running server has another one or is not Puna."""
    print(f"puna version is {own}")
    sys.stdout.flush()
    host = host_from_env()
    try:
        # Try a bare connection first: without a server, the HTTP library need not be imported.
        socket.create_connection((host.client_address, host.port), timeout=1.0).close()
    except OSError:
        return
    from puna.cli.client import Client

    try:
        with Client(host) as client:
            reply = client.get("/api/version")
    except PunaError:
        return
    if "puna" not in reply:
        terminal.warn(f"the server at {host.client_url} is not Puna (its version is {reply.get('version')})")
    elif reply["puna"] != own:  # "version" is the version of the API, which clients compare
        terminal.warn(f"the server at {host.client_url} runs version {reply['puna']}; restart it to update")

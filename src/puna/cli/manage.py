"""The commands that manage models: list, ps, show, cp, rm, stop."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from puna.cli import terminal
from puna.cli.local_models import is_model_file
from puna.errors import ConnectionFailedError, RequestError, ServerError
from puna.hosts import host_from_env

if TYPE_CHECKING:
    from puna.cli.client import Client


def list_models(prefix: str, *, as_json: bool = False) -> None:
    """Print the models whose name starts with `prefix`, ignoring case, as a table or as a JSON array."""
    from puna.cli.server_process import connect

    with connect() as client:
        print_models(client, prefix, as_json=as_json)


def print_models(client: Client, prefix: str, *, as_json: bool = False) -> None:
    """What `list_models` prints, of the server that `client` talks to."""
    from puna.cli import tables

    models = client.get("/api/tags").get("models") or []
    chosen = [model for model in models if model["name"].lower().startswith(prefix.lower())]
    print(json.dumps(chosen) if as_json else tables.model_table(chosen, datetime.now(UTC)))


def list_running(prefix: str, *, as_json: bool = False) -> None:
    """Print the loaded models, as a table or as a JSON array.

    Without a local server there are none, which is not an error.
    """
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
    print(json.dumps(chosen) if as_json else tables.running_table(chosen, datetime.now(UTC)))
    for warning in dict.fromkeys(text for model in chosen for text in model.get("warnings") or ()):
        terminal.warn(warning)


def show_model(name: str, field: str | None, verbose: bool, *, as_json: bool = False) -> None:
    """Print the overview of a model, one `field` of the server's reply verbatim, or all of it as JSON."""
    from puna.cli import show
    from puna.cli.server_process import connect

    check_name(name)
    with connect() as client:
        shown = client.post("/api/show", {"model": name, "verbose": verbose})
    if as_json:
        print(json.dumps(shown))
        return
    if field is None:
        print(show.overview(shown, verbose), end="")
        return
    text = shown.get(field) or ""
    ending = "" if field in ("system", "template") or text.endswith("\n") else "\n"
    print(text, end=ending)


def copy_model(source: str, destination: str) -> None:
    from puna.cli.server_process import connect

    for name in (source, destination):
        check_name(name)
    with connect() as client:
        client.post("/api/copy", {"source": source, "destination": destination})
    print(f"copied '{source}' to '{destination}'")


def remove_models(names: Sequence[str]) -> None:
    """Unload and delete each model; stops at the first error."""
    from puna.cli.server_process import connect

    for name in names:
        check_name(name)
    with connect() as client:
        for name in names:
            try:
                _unload(client, name)
            except ServerError as error:
                if error.status_code != 404:  # deleting it will report that
                    terminal.warn(f"unable to stop model '{name}'")
            client.delete("/api/delete", {"model": name})
            print(f"deleted '{name}'")


def stop_all() -> None:
    """Unload every loaded model, and print which those were."""
    from puna.cli.server_process import connect

    with connect(start=False) as client:
        for model in client.get("/api/ps").get("models") or ():
            _unload(client, model["name"])
            print(f"stopped '{model['name']}'")


def stop_model(name: str) -> None:
    from puna.cli.server_process import connect

    check_name(name)
    with connect(start=False) as client:
        try:
            _unload(client, name)
        except ServerError as error:
            if error.status_code == 404:
                raise ServerError(f'couldn\'t find model "{name}" to stop', 404) from None
            raise


def _unload(client: Client, name: str) -> None:
    client.post("/api/generate", {"model": name, "keep_alive": 0, "stream": False})


def check_name(text: str) -> None:
    """Raise RequestError for the path of a file, which these commands have no use for."""
    if is_model_file(text):
        raise RequestError(
            f"{text} is a file, and this command takes the name of a model: 'puna list' shows the names, "
            f"and 'puna run {text}' runs the file"
        )

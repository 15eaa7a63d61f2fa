"""`puna pull` and `puna push`: a bar for each layer."""

from __future__ import annotations

from puna.cli import terminal
from puna.cli.client import Client
from puna.cli.manage import check_name
from puna.cli.progress import StatusLines
from puna.cli.server_process import connect
from puna.errors import ServerError
from puna.store.names import DEFAULT_HOST, DEFAULT_TAG, ModelName
from puna.unknown import did_you_mean


def pull(name: str, *, insecure: bool) -> None:
    """Pull the model `name` into the server's store, starting the server if none is running."""
    ModelName.parse(name)
    with connect() as client:
        pull_model(client, name, insecure=insecure)


def pull_missing(client: Client, name: str, *, insecure: bool = False) -> None:
    """Pull the model `name` if the server does not have it. Raises ServerError."""
    try:
        client.post("/api/show", {"model": name})
    except ServerError as error:
        if error.status_code != 404:
            raise
        pull_model(client, name, insecure=insecure)


def pull_model(client: Client, name: str, *, insecure: bool = False) -> None:
    """Make the server pull a model, showing progress. Raises ServerError that says where models come from."""
    try:
        with StatusLines() as lines:
            lines.follow(client.stream("/api/pull", {"model": name, "insecure": insecure}))
    except ServerError as error:
        host = ModelName.parse(name).host
        raise ServerError(
            f"model '{name}' cannot be pulled from {host}: "
            f"{error}{did_you_mean(name, client.model_names())}; "
            "'puna list' shows the models on this machine, 'puna run FILE.gguf' runs a file",
            error.status_code,
        ) from error


#: Web pages of the models in Ollama's registry.
_OLLAMA_SITE = "https://ollama.com/"


def push(name: str, *, insecure: bool) -> None:
    """Make the server push the model `name` to the registry in its name, starting it if none is running."""
    check_name(name)
    model = ModelName.parse(name)
    with connect() as client, StatusLines() as lines:
        lines.follow(client.stream("/api/push", {"model": name, "insecure": insecure}))
    shown = model.display.removesuffix(f":{DEFAULT_TAG}")
    terminal.note(f"You can find your model at {_OLLAMA_SITE if model.host == DEFAULT_HOST else ''}{shown}")

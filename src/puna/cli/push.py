"""`puna push`: a model to a registry, with a bar for each of its layers."""

from __future__ import annotations

from puna.cli import terminal
from puna.cli.manage import check_name
from puna.cli.progress import StatusLines
from puna.cli.server_process import connect
from puna.store.names import DEFAULT_HOST, DEFAULT_TAG, ModelName

#: Where Ollama's registry shows its models to people.
_OLLAMAS = "https://ollama.com/"


def push(name: str, *, insecure: bool) -> None:
    """Let the server, which is started if none runs, send the model `name` to the registry of its name."""
    check_name(name)
    model = ModelName.parse(name)
    with connect() as client, StatusLines() as lines:
        lines.follow(client.stream("/api/push", {"model": name, "insecure": insecure}))
    shown = model.display.removesuffix(f":{DEFAULT_TAG}")
    terminal.note(f"You can find your model at {_OLLAMAS if model.host == DEFAULT_HOST else ''}{shown}")

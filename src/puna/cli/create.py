"""`puna create`: a model from a Modelfile and the files it names."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from puna.cli import terminal
from puna.cli.client import Client
from puna.cli.files import check_model, file_digest, upload
from puna.cli.local_models import existing_file
from puna.cli.progress import StatusLines
from puna.cli.server_process import connect
from puna.errors import UnavailableError
from puna.store.modelfile import Modelfile, parse
from puna.store.names import ModelName
from puna.store.recipe import adapter_source, create_request, model_source

DEFAULT_FILE = "Modelfile"


def create(name: str, file: str | None, quantize: str | None) -> None:
    """Create model `name` from the Modelfile `file` (`-` is standard input), showing progress."""
    ModelName.parse(name)
    if quantize:  # refused here, before gigabytes are copied
        raise UnavailableError(
            "--quantize is not available in this version; "
            "create the model from a file that is already quantized"
        )
    modelfile, folder = read_modelfile(file)
    body: dict[str, Any] = {"model": name, **create_request(modelfile)}
    source = model_source(modelfile, folder)
    adapters = adapter_source(modelfile, folder)
    given = (path for path in adapters.files.values() if path.suffix == ".gguf")
    for path in (*source.files.values(), *given):
        check_model(path)
    if file is None and not Path(DEFAULT_FILE).is_file():
        terminal.note(f"There is no {DEFAULT_FILE} here: making '{name}' of {', '.join(source.files)}.")
    with connect() as client, StatusLines() as lines:
        lines.show("gathering model components")
        if source.model is not None:
            body["from"] = source.model
        if source.files:
            body["files"] = _uploaded(client, source.files)
        if adapters.files:
            body["adapters"] = _uploaded(client, adapters.files)
            body["adapter_scales"] = adapters.scales
        lines.follow(client.stream("/api/create", body))


def read_modelfile(file: str | None) -> tuple[Modelfile, Path]:
    """The Modelfile and the folder its paths are relative to.

    `file` defaults to `Modelfile` in the current folder, or to the model in it if there is no Modelfile.
    """
    if file == "-":
        return parse(sys.stdin.buffer.read()), Path()
    if file is None and not Path(DEFAULT_FILE).is_file():
        return parse("FROM ."), Path()
    path = existing_file(file or DEFAULT_FILE)
    return parse(path.read_bytes()), path.parent


def _uploaded(client: Client, files: Mapping[str, Path]) -> dict[str, str]:
    """Upload files; returns their digests by name."""
    digests: dict[str, str] = {}
    for name, path in files.items():
        digests[name] = file_digest(path.resolve())
        upload(client, path, digests[name])
    return digests

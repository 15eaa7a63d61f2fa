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
from puna.convert import check_convertible
from puna.errors import ConversionError
from puna.quantize.kinds import file_type_of
from puna.store.modelfile import Modelfile, parse
from puna.store.names import ModelName
from puna.store.recipe import adapter_source, create_request, model_source

DEFAULT_FILE = "Modelfile"


def create(name: str, file: str | None, quantize: str | None) -> None:
    """Create model `name` from the Modelfile `file` (`-` is standard input), showing progress."""
    ModelName.parse(name)
    wanted = {"quantize": file_type_of(quantize).label} if quantize else {}
    modelfile, folder = read_modelfile(file)
    body: dict[str, Any] = {"model": name, **create_request(modelfile), **wanted}
    source = model_source(modelfile, folder)
    adapters = adapter_source(modelfile, folder)
    _check(source.files)
    _check({name: path for name, path in adapters.files.items() if path.suffix == ".gguf"})
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


def _check(files: Mapping[str, Path]) -> None:
    """Refuse what cannot become a model, before gigabytes of it are copied."""
    if any(name.endswith(".safetensors") for name in files):
        settings = files.get("config.json")
        if settings is None:
            raise ConversionError(f"there is no config.json beside {next(iter(files))}")
        check_convertible(settings.parent)
        return
    for path in files.values():
        check_model(path)


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

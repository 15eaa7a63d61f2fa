"""Commands that manage models: list, ps, show, cp, rm and stop."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from puna.cli import progress, terminal
from puna.config import path_of
from puna.errors import ConnectionFailedError, ModelNotFoundError, RequestError, ServerError
from puna.hosts import host_from_env
from puna.unknown import did_you_mean

if TYPE_CHECKING:
    from puna.cli.client import Client


def is_path(text: str) -> bool:
    """Whether `text` can only be a path, since no model name starts like one."""
    return text.startswith(("./", "../", "/", "~"))


def is_model_file(text: str) -> bool:
    """Whether `text` means a file rather than a model: a path, or a `.gguf` file that exists."""
    return is_path(text) or (text.lower().endswith(".gguf") and Path(text).is_file())


def existing_file(text: str) -> Path:
    """Return the path of the file `text`. Raises RequestError if it is not a file."""
    path = path_of(text)
    if not path.is_file():
        problem = "is a folder, not a file" if path.is_dir() else "does not exist"
        raise RequestError(f"{path} {problem}")
    return path


def projector_path(text: str, model: Path) -> Path | None:
    """Return the file of the vision tower that belongs to the model named `text`, whose file is `model`."""
    if is_model_file(text):
        return None
    from puna.chat.templates.model_facts import projector_for
    from puna.store import Store

    try:
        return projector_for(Store().get(text).projector_paths, model)
    except ModelNotFoundError:
        return None


def model_path(text: str) -> Path:
    """Return the GGUF file of `text`, a path or the name of a stored model.

    Raises RequestError for a path that is not a file, ModelNotFoundError for an unknown name.
    """
    if is_model_file(text):
        return existing_file(text)
    from puna.store import Store

    try:
        found = Store().get(text).model_path
    except ModelNotFoundError:
        if Path(text).is_file():
            return Path(text)
        near = did_you_mean(text, Store().names())
        raise ModelNotFoundError(f"model '{text}' not found, nor a file of that name{near}") from None
    if found is None or not found.is_file():
        raise ModelNotFoundError(f"the file of model '{text}' is missing ({found})")
    return found


_GAP = "    "


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Format left-aligned columns, four spaces apart, without borders."""
    lines = [header, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    padded = (_GAP.join(map(str.ljust, line, widths)) for line in lines)
    return "\n".join(line.rstrip() for line in padded)


def model_table(models: Sequence[Mapping[str, Any]], now: datetime) -> str:
    """Format the table of `list`, from the models of `/api/tags`."""
    rows = [
        (
            model["name"],
            short_id(model),
            "-" if model.get("remote_model") else progress.size(model["size"]),
            progress.ago(progress.parse_time(model["modified_at"]), now),
        )
        for model in models
    ]
    return table(("NAME", "ID", "SIZE", "MODIFIED"), rows)


def running_table(models: Sequence[Mapping[str, Any]], now: datetime) -> str:
    """Format the table of `ps`, from the models of `/api/ps`."""
    rows = [
        (
            model["name"],
            short_id(model),
            progress.size(model["size"]),
            processor(model["size"], model.get("size_vram", 0)),
            model.get("engine") or "-",
            str(model.get("context_length", 0)),
            memory(model),
            speed(model),
            until(progress.parse_time(model["expires_at"]), now),
        )
        for model in models
    ]
    return table(
        ("NAME", "ID", "SIZE", "PROCESSOR", "ENGINE", "CONTEXT", "MEMORY", "TOKENS/S", "UNTIL"), rows
    )


def short_id(model: Mapping[str, Any]) -> str:
    digest: str = model.get("digest") or ""
    return digest.removeprefix("sha256:")[:12]


def processor(size_bytes: int, vram_bytes: int) -> str:
    """Return the fractions of a model's bytes on the CPU and the GPU."""
    if size_bytes <= 0:
        return "Unknown"
    if vram_bytes <= 0:
        return "100% CPU"
    if vram_bytes >= size_bytes:
        return "100% GPU"
    cpu = int((size_bytes - vram_bytes) / size_bytes * 100 + 0.5)
    return f"{cpu}%/{100 - cpu}% CPU/GPU"


def memory(model: Mapping[str, Any]) -> str:
    """Return the current memory of the model's process; `-` if unknown, as with Ollama's server."""
    size_bytes = model.get("memory", {}).get("process", 0)
    return progress.size(size_bytes) if size_bytes else "-"


def speed(model: Mapping[str, Any]) -> str:
    """Return the model's last tokens per second, over all its requests; `-` if unknown."""
    tokens_per_second: float = model.get("tokens_per_second", 0.0)
    return f"{tokens_per_second:.1f}" if tokens_per_second else "-"


def until(expires_at: datetime, now: datetime) -> str:
    """Return when a model will be unloaded; an expired one only waits for its last requests."""
    return "Stopping..." if expires_at < now else progress.ago(expires_at, now)


_ARRAY_CHARACTERS = 10  # shown of an array before it is truncated
Rows = list[tuple[str, ...]]


def overview(shown: Mapping[str, Any], verbose: bool = False) -> str:
    """Format `shown`, a reply of `/api/show`, as sections of indented columns, without empty sections."""
    info: Mapping[str, Any] = shown.get("model_info") or {}
    sections: list[tuple[str, Rows]] = [
        ("Model", _model_rows(shown, info)),
        ("Capabilities", [(name,) for name in shown.get("capabilities") or ()]),
        ("Projector", _projector_rows(shown.get("projector_info") or {})),
        ("Adapters", [(adapter["name"], f"{adapter['scale']:g}") for adapter in shown.get("adapters") or ()]),
        ("Parameters", parameter_rows(shown.get("parameters") or "")),
    ]
    if verbose:
        sections.append(("Metadata", [(name, value_text(info[name])) for name in sorted(info)]))
        sections.append(("Tensors", [_tensor_row(tensor) for tensor in shown.get("tensors") or ()]))
    sections.append(("System", _first_lines(shown.get("system") or "")))
    sections.append(("License", _first_lines(shown.get("license") or "")))
    return "".join(_section(title, rows) for title, rows in sections if rows)


def parameter_rows(parameters: str) -> Rows:
    """Return the rows of `parameters`, a text with one `name value` per line."""
    rows: Rows = []
    for line in parameters.splitlines():
        name, _, value = line.strip().partition(" ")
        if name:
            rows.append((name, value.strip()))
    return rows


def value_text(value: Any) -> str:
    """Shorten a metadata value; arrays are truncated: `[1, 2, 3, 4, ...+96 more]`."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    if not isinstance(value, list):
        return "" if value is None else str(value).replace("\n", "\\n")
    text = "["
    for index, element in enumerate(value):
        if len(text) > _ARRAY_CHARACTERS:
            return f"{text} ...+{len(value) - index} more]"
        text += (", " if index else "") + value_text(element)
    return text + "]"


def _model_rows(shown: Mapping[str, Any], info: Mapping[str, Any]) -> Rows:
    details: Mapping[str, Any] = shown.get("details") or {}
    architecture = info.get("general.architecture") or details.get("family")
    rows = [
        ("architecture", architecture),
        ("parameters", details.get("parameter_size") or _count(info.get("general.parameter_count"))),
        ("context length", info.get(f"{architecture}.context_length")),
        ("embedding length", info.get(f"{architecture}.embedding_length")),
        ("quantization", details.get("quantization_level")),
        ("requires", shown.get("requires")),
        ("engine", shown.get("engine")),
        ("answer family", shown.get("answer_family")),
    ]
    return _filled(rows)


def _projector_rows(info: Mapping[str, Any]) -> Rows:
    architecture = info.get("general.architecture")
    rows = [
        ("architecture", architecture),
        ("parameters", _count(info.get("general.parameter_count"))),
        ("embedding length", info.get(f"{architecture}.vision.embedding_length")),
        ("dimensions", info.get(f"{architecture}.vision.projection_dim")),
    ]
    return _filled(rows)


def _filled(rows: Iterable[tuple[str, Any]]) -> Rows:
    return [(name, _number_text(value)) for name, value in rows if value]


def _number_text(value: Any) -> str:
    return str(int(value)) if isinstance(value, float) else str(value)


def _count(parameters: int | float | None) -> str:
    """Format a number of parameters: `7.2B`, `134.52M`, `900K`."""
    if not parameters:
        return ""
    for factor, unit, digits in ((10**9, "B", 1), (10**6, "M", 2), (10**3, "K", 0)):
        if parameters >= factor:
            return f"{parameters / factor:.{digits}f}{unit}"
    return str(int(parameters))


def _tensor_row(tensor: Mapping[str, Any]) -> tuple[str, ...]:
    shape = " ".join(str(int(length)) for length in tensor.get("shape") or ())
    return (tensor["name"], str(tensor.get("type", "")), f"[{shape}]")


def _first_lines(text: str) -> Rows:
    """Return the first two non-blank lines, and `...` if there are more."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return [(line,) for line in (lines if len(lines) <= 2 else [*lines[:2], "..."])]


def _section(title: str, rows: Sequence[tuple[str, ...]]) -> str:
    columns = max(map(len, rows))
    widths = [max((len(row[i]) for row in rows if i < len(row)), default=0) for i in range(columns)]
    lines = ("    ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)) for row in rows)
    body = "\n".join(line.rstrip() for line in lines)
    return f"  {title}\n{textwrap.indent(body, '    ')}\n\n"


def list_models(prefix: str, *, as_json: bool = False) -> None:
    """Print the models whose name starts with `prefix`, ignoring case, as a table or a JSON array."""
    from puna.cli.server_process import connect

    with connect() as client:
        print_models(client, prefix, as_json=as_json)


def print_models(client: Client, prefix: str, *, as_json: bool = False) -> None:
    """Print what `list_models` does, from the server of `client`."""
    from puna.cli import manage

    models = client.get("/api/tags").get("models") or []
    chosen = [model for model in models if model["name"].lower().startswith(prefix.lower())]
    print(json.dumps(chosen) if as_json else manage.model_table(chosen, datetime.now(UTC)))


def list_running(prefix: str, *, as_json: bool = False) -> None:
    """Print the loaded models, as a table or a JSON array.

    If no local server is running, no model is loaded; that is not an error.
    """
    from puna.cli import manage
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
    print(json.dumps(chosen) if as_json else manage.running_table(chosen, datetime.now(UTC)))
    for warning in dict.fromkeys(text for model in chosen for text in model.get("warnings") or ()):
        terminal.warn(warning)


def show_model(name: str, field: str | None, verbose: bool, *, as_json: bool = False) -> None:
    """Print the overview of a model, one `field` of the server's reply verbatim, or all of it as JSON."""
    from puna.cli import manage
    from puna.cli.server_process import connect

    check_name(name)
    with connect() as client:
        shown = client.post("/api/show", {"model": name, "verbose": verbose})
    if as_json:
        print(json.dumps(shown))
        return
    if field is None:
        print(manage.overview(shown, verbose), end="")
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
                if error.status_code != 404:  # which the deletion will report
                    terminal.warn(f"unable to stop model '{name}'")
            client.delete("/api/delete", {"model": name})
            print(f"deleted '{name}'")


def stop_all() -> None:
    """Unload every loaded model and print its name."""
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
    """Raise RequestError for the path of a file, which these commands do not take."""
    if is_model_file(text):
        raise RequestError(
            f"{text} is a file, but this command takes the name of a model: 'puna list' shows the names, "
            f"and 'puna run {text}' runs the file"
        )

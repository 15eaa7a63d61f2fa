"""`puna create`: models from a Modelfile and local files, which are uploaded."""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from puna import config
from puna.cli import terminal
from puna.cli.client import Client
from puna.cli.manage import existing_file
from puna.cli.progress import Bar, StatusLines
from puna.cli.server_process import connect
from puna.convert import check_convertible
from puna.convert.whisper_cpp import check_whisper_cpp, is_whisper_cpp
from puna.errors import ConversionError, ServerError, StoreError
from puna.quantize.mixture import file_type_of
from puna.store import Store
from puna.store.blobs import has_changed
from puna.store.modelfile import Modelfile, parse
from puna.store.names import ModelName
from puna.store.recipe import adapter_source, create_request, model_source

if TYPE_CHECKING:
    from puna.convert import Converted

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
        terminal.note(f"There is no {DEFAULT_FILE} here: creating '{name}' from {', '.join(source.files)}.")
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
    """Refuse files that cannot become a model, before copying gigabytes."""
    if any(name.endswith(".safetensors") for name in files):
        settings = files.get("config.json")
        if settings is None:
            raise ConversionError(f"there is no config.json beside {next(iter(files))}")
        check_convertible(settings.parent)
        return
    for path in files.values():
        if path.suffix.lower() == ".bin" and is_whisper_cpp(path):
            check_whisper_cpp(path)
        else:
            check_model(path)


def read_modelfile(file: str | None) -> tuple[Modelfile, Path]:
    """Return the Modelfile and the folder its paths are relative to.

    `file` defaults to `Modelfile` in the current folder; without one, the folder itself is the model.
    """
    if file == "-":
        return parse(sys.stdin.buffer.read()), Path()
    if file is None and not Path(DEFAULT_FILE).is_file():
        return parse("FROM ."), Path()
    path = existing_file(file or DEFAULT_FILE)
    return parse(path.read_bytes()), path.parent


def _uploaded(client: Client, files: Mapping[str, Path]) -> dict[str, str]:
    """Upload files and return their digests by name."""
    digests: dict[str, str] = {}
    for name, path in files.items():
        digests[name] = file_digest(path.resolve())
        upload(client, path, digests[name])
    return digests


_CHUNK_BYTES = 1 << 20
_MAX_CACHED = 200


def converted_folder(folder: Path) -> Converted:
    """Return the files a published model's folder is converted to, showing progress if it takes work."""
    from puna.convert import converted

    with StatusLines() as lines:
        return converted(
            folder, lambda part, done, total: lines.show(f"converting {folder.name}'s {part}", done, total)
        )


def gguf_of(file: Path) -> Path:
    """Return the GGUF file that a file of whisper.cpp is converted to, or any other file itself."""
    if not is_whisper_cpp(file):
        return file
    from puna.convert import converted_whisper_cpp

    with StatusLines() as lines:
        return converted_whisper_cpp(
            file, lambda _, done, total: lines.show(f"converting {file.name}", done, total)
        )


def model_of_folder(client: Client, parts: Converted) -> str:
    """Return the name of a model made from a converted folder; see `model_from_file`."""
    files = [parts.model, *([parts.projector] if parts.projector else ())]
    return _model_from_files(client, files, parts.adapters)


def model_from_file(client: Client, text: str) -> str:
    """Return the name of a model made from the GGUF file at `text`, creating the model if necessary.

    The file stays where it is if the server can read it there; see `share`. The caller calls `check_model`.
    The name is derived from the file's; if another model already has that name, the digest becomes the tag.
    """
    return _model_from_files(client, [existing_file(text).resolve()], {})


def _model_from_files(client: Client, paths: Sequence[Path], adapters: Mapping[str, Path]) -> str:
    """Return the name of a model made from `paths`, its own file first; see `model_from_file`."""
    digests = {path: file_digest(path) for path in (*paths, *adapters.values())}
    path, digest = paths[0], digests[paths[0]]
    hexadecimal = digest.removeprefix("sha256:")
    for name in (derived_name(path.name), f"{derived_name(path.name)}:{hexadecimal[:12]}"):
        modelfile = _modelfile(client, name)
        if modelfile is None:
            break
        if hexadecimal in modelfile:
            for file, its_digest in digests.items():
                _renew_link(client, file, its_digest)
            return name
    linked = True
    for file, its_digest in digests.items():
        if not share(client, file, its_digest):
            upload(client, file, its_digest)
            linked = False
    body: dict[str, Any] = {"model": name, "files": {file.name: digests[file] for file in paths}}
    if adapters:
        body["adapters"] = {adapter: digests[file] for adapter, file in adapters.items()}
        body["adapter_scales"] = dict.fromkeys(adapters, 0.0)
    with StatusLines(quiet=True) as lines:
        lines.follow(client.stream("/api/create", body))
    kept = "uses the file where it is" if linked else "is a copy of the file"
    terminal.note(f"Added {path.name} as model '{name}', which {kept} ('puna rm {name}' removes it).")
    return name


def derived_name(file_name: str) -> str:
    """Derive a valid model name from a file's: `Llama 3.2 1B.Q4_K_M.gguf` becomes `llama-3.2-1b.q4_k_m`."""
    stem = re.sub(r"\.gguf$", "", file_name, flags=re.IGNORECASE).lower()
    name = re.sub(r"[^a-z0-9_.-]+", "-", stem).strip("-.")
    return name[:80].rstrip("-.") or "model"


def share(client: Client, path: Path, digest: str) -> bool:
    """Link a file into the store, so that the server uses it where it is; return False if it needs a copy.

    A server of another machine or user has its own store, or may not read the file. Servers never receive
    paths, so clients cannot make them read arbitrary files.
    """
    blobs = Store().blobs
    if not client.host.is_local or client.has_blob(digest) or blobs.has(digest):
        return client.host.is_local and blobs.path(digest).is_symlink() and client.has_blob(digest)
    try:
        blobs.link(path, digest)
        if client.has_blob(digest):
            return True
        blobs.unlink(digest)
    except StoreError:
        pass  # the server reports it, if the store is the server's
    return False


def _renew_link(client: Client, path: Path, digest: str) -> None:
    """Link the digest to the file at `path` if the store's link is broken or its file has changed."""
    blobs = Store().blobs
    link = blobs.path(digest)
    if client.host.is_local and link.is_symlink() and (not link.is_file() or has_changed(link)):
        blobs.link(path, digest)


def upload(client: Client, path: Path, digest: str) -> None:
    """Upload a file unless the server already has it, showing a progress bar."""
    if client.has_blob(digest):
        return
    size_bytes = path.stat().st_size
    with Bar(f"copying {path.name}", size_bytes) as bar:
        client.put_blob(digest, size_bytes, _chunks(path, bar))


def file_digest(path: Path) -> str:
    """Return `sha256:…` of a file. Digests of unchanged files are cached: hashing gigabytes takes seconds."""
    status = path.stat()
    stamp = [status.st_ino, status.st_ctime_ns, status.st_size]
    known = _read_cache()
    if known.get(str(path), [None])[:-1] == stamp:
        return str(known[str(path)][-1])
    digest = hashlib.sha256()
    with Bar(f"reading {path.name}", status.st_size) as bar:
        for chunk in _chunks(path, bar):
            digest.update(chunk)
    text = f"sha256:{digest.hexdigest()}"
    known.pop(str(path), None)
    _write_cache(known | {str(path): [*stamp, text]})
    return text


def _chunks(path: Path, bar: Bar) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            yield chunk
            bar.advance(len(chunk))


def check_model(path: Path) -> None:
    """Refuse a file that is no model, is damaged or cannot be run, before reading gigabytes.

    Raises GGUFError and ModelError.
    """
    from puna.gguf import open_gguf
    from puna.model.header import engine_for
    from puna.store.facts import facts_of

    with open_gguf(path) as file:
        if facts_of(path).kind == "model":
            engine_for(file)


def _modelfile(client: Client, name: str) -> str | None:
    try:
        return str(client.post("/api/show", {"model": name}).get("modelfile") or "")
    except ServerError as error:
        if error.status_code == 404:
            return None
        raise


def _cache_path() -> Path:
    return config.home() / "digests.json"


def _read_cache() -> dict[str, Any]:
    try:
        known = json.loads(_cache_path().read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def _write_cache(known: dict[str, Any]) -> None:
    newest = dict(list(known.items())[-_MAX_CACHED:])
    path = _cache_path()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(f".{os.getpid()}")
        temporary.write_text(json.dumps(newest), "utf-8")
        temporary.replace(path)
    except OSError:
        return  # without the cache, the next run just hashes the file again

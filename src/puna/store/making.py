"""Makes the files of a new model that are not there as they are wanted: converts, joins parts, quantises.

Whatever is made becomes a blob. What is half made is a file whose name begins with `tmp-`, which is swept
away if this process dies.
"""

from __future__ import annotations

import contextlib
import secrets
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from puna.convert import convert, convert_adapters, convert_tower
from puna.errors import GGUFError, RequestError, StoreError
from puna.gguf import FileType, open_gguf
from puna.quantize import merge_parts, quantize_file
from puna.store import manifest as media
from puna.store.blobs import Blobs, normalize_digest
from puna.store.create import PART_NAME, ModelSpec, check_file_name
from puna.store.facts import facts_of
from puna.store.stored import StoredModel

#: Is told what is being done, and how many bytes of it are, of how many.
Progress = Callable[[str, int, int], None]


def make(blobs: Blobs, spec: ModelSpec, parent: StoredModel | None, progress: Progress) -> ModelSpec:
    """`spec` with files that can be used as they are, and `replaced` layers of the parent.

    Raises RequestError, GGUFError and StoreError.
    """
    files = dict(spec.files) if parent is None else {}
    adapters: dict[str, str] = {}
    if any(name.lower().endswith(".safetensors") for name in files):
        files, adapters = _converted(blobs, files, progress)
    elif parts := {name: digest for name, digest in files.items() if PART_NAME.fullmatch(name)}:
        first = min(parts)
        whole = _made(blobs, lambda out: _join(blobs, parts, first, out, progress))
        files = {first: whole, **{name: digest for name, digest in files.items() if name not in parts}}
    replaced: dict[str, str] = {}
    if (kind := spec.quantize) is not None:
        files = {name: _quantized(blobs, digest, kind, progress) for name, digest in files.items()}
        for layer in parent.manifest.of_type(media.MODEL) if parent else ():
            path = parent.files[layer.digest] if parent else None
            assert path is not None
            replaced[layer.digest] = _quantized_file(blobs, path, layer.digest, kind, progress)
    return replace(
        spec,
        files=files or spec.files,
        replaced=replaced,
        adapters={**adapters, **spec.adapters},
        # Those that a model is published with count in requests that name them.
        adapter_scales={**dict.fromkeys(adapters, 0.0), **spec.adapter_scales},
    )


def _made(blobs: Blobs, write: Callable[[Path], None]) -> str:
    """The digest of a new blob, which `write` writes at a path."""
    with _scratch(blobs) as path:
        write(path)
        return blobs.adopt(path)


@contextlib.contextmanager
def _scratch(blobs: Blobs) -> Iterator[Path]:
    blobs.folder.mkdir(parents=True, exist_ok=True)
    path = blobs.folder / f"tmp-{secrets.token_hex(8)}.gguf"
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def _laid_out(blobs: Blobs, files: Mapping[str, str]) -> Iterator[Path]:
    """A folder in which blobs have their files' names."""
    with tempfile.TemporaryDirectory(prefix="puna-") as name:
        folder = Path(name)
        for file_name, digest in files.items():
            check_file_name(file_name)
            path = blobs.path(normalize_digest(digest))
            if not blobs.touch(digest):
                raise RequestError(f"{file_name}: blob {digest} is not in the store; upload it first")
            link = folder / file_name
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(path.resolve())
        yield folder


def _converted(
    blobs: Blobs, files: Mapping[str, str], progress: Progress
) -> tuple[dict[str, str], dict[str, str]]:
    """The model and what sees in it, and its adapters, of files as they are published."""

    def report(done: int, total: int) -> None:
        progress("converting model", done, total)

    with _laid_out(blobs, files) as folder:
        made = {"model.gguf": _made(blobs, lambda out: convert(folder, out, name="model", report=report))}
        with _scratch(blobs) as out:
            if convert_tower(folder, out, name="model", report=report):
                made["mmproj.gguf"] = blobs.adopt(out)
        with tempfile.TemporaryDirectory(dir=blobs.folder, prefix="tmp-") as scratch:
            adapters = convert_adapters(folder, lambda name: Path(scratch) / f"{name}.gguf", report=report)
            return made, {path.name: blobs.adopt(path) for path in adapters.values()}


def _join(blobs: Blobs, parts: Mapping[str, str], first: str, out: Path, progress: Progress) -> None:
    status = "joining parts"
    with _laid_out(blobs, parts) as folder:
        try:
            file = open_gguf(folder / first)
        except GGUFError as error:
            raise RequestError(str(error)) from error
        with file:
            merge_parts(file, out, lambda done, total: progress(status, done, total))


def _quantized(blobs: Blobs, digest: str, kind: FileType, progress: Progress) -> str:
    digest = normalize_digest(digest)
    return _quantized_file(blobs, blobs.path(digest), digest, kind, progress)


def _quantized_file(blobs: Blobs, path: Path, digest: str, kind: FileType, progress: Progress) -> str:
    """The digest of the file as a `kind`; the file's own if it is that already, or is no model."""
    try:
        facts = facts_of(path)
        if facts.kind != "model" or facts.quantization == kind.label:
            return digest
        status = f"quantizing {facts.quantization} model to {kind.label}"
        with open_gguf(path) as file:
            return _made(
                blobs,
                lambda out: quantize_file(
                    file, out, kind, report=lambda done, total: progress(status, done, total)
                ),
            )
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror or error}") from error
    except GGUFError as error:
        raise RequestError(str(error).replace(path.name, digest)) from error

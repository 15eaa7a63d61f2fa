"""The making of a new model's files: converts, joins parts and quantises.

Each result becomes a blob. Unfinished files have names starting with `tmp-`, which are swept up if this
process dies.
"""

from __future__ import annotations

import contextlib
import math
import secrets
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from puna.convert import convert, convert_adapters, convert_tower
from puna.convert.checkpoint import Checkpoint
from puna.convert.whisper_cpp import convert_whisper_cpp, is_whisper_cpp
from puna.errors import GGUFError, RequestError, StoreError
from puna.gguf import FileType, open_gguf
from puna.quantize import merge_parts, quantize_file
from puna.store import manifest as media
from puna.store.blobs import BlobHold, Blobs, normalize_digest
from puna.store.create import PART_NAME, ModelSpec, check_file_name
from puna.store.facts import facts_of
from puna.store.stored import StoredModel

#: Called with (status, bytes done, bytes in total).
Progress = Callable[[str, int, int], None]

#: Bytes of memory that converting takes per number of a tensor: stored, as float32, scaled and rearranged.
_BYTES_PER_NUMBER = 24


@dataclass(frozen=True)
class Maker:
    """Maker of files in a store, which are added to `held`.

    `on_made` is called with the digest of each, `on_size` with the bytes of memory the largest tensor takes.
    """

    blobs: Blobs
    held: BlobHold
    progress: Progress = lambda status, done, total: None
    on_made: Callable[[str], object] = lambda digest: None
    on_size: Callable[[int], object] = lambda size_bytes: None

    def make(self, spec: ModelSpec, parent: StoredModel | None) -> ModelSpec:
        """Return `spec` with files that are ready to use, and `replaced` layers of the parent.

        Raises RequestError, GGUFError and StoreError.
        """
        files = dict(spec.files) if parent is None else {}
        adapters: dict[str, str] = {}
        if any(name.lower().endswith(".safetensors") for name in files):
            files, adapters = self._converted(files)
        elif parts := {name: digest for name, digest in files.items() if PART_NAME.fullmatch(name)}:
            first = min(parts)
            whole = self._made(lambda out: self._join(parts, first, out))
            files = {first: whole, **{name: digest for name, digest in files.items() if name not in parts}}
        elif len(files) == 1:
            files = {name: self._of_whisper_cpp(name, digest) for name, digest in files.items()}
        replaced: dict[str, str] = {}
        if (kind := spec.quantize) is not None:
            files = {name: self._quantized(digest, kind) for name, digest in files.items()}
            for layer in parent.manifest.of_type(media.MODEL) if parent else ():
                path = parent.files[layer.digest] if parent else None
                assert path is not None
                replaced[layer.digest] = self._quantized_file(path, layer.digest, kind)
        return replace(
            spec,
            files=files or spec.files,
            replaced=replaced,
            adapters={**adapters, **spec.adapters},
            # Adapters published with a model apply only to requests that name them.
            adapter_scales={**dict.fromkeys(adapters, 0.0), **spec.adapter_scales},
        )

    def _made(self, write: Callable[[Path], None]) -> str:
        """Return the digest of a new blob, which `write` writes to a path."""
        with self._scratch() as path:
            write(path)
            return self._adopted(path)

    def _adopted(self, path: Path) -> str:
        status = "checking model"
        digest = self.blobs.adopt(path, self.held, lambda done, total: self.progress(status, done, total))
        self.on_made(digest)
        return digest

    @contextlib.contextmanager
    def _scratch(self) -> Iterator[Path]:
        self.blobs.folder.mkdir(parents=True, exist_ok=True)
        path = self.blobs.scratch / f"tmp-{secrets.token_hex(8)}.gguf"
        try:
            yield path
        finally:
            path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _laid_out(self, files: Mapping[str, str]) -> Iterator[Path]:
        """Lay out a folder in which blobs have the names of their files."""
        with tempfile.TemporaryDirectory(prefix="puna-") as name:
            folder = Path(name)
            for file_name, digest in files.items():
                check_file_name(file_name)
                path = self.blobs.path(normalize_digest(digest))
                if not self.blobs.has(digest):
                    raise RequestError(f"{file_name}: blob {digest} is not in the store; upload it first")
                link = folder / file_name
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(path.resolve())
            yield folder

    def _converted(self, files: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
        """Convert published files: return the model and its vision tower, and its adapters."""

        def report(done: int, total: int) -> None:
            self.progress("converting model", done, total)

        with self._laid_out(files) as folder:
            with Checkpoint(folder) as checkpoint:
                largest = max((math.prod(tensor.shape) for tensor in checkpoint.tensors.values()), default=0)
            self.on_size(_BYTES_PER_NUMBER * largest)
            made = {"model.gguf": self._made(lambda out: convert(folder, out, name="model", report=report))}
            with self._scratch() as out:
                if convert_tower(folder, out, name="model", report=report):
                    made["mmproj.gguf"] = self._adopted(out)
            with tempfile.TemporaryDirectory(dir=self.blobs.scratch, prefix="tmp-") as scratch:
                adapters = convert_adapters(
                    folder,
                    lambda name: Path(scratch) / f"{name}.gguf",
                    self.blobs.path(made["model.gguf"]),
                    report=report,
                )
                return made, {path.name: self._adopted(path) for path in adapters.values()}

    def _of_whisper_cpp(self, name: str, digest: str) -> str:
        """Return the digest of the model in a file of whisper.cpp, or that of any other file itself."""
        digest = normalize_digest(digest)
        if not self.blobs.has(digest) or not is_whisper_cpp(path := self.blobs.path(digest)):
            return digest

        def report(done: int, total: int) -> None:
            self.progress("converting model", done, total)

        return self._made(lambda out: convert_whisper_cpp(path, out, name=name, report=report))

    def _join(self, parts: Mapping[str, str], first: str, out: Path) -> None:
        with self._laid_out(parts) as folder:
            try:
                file = open_gguf(folder / first)
            except GGUFError as error:
                raise RequestError(str(error)) from error
            with file:
                merge_parts(file, out, lambda done, total: self.progress("joining parts", done, total))

    def _quantized(self, digest: str, kind: FileType) -> str:
        digest = normalize_digest(digest)
        return self._quantized_file(self.blobs.path(digest), digest, kind)

    def _quantized_file(self, path: Path, digest: str, kind: FileType) -> str:
        """Return the digest of the file quantised to `kind`, or its own if it already is, or is no model."""
        try:
            facts = facts_of(path)
            if facts.kind != "model" or facts.quantization == kind.label:
                return digest
            status = f"quantizing {facts.quantization} model to {kind.label}"
            with open_gguf(path) as file:
                return self._made(
                    lambda out: quantize_file(
                        file, out, kind, report=lambda done, total: self.progress(status, done, total)
                    )
                )
        except OSError as error:
            raise StoreError(f"{digest} cannot be read: {error.strerror or error}") from error
        except GGUFError as error:
            raise RequestError(str(error).replace(str(path), digest).replace(path.name, digest)) from error

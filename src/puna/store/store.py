"""The model store, in Ollama's directory layout, so that Ollama can share it."""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from puna.config import env_bool, models_dir
from puna.errors import InvalidNameError, ModelNotFoundError, PunaError, RequestError, StoreError
from puna.store import manifest as media
from puna.store import prune
from puna.store.blobs import (
    BlobHold,
    Blobs,
    BlobWriter,
    exclusive,
    is_held,
    read_whole,
    storage_errors,
    sync_directory,
    write_atomically,
)
from puna.store.bundled import bundled_model, bundled_models
from puna.store.config import ModelConfig
from puna.store.create import Converter, ModelSpec, build, needs_making, uploads_of
from puna.store.manifest import Manifest
from puna.store.names import DEFAULT_TAG, ModelName
from puna.store.stored import StoredModel, read_layer

log = logging.getLogger(__name__)

Status = Callable[[str], None]
Progress = Callable[[str, int, int], None]


class Store:
    """Models on disk: manifests by name, blobs by digest.

    Any number of processes may read and write at once. Writers take a lock; readers need none, because files
    appear atomically. Reading never writes, so it works in a read-only directory.
    """

    def __init__(self, root: Path | None = None) -> None:
        self.root = root or models_dir()
        self.manifests = self.root / "manifests"
        self.blobs = Blobs(self.root / "blobs")

    def list(self) -> list[StoredModel]:
        """Return all models, newest first, including bundled ones, skipping damaged ones with a warning."""
        found: list[StoredModel] = []
        for name, path in self._entries():
            try:
                found.append(self._load(name, path))
            except ModelNotFoundError:
                continue  # deleted since the directory was read
            except StoreError as error:
                log.warning("skipping model %s: %s", name, error)
        taken = {model.model_name.folded for model in found}
        found += [model for model in bundled_models() if model.model_name.folded not in taken]
        return sorted(found, key=lambda model: (-model.modified_ns, model.name))

    def names(self) -> tuple[str, ...]:
        """Return the names of all models in their shortest form."""
        return tuple(model.name.removesuffix(f":{DEFAULT_TAG}") for model in self.list())

    def get(self, name: str | ModelName) -> StoredModel:
        """Return the model called `name`, ignoring case.

        Raises InvalidNameError, ModelNotFoundError, or StoreError if the model is damaged.
        """
        wanted = _parse(name)
        stored = self._find(wanted)
        if stored is not None:
            return self._load(stored, self._manifest_path(stored))
        bundled = bundled_model(wanted)
        if bundled is None:
            raise ModelNotFoundError(f"model '{name}' not found")
        return bundled

    def manifest_bytes(self, name: str | ModelName) -> bytes:
        """Return the bytes of a model's manifest; bundled models have none. Raises as `get`."""
        wanted = self._find(_parse(name))
        if wanted is None:
            raise ModelNotFoundError(f"model '{name}' not found")
        return _read_manifest(wanted, self._manifest_path(wanted))[0]

    def exists(self, name: str | ModelName) -> bool:
        """Whether there is a model called `name` (possibly damaged). Raises InvalidNameError."""
        wanted = _parse(name)
        return self._find(wanted) is not None or bundled_model(wanted) is not None

    def resolve(self, name: str | ModelName) -> ModelName:
        """Return `name` with each part in the store's case; unknown parts are unchanged."""
        return self._spelling(_parse(name))

    def for_clients(self, error: PunaError) -> PunaError:
        """Return `error` without the store's paths: blobs appear by digest, other files by name."""
        text = str(error)
        if str(self.root) not in text:
            return error
        place = re.escape(str(self.root))
        text = re.sub(rf"{place}/blobs/sha256[-:]([0-9a-fA-F]{{64}})", r"sha256:\1", text)
        text = re.sub(rf"{place}(?:/[^\s/:'\"]+)*/", "", text).replace(str(self.root), "the model store")
        return PunaError.of_kind(error.kind, text)

    def blob_path(self, digest: str) -> Path:
        """Return the blob's file, existing or not. Raises InvalidNameError for a malformed digest."""
        return self.blobs.path(digest)

    def has_blob(self, digest: str) -> bool:
        return self.blobs.has(digest)

    def blob_seems_whole(self, digest: str) -> bool:
        """Whether the blob exists and shows no damage. Raises StoreError if it cannot be read."""
        return self.blobs.seems_whole(digest)

    def offer_blob(self, digest: str) -> bool:
        """Whether the blob exists and shows no damage; it is then kept for a while, as if just uploaded.

        Raises StoreError if it cannot be read.
        """
        return self.blobs.seems_whole(digest) and self.blobs.touch(digest)

    def put_blob(self, digest: str, chunks: Iterable[bytes]) -> bool:
        """Store a blob; return False if it exists. Raises RequestError (digest mismatch) or StoreError."""
        return self.blobs.put(digest, chunks)

    def blob_writer(self) -> BlobWriter:
        """Return a writer of a blob in pieces, which replaces an existing blob that may be damaged."""
        return BlobWriter(self.blobs.folder, self.blobs.scratch)

    def import_file(self, path: Path) -> str:
        """Copy a file into the store as a blob and return its digest."""
        return self.blobs.add_file(path)[0]

    def create(
        self,
        name: str | ModelName,
        spec: ModelSpec,
        on_status: Status | None = None,
        check: Callable[[Path], object] | None = None,
        convert: Converter | None = None,
        on_progress: Progress | None = None,
        on_made: Callable[[str], object] | None = None,
        on_size: Callable[[int], object] | None = None,
    ) -> StoredModel:
        """Create or replace the model `name` (see ModelSpec), and return it. Does not parse templates.

        `on_status` is called at each step, and `on_progress` while files are converted and quantised. `check`
        is called with each new model file and raises ModelError for one that cannot be run; the blobs of a
        refused spec are deleted unless other models use them. `convert` converts safetensors adapters to
        GGUF. `on_made` is called with the digests of intermediate blobs, which are deleted again unless the
        model uses them, and `on_size` with the bytes of memory that the largest tensor takes.

        Raises InvalidNameError, RequestError for an invalid spec, ModelNotFoundError for an unknown parent,
        and StoreError.
        """
        report = on_status or _silent
        wanted = _parse(name)
        made: set[str] = set()

        def note(digest: str) -> None:
            made.add(digest)
            (on_made or _silent)(digest)

        spent = False  # whether the source files are no longer needed
        try:
            with self.blobs.held(uploads_of(spec)) as held, self.blobs.held(spec.adapters.values()):
                given = spec
                if needs_making(spec):
                    spec = self._made(spec, held, on_progress, note, on_size)
                with self._writing():
                    parent = self.get(spec.from_model) if spec.from_model else None
                    target = self._spelling(wanted)
                    blobs = self.blobs
                    manifest = build(blobs, spec, parent, report, check or _silent, convert or _no_converter)
                    report("writing manifest")
                    self._write_manifest(target, manifest.encode())
                    created = self.get(target)
                spent = given is not spec
        except RequestError:
            spent = True
            raise
        finally:
            if unused := made | (held.unclaimed() if spent else set()):
                self.drop_unused(unused)
        report("success")
        return created

    def _made(
        self,
        spec: ModelSpec,
        held: BlobHold,
        progress: Progress | None,
        on_made: Callable[[str], object],
        on_size: Callable[[int], object] | None,
    ) -> ModelSpec:
        """Make the files that `spec` needs. This takes minutes, so the store is not locked meanwhile."""
        from puna.store.making import Maker

        parent = self.get(spec.from_model) if spec.from_model else None
        return Maker(self.blobs, held, progress or _silent, on_made, on_size or _silent).make(spec, parent)

    def put_manifest(self, name: str | ModelName, data: bytes) -> bool:
        """Make a manifest, whose blobs must exist, the model `name`, replacing the model of that name.

        Returns whether blobs of the replaced model were deleted. Raises StoreError.
        """
        manifest = Manifest.decode(data, f"the manifest of {name}")
        with self._writing():
            if missing := next((digest for digest in manifest.digests() if not self.has_blob(digest)), None):
                raise StoreError(
                    f"blob {missing} of {name} was deleted in the meantime; pull the model again"
                )
            target = self._spelling(_parse(name))
            left = self._digests(self._manifest_path(target)) - manifest.digests()
            self._write_manifest(target, data)
        return any(not self.has_blob(digest) for digest in left)

    def copy(self, source: str | ModelName, target: str | ModelName) -> None:
        """Copy a model to another name, replacing the model of that name. Blobs are shared."""
        wanted = _parse(target)
        with self._writing():
            original = self.get(source)
            spelled = self._spelling(wanted)
            if spelled.folded == original.model_name.folded:
                return
            if original.bundled:
                spec = ModelSpec(from_model=original.name)
                data = build(self.blobs, spec, original, _silent, _silent, _no_converter).encode()
            else:
                path = self._manifest_path(original.model_name)
                with storage_errors("read", path):
                    data = read_whole(path)
            self._write_manifest(spelled, data)

    def delete(self, name: str | ModelName) -> None:
        """Delete a model, even a damaged one, and the blobs that no other model uses."""
        wanted = _parse(name)
        with self._writing():
            stored = self._find(wanted)
            if stored is None:
                if bundled_model(wanted) is not None:
                    raise RequestError(f"'{wanted}' is bundled with Puna and cannot be deleted")
                raise ModelNotFoundError(f"model '{name}' not found")
            path = self._manifest_path(stored)
            digests = self._digests(path)
            with storage_errors("delete", path):
                path.unlink()
                sync_directory(path.parent)
            self._drop_empty(path.parent)
            self._release(digests)

    def drop_unused(self, digests: set[str]) -> None:
        """Delete the blobs among `digests` that no model uses. Raises StoreError."""
        with self._writing():
            self._release(digests)

    def prune(self) -> int:
        """Delete unused blobs and remains of interrupted writes. Return the number of deleted files.

        Does nothing if PUNA_NOPRUNE is set or the store contains a manifest that cannot be read.
        """
        if env_bool("NOPRUNE") or not self.blobs.folder.is_dir():
            return 0
        with self._writing():
            removed = prune.sweep(self.manifests, self.blobs.folder)
            prune.drop_empty_folders(self.manifests)
        return removed

    def _manifest_path(self, name: ModelName) -> Path:
        return self.manifests / name.path

    def _entries(self) -> Iterator[tuple[ModelName, Path]]:
        """Yield every manifest with a valid name."""
        for path in prune.manifest_files(self.manifests):
            try:
                yield ModelName(*path.relative_to(self.manifests).parts), path
            except InvalidNameError:
                continue

    def _find(self, wanted: ModelName) -> ModelName | None:
        """Return the stored name that equals `wanted` ignoring case, preferably exactly."""
        folders = [self.manifests]
        for part in wanted.path.parts[:-1]:
            folders = [
                Path(entry.path)
                for folder in folders
                for entry in _entries_named(folder, part)
                if entry.is_dir()
            ]
        files = [
            Path(entry.path)
            for folder in folders
            for entry in _entries_named(folder, wanted.tag)
            if entry.is_file()
        ]
        found = [ModelName(*path.relative_to(self.manifests).parts) for path in files]
        return wanted if wanted in found else min(found, key=str, default=None)

    def _spelling(self, wanted: ModelName) -> ModelName:
        found = self._find(wanted)
        if found is not None:
            return found
        folder, parts = self.manifests, list(wanted.path.parts)
        for i, part in enumerate(parts[:-1]):
            names = sorted(entry.name for entry in _entries_named(folder, part) if entry.is_dir())
            parts[i] = part if part in names or not names else names[0]
            folder = folder / parts[i]
        return ModelName(*parts)

    def _load(self, name: ModelName, path: Path) -> StoredModel:
        data, modified_ns = _read_manifest(name, path)
        while True:
            manifest = Manifest.decode(data, f"the manifest of {name}")
            config_path = self.blobs.path(manifest.config.digest)
            try:
                config = ModelConfig.decode(
                    read_layer(name.display, media.CONFIG, config_path), f"the config of {name}"
                )
                break
            except StoreError:
                # A writer may have replaced the manifest and deleted the old config since it was read.
                newer, modified_ns = _read_manifest(name, path)
                if newer == data:
                    raise
                data = newer
        return StoredModel(
            model_name=name,
            manifest=manifest,
            config=config,
            digest=prune.sha256_hex(data),
            modified_ns=modified_ns,
            files={digest: self.blobs.path(digest) for digest in manifest.digests()},
        )

    def _write_manifest(self, target: ModelName, data: bytes) -> None:
        path = self._manifest_path(target)
        replaced = self._digests(path)
        with storage_errors("write", path):
            self.blobs.folder.mkdir(parents=True, exist_ok=True)
            write_atomically(path, data, scratch=self.blobs.folder)
        self._release(replaced)

    def _digests(self, path: Path) -> set[str]:
        try:
            return Manifest.decode(read_whole(path), str(path)).digests()
        except (OSError, StoreError):
            return set()

    def _release(self, digests: set[str]) -> None:
        """Delete the blobs among `digests` that no manifest uses and no process holds."""
        if not digests or env_bool("NOPRUNE"):
            return
        used = prune.digests_in_use(self.manifests)
        if used is None:
            return
        for digest in digests - used:
            path = self.blobs.path(digest)
            if is_held(path):
                continue
            with contextlib.suppress(FileNotFoundError), storage_errors("delete", path):
                path.unlink(missing_ok=True)

    def _drop_empty(self, folder: Path) -> None:
        while folder != self.manifests and self.manifests in folder.parents:
            try:
                folder.rmdir()
            except OSError:
                return
            folder = folder.parent

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            with storage_errors("write to the model store", self.root):
                stack.enter_context(exclusive(self.root / ".puna.lock"))
            yield


def _no_converter(*paths: Path) -> None:
    raise RequestError("safetensors adapters cannot be converted here")


def _silent(*_: object) -> None:
    pass


def _read_manifest(name: ModelName, path: Path) -> tuple[bytes, int]:
    """Return the manifest's bytes and its modification time, in nanoseconds since the epoch."""
    try:
        return read_whole(path), path.stat().st_mtime_ns
    except FileNotFoundError:
        raise ModelNotFoundError(f"model '{name}' not found") from None
    except OSError as error:
        raise StoreError(f"cannot read the manifest of {name}: {error.strerror}") from error


def _parse(name: str | ModelName) -> ModelName:
    """Parse a name as clients send it, ignoring surrounding spaces."""
    return name if isinstance(name, ModelName) else ModelName.parse(name.strip())


def _entries_named(folder: Path, name: str) -> list[os.DirEntry[str]]:
    """Return the entries of `folder` called `name`, ignoring case; none if there is no such folder."""
    try:
        with os.scandir(folder) as entries:
            same = name.lower()
            return [entry for entry in entries if entry.name.isascii() and entry.name.lower() == same]
    except OSError:
        return []

"""Verification of a store: reads every manifest, and compares every blob with its digest."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from puna.errors import InvalidNameError, StoreError
from puna.store.blobs import file_digest, has_changed, read_whole
from puna.store.manifest import Manifest, ManifestLayer
from puna.store.names import ModelName
from puna.store.prune import manifest_files
from puna.store.store import Store

_BLOB_NAME = re.compile(r"sha256[-:][0-9a-f]{64}")


@dataclass(frozen=True)
class Damage:
    """A blob that does not match its digest, with the models that use it."""

    layer: ManifestLayer
    problem: str
    models: tuple[ModelName, ...]


@dataclass
class Findings:
    """The problems of a store; sizes in bytes."""

    models: int = 0
    blobs: int = 0
    size: int = 0  # of the blobs that were read
    unused: list[Path] = field(default_factory=list)  # blobs of no model, and remains of interrupted writes
    damages: list[Damage] = field(default_factory=list)
    manifests: list[str] = field(default_factory=list)  # errors of unreadable ones


def verify(store: Store, progress: Callable[[int, int], object] | None = None) -> Findings:
    """Check a whole store, changing nothing. `progress` is called with (bytes read, bytes in total).

    Raises StoreError if the store itself cannot be read.
    """
    found = Findings()
    users: dict[str, list[ModelName]] = {}
    layers: dict[str, ManifestLayer] = {}
    for path in manifest_files(store.manifests):
        try:
            name = ModelName(*path.relative_to(store.manifests).parts)
            manifest = Manifest.decode(read_whole(path), str(path))
        except (InvalidNameError, StoreError) as error:
            found.manifests.append(str(error))
            continue
        except OSError as error:
            found.manifests.append(f"{path}: cannot be read ({error.strerror})")
            continue
        found.models += 1
        for layer in (manifest.config, *manifest.layers):
            layers.setdefault(layer.digest, layer)
            users.setdefault(layer.digest, []).append(name)
    files = _files(store.blobs.folder)
    for path in files:
        digest = path.name.replace("-", ":", 1)
        if _BLOB_NAME.fullmatch(path.name) is None or digest not in users:
            found.unused.append(path)
        if _BLOB_NAME.fullmatch(path.name):
            layers.setdefault(digest, ManifestLayer(media_type="", digest=digest, size=_size(path)))
    total, done = sum(_size(store.blob_path(digest)) for digest in layers), 0
    for digest, layer in layers.items():
        path = store.blob_path(digest)
        problem = _problem(path, layer)
        if problem:
            found.damages.append(Damage(layer, problem, tuple(dict.fromkeys(users.get(digest, ())))))
        found.blobs += 1
        done += _size(path)
        if progress is not None:
            progress(done, total)
    found.size = done
    return found


def _problem(path: Path, layer: ManifestLayer) -> str:
    """Return the problem of a blob, or an empty string."""
    try:
        if not path.exists():
            return f"its file {path.readlink()} is gone" if path.is_symlink() else "it is missing"
        if (size := path.stat().st_size) != layer.size:
            return f"it has {size} bytes, not {layer.size}"
        if file_digest(path) == layer.digest:
            return ""
    except OSError as error:
        return f"it cannot be read ({error.strerror})"
    return "the file it was made from has changed" if has_changed(path) else "its content is damaged"


def _files(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.is_symlink() or path.is_file())
    except OSError:
        return []


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0

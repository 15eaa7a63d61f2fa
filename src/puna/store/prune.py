"""Pruning: the deletion of blobs that no manifest uses."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from puna.errors import InvalidNameError, StoreError
from puna.store.blobs import is_held, read_whole
from puna.store.manifest import Manifest
from puna.store.names import ModelName

log = logging.getLogger(__name__)

#: A blob younger than this may belong to a model that is being created.
GRACE_S = 3600.0

_BLOB_NAME = re.compile(r"sha256[-:][0-9a-fA-F]{64}")


def sha256_hex(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def manifest_files(manifests: Path) -> Iterator[Path]:
    """Yield every file four levels below `manifests`, except hidden ones. Follows symlinks."""
    yield from _files_at(manifests, 4)


def _files_at(folder: Path, depth: int) -> Iterator[Path]:
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        if entry.name.startswith("."):
            continue
        if depth > 1 and entry.is_dir():
            yield from _files_at(Path(entry.path), depth - 1)
        elif depth == 1 and entry.is_file():
            yield Path(entry.path)


def digests_in_use(manifests: Path) -> set[str] | None:
    """Return the digests that manifests use, or None if a manifest cannot be read."""
    used: set[str] = set()
    for path in manifest_files(manifests):
        try:
            used |= Manifest.decode(read_whole(path), str(path)).digests()
        except (OSError, StoreError) as error:
            log.warning("keeping unused blobs: %s", error)
            return None
    return used


def _all_named(manifests: Path) -> bool:
    """Whether every file at manifest depth, including hidden ones, has a valid model name."""
    for path in manifests.glob("*/*/*/*"):
        if path.is_file():
            try:
                ModelName(*path.relative_to(manifests).parts)
            except InvalidNameError:
                log.warning("not pruning: %s is not a model name", path)
                return False
    return True


def sweep(manifests: Path, blobs: Path) -> int:
    """Delete unused blobs, temporary files and folders older than an hour. Return their number."""
    used = digests_in_use(manifests) if _all_named(manifests) else None
    if used is None:
        return 0
    removed = 0
    oldest_kept = time.time() - GRACE_S
    for entry in list(os.scandir(blobs)):
        in_use = _BLOB_NAME.fullmatch(entry.name) and entry.name.replace("-", ":").lower() in used
        with contextlib.suppress(OSError):
            own = entry.is_symlink() or entry.is_file(follow_symlinks=False)
            status = entry.stat(follow_symlinks=False)
            touched = max(status.st_mtime, status.st_atime) if entry.is_symlink() else status.st_mtime
            if not in_use and own and touched < oldest_kept and not _is_held(entry):
                Path(entry.path).unlink()
                removed += 1
            elif _is_left_over(entry) and touched < oldest_kept:
                shutil.rmtree(entry.path)
                removed += 1
    return removed


def _is_held(entry: os.DirEntry[str]) -> bool:
    return _BLOB_NAME.fullmatch(entry.name) is not None and is_held(Path(entry.path))


def _is_left_over(entry: os.DirEntry[str]) -> bool:
    """Whether `entry` is the folder of a killed conversion, with no recent writes in it."""
    if not entry.name.startswith("tmp-") or not entry.is_dir(follow_symlinks=False):
        return False
    newest = max((file.stat(follow_symlinks=False).st_mtime for file in os.scandir(entry.path)), default=0)
    return newest < time.time() - GRACE_S


def drop_empty_folders(manifests: Path) -> None:
    """Remove empty directories below `manifests`."""
    for folder, _, _ in os.walk(manifests, topdown=False):
        if Path(folder) != manifests:
            with contextlib.suppress(OSError):
                Path(folder).rmdir()

"""Pulling in tests: in haste, and what the store has then."""

from __future__ import annotations

from typing import Any

from puna.registry.download import Patience
from puna.registry.pull import pull
from puna.registry.report import TransferProgress
from puna.store import Store
from tests.registry.registries import Published

HASTY = Patience(tries=3, first_wait_s=0.0, report_s=0.01)


def pulled(store: Store, name: str, **more: Any) -> list[TransferProgress]:
    """The steps of a pull from a registry without TLS."""
    steps: list[TransferProgress] = []
    pull(store, name, steps.append, insecure=True, patience=HASTY, **more)
    return steps


def holds(store: Store, published: Published) -> bool:
    return all(store.blob_path(digest).read_bytes() == data for digest, data in published.blobs.items())


def is_empty(store: Store) -> bool:
    """Whether nothing of a model can be seen: no manifest, no blob that is not whole."""
    blobs = [path for path in store.blobs.folder.glob("*") if "-partial" not in path.name]
    return not any(path.is_file() for path in store.manifests.rglob("*")) and not blobs

"""Pulling in tests: without waiting, and checking what the store holds afterwards."""

from __future__ import annotations

from typing import Any

from puna.registry.download import Patience
from puna.registry.pull import pull
from puna.registry.report import TransferProgress
from puna.store import Store
from tests.registry.registries import Published

HASTY = Patience(tries=3, first_wait_s=0.0, report_s=0.01)


def pulled(store: Store, name: str, **options: Any) -> list[TransferProgress]:
    """Pull from a registry without TLS and return the steps reported."""
    steps: list[TransferProgress] = []
    pull(store, name, steps.append, insecure=True, patience=HASTY, **options)
    return steps


def holds(store: Store, published: Published) -> bool:
    return all(store.blob_path(digest).read_bytes() == data for digest, data in published.blobs.items())


def is_empty(store: Store) -> bool:
    """Whether no part of a model is visible: no manifest and no complete blob."""
    blobs = [path for path in store.blobs.folder.glob("*") if "-partial" not in path.name]
    return not any(path.is_file() for path in store.manifests.rglob("*")) and not blobs

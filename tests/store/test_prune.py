"""Pruning deletes only blobs that are old and certainly unused."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from puna.store import ModelSpec, Store
from tests.store.store_files import add, minimal_gguf


def test_unreadable_manifest_keeps_all_blobs(store: Store) -> None:
    digest = add(store, minimal_gguf())
    store.create("a", ModelSpec(files={"a.gguf": digest}))
    store.create("b", ModelSpec(files={"a.gguf": digest}))
    (store.manifests / "registry.ollama.ai/library/b/latest").write_text("?")
    store.delete("a")
    assert store.has_blob(digest)  # b may need it


def test_noprune_keeps_unused_layers(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PUNA_NOPRUNE", "1")
    digest = add(store, minimal_gguf())
    store.create("a", ModelSpec(files={"a.gguf": digest}))
    store.delete("a")
    assert store.has_blob(digest)
    assert store.prune() == 0


def test_hidden_file_does_not_count_as_a_manifest(store: Store) -> None:
    digest = add(store, minimal_gguf())
    store.create("a", ModelSpec(files={"a.gguf": digest}))
    store.create("b", ModelSpec(from_model="a", system="mine"))
    (store.manifests / "registry.ollama.ai/library/a/.DS_Store").write_text("?")
    (system,) = store.get("b").manifest.of_type("application/vnd.ollama.image.system")
    store.delete("b")
    assert not store.has_blob(system.digest)


def age(path: Path) -> None:
    old = time.time() - 2 * 3600
    os.utime(path, (old, old))


def test_pruning_deletes_old_unused_blobs(store: Store) -> None:
    used = add(store, minimal_gguf())
    store.create("a", ModelSpec(files={"a.gguf": used}))
    old, young = add(store, b"old"), add(store, b"young")
    partial = store.root / "blobs" / (old.replace(":", "-") + "-partial-0")
    partial.write_bytes(b"")
    for path in (store.blob_path(used), store.blob_path(old), partial):
        age(path)
    (store.manifests / "h.io/ns/empty").mkdir(parents=True)
    assert store.prune() == 2
    assert store.has_blob(used)
    assert store.has_blob(young)
    assert not store.has_blob(old)
    assert not (store.manifests / "h.io").exists()


@pytest.mark.parametrize("stray", [".DS_Store", "bad name"])
def test_nothing_is_pruned_if_a_manifest_cannot_be_read(store: Store, stray: str) -> None:
    store.create("a", ModelSpec(files={"a.gguf": add(store, minimal_gguf())}))
    (store.manifests / "registry.ollama.ai/library/a" / stray).write_text("x")
    old = add(store, b"old")
    age(store.blob_path(old))
    assert store.prune() == 0
    assert store.has_blob(old)


def test_remains_of_a_killed_conversion_are_pruned_once_nothing_writes_to_them(store: Store) -> None:
    store.create("m", ModelSpec(files={"a.gguf": add(store, minimal_gguf())}))
    for name, age_s in (("tmp-old", 4000), ("tmp-busy", 0), ("mine", 4000)):
        folder = store.blobs.folder / name
        folder.mkdir()
        (folder / "adapter.gguf").write_bytes(b"half")
        moment = time.time() - age_s
        os.utime(folder / "adapter.gguf", (moment, moment))
        os.utime(folder, (0, 0))
    assert store.prune() == 1
    assert sorted(each.name for each in store.blobs.folder.iterdir() if each.is_dir()) == ["mine", "tmp-busy"]

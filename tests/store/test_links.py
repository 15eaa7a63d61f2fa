"""Models whose file stays outside the store, which holds a link to it."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from puna.errors import ModelError, RequestError, StoreError
from puna.store import ModelSpec, Store
from tests.store.store_files import add, minimal_gguf, sha256
from tests.waiting import wait_until


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "elsewhere" / "model.gguf"
    path.parent.mkdir()
    path.write_bytes(minimal_gguf())
    return path


@pytest.fixture
def linked(store: Store, file: Path) -> Store:
    """Return a store with the model `m`, whose file is outside."""
    digest = sha256(minimal_gguf())
    store.blobs.link(file, digest)
    store.create("m", ModelSpec(files={"model.gguf": digest}))
    return store


def test_linked_file_is_used_in_place(linked: Store, file: Path) -> None:
    assert linked.get("m").runnable_path().resolve() == file
    assert linked.get("m").model_layer is not None
    assert linked.get("m").size > file.stat().st_size


def test_using_a_linked_file_does_not_change_it(linked: Store, file: Path) -> None:
    os.utime(file, (1000, 1000))
    assert linked.blobs.touch(sha256(minimal_gguf()))
    assert file.stat().st_mtime == 1000


def test_deleting_the_model_keeps_the_linked_file(linked: Store, file: Path) -> None:
    linked.delete("m")
    assert not list(linked.blobs.folder.iterdir())
    assert file.read_bytes() == minimal_gguf()


def test_missing_or_resized_linked_file_is_reported(linked: Store, file: Path) -> None:
    file.write_bytes(minimal_gguf() + b"more")
    with pytest.raises(StoreError, match=rf"{file} has 72 bytes, not the 68 it had when the model was made"):
        linked.get("m").runnable_path()
    file.unlink()
    with pytest.raises(StoreError, match=f"its model file {file} is missing"):
        linked.get("m").runnable_path()


def test_rewritten_linked_file_of_the_same_size_is_reported(linked: Store, file: Path) -> None:
    link = linked.blob_path(sha256(minimal_gguf()))
    before = file.stat()

    def change() -> bool:
        file.write_bytes(minimal_gguf()[::-1])
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
        return file.stat().st_ctime_ns > link.lstat().st_mtime_ns

    wait_until(change, "a later time")
    with pytest.raises(StoreError, match=f"its model file {file} was changed or moved after the model was"):
        linked.get("m").runnable_path()
    assert not linked.blob_seems_whole(sha256(minimal_gguf()))


def test_file_replaced_by_an_older_one_is_reported(store: Store, file: Path) -> None:
    other = file.with_name("other")
    other.write_bytes(minimal_gguf()[::-1])
    os.utime(other, (1000, 1000))
    store.blobs.link(file, sha256(minimal_gguf()))
    store.create("m", ModelSpec(files={"model.gguf": sha256(minimal_gguf())}))
    link = store.blob_path(sha256(minimal_gguf()))

    def replace() -> bool:
        other.rename(file)
        file.rename(other)
        return other.stat().st_ctime_ns > link.lstat().st_mtime_ns

    wait_until(replace, "a later time")
    other.rename(file)
    with pytest.raises(StoreError, match="was changed or moved"):
        store.get("m").runnable_path()


def test_reusing_a_link_keeps_the_time_it_was_made(linked: Store) -> None:
    digest = sha256(minimal_gguf())
    link = linked.blob_path(digest)
    os.utime(link, (1000, 1000), follow_symlinks=False)
    linked.create("n", ModelSpec(files={"model.gguf": digest}))
    assert (link.lstat().st_mtime, link.lstat().st_atime > 1000) == (1000, True)


def test_dangling_link_is_replaced_by_an_upload(linked: Store, file: Path) -> None:
    file.unlink()
    add(linked, minimal_gguf())
    assert linked.get("m").runnable_path().resolve() != file
    assert not file.exists()


def test_unlinking_removes_links_but_not_copies(store: Store, file: Path) -> None:
    digest = add(store, minimal_gguf())
    store.blobs.unlink(digest)
    assert store.has_blob(digest)
    store.blobs.link(file, digest)
    store.blobs.unlink(digest)
    assert not store.has_blob(digest)


def test_unused_link_is_pruned_by_its_own_age(store: Store, file: Path) -> None:
    old = time.time() - 7200
    os.utime(file, (old, old))
    digest = sha256(minimal_gguf())
    store.blobs.link(file, digest)
    assert store.prune() == 0
    os.utime(store.blob_path(digest), (old, old), follow_symlinks=False)
    assert store.blobs.touch(digest)
    assert store.prune() == 0
    os.utime(store.blob_path(digest), (old, old), follow_symlinks=False)
    assert store.prune() == 1
    assert file.exists()


def test_refused_file_leaves_no_blob(store: Store) -> None:
    def refuse(path: Path) -> None:
        raise ModelError(f"no {path.name}")

    kept = add(store, minimal_gguf())
    store.create("other", ModelSpec(files={"a.gguf": kept}))
    cut = add(store, minimal_gguf()[:40])
    for spec in (ModelSpec(files={"a.gguf": cut}), ModelSpec(files={"a.gguf": kept})):
        with pytest.raises(RequestError, match=r"a\.gguf cannot be used"):
            store.create("m", spec, check=refuse)
    assert not store.has_blob(cut)
    assert store.has_blob(kept), "another model needs it"
    assert not store.exists("m")

"""Blobs are stored under the right digest or not at all."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from puna.errors import RequestError, StoreError
from puna.store import ModelSpec, Store
from tests.store.store_files import add, blob_names, sha256


def test_blob_is_stored_only_if_its_digest_matches(store: Store) -> None:
    right, wrong = sha256(b"hello"), sha256(b"other")
    with pytest.raises(RequestError, match=f'digest mismatch, expected "{wrong}", got "{right}"'):
        store.put_blob(wrong, [b"hel", b"lo"])
    assert blob_names(store) == set()
    assert store.put_blob(right.upper().replace("SHA256:", "sha256-"), [b"hel", b"lo"])
    assert store.blob_path(right).read_bytes() == b"hello"
    assert not store.put_blob(right, iter(()))  # already exists: the body is not read
    assert store.has_blob(right)


def test_interrupted_upload_leaves_nothing_behind(store: Store) -> None:
    def body() -> object:
        yield b"hel"
        raise ConnectionError("client gone")

    with pytest.raises(ConnectionError):
        store.put_blob(sha256(b"hello"), body())  # type: ignore[arg-type]
    assert blob_names(store) == set()


def test_storing_a_blob_again_updates_its_modification_time(store: Store) -> None:
    digest = add(store, b"x")
    os.utime(store.blob_path(digest), (1, 1))
    store.put_blob(digest, [])
    assert store.blob_path(digest).stat().st_mtime > 1e9


@pytest.mark.parametrize(
    ("number", "advice"),
    [(errno.ENOSPC, "disk is full"), (errno.EACCES, "permission denied"), (errno.EROFS, "read-only")],
)
def test_failed_write_says_where_and_what_to_do(
    store: Store, monkeypatch: pytest.MonkeyPatch, number: int, advice: str
) -> None:
    def refuse(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("puna.store.blobs.os.fsync", refuse)
    with pytest.raises(StoreError, match=f"blobs/tmp-.*{advice}"):
        store.put_blob(sha256(b"hello"), [b"hello"])
    assert blob_names(store) == set()


@pytest.mark.skipif(os.geteuid() == 0, reason="root can write anywhere: run this as another user")
def test_unwritable_directory_is_reported(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    store = Store(tmp_path / "models")
    with pytest.raises(StoreError, match="permission denied"):
        add(store, b"x")
    assert store.list() == []


def test_store_path_below_a_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = Store(tmp_path / "file" / "models")
    assert [model for model in store.list() if not model.bundled] == []
    with pytest.raises(StoreError, match="Not a directory"):
        add(store, b"x")
    with pytest.raises(StoreError, match="Not a directory"):
        store.create("m", ModelSpec(from_model=None, files={"a.gguf": sha256(b"x")}))


def test_blobs_named_as_in_old_stores_are_found(store: Store) -> None:
    digest = add(store, b"hello")
    current_path = store.blob_path(digest)
    current_path.rename(current_path.with_name(digest))
    assert store.has_blob(digest)
    assert store.blob_path(digest).read_bytes() == b"hello"

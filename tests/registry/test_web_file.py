"""Pulling a file from a web address: naming it, resuming it, and refusing files that are not models."""

from __future__ import annotations

import contextlib
import shutil
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from puna.errors import InvalidNameError, RegistryError, StoreError
from puna.store import Store
from puna.store.names import ModelName
from tests.registry.pulling import is_empty, pulled
from tests.registry.registries import Published, Registry, digest_of, reply, serve_blob, serving


class Site:
    """A site with one file and its entity tag.

    Connections break after `breaks_after` bytes, unless that is 0.
    """

    def __init__(self, published: Published) -> None:
        self.data = published.blobs[published.model_digest]
        self.tag = '"one"'
        self.breaks_after = 0
        self.requested: list[str] = []
        self.registry = Registry(published, intercept=self._intercept)

    @property
    def url(self) -> str:
        return f"http://{self.registry.address}/files/v1.5/tiny.Q8_0.gguf?key=secret"

    @property
    def name(self) -> str:
        return f"{self.registry.address}/files-v1-5/tiny.Q8_0:latest"

    def _intercept(self, handler: BaseHTTPRequestHandler) -> bool:
        if not handler.path.startswith("/files/v1.5/tiny.Q8_0.gguf"):
            return False
        headers = {"etag": self.tag}
        if handler.command == "GET":
            self.requested.append(handler.headers.get("range", ""))
            if handler.headers.get("if-range", self.tag) != self.tag:
                del handler.headers["range"]
        if self.breaks_after and handler.command == "GET":
            start = int(handler.headers.get("range", "bytes=0-").removeprefix("bytes=").rstrip("-"))
            handler.send_response(206 if start else 200)
            handler.send_header("etag", self.tag)
            handler.send_header("content-range", f"bytes {start}-{len(self.data) - 1}/{len(self.data)}")
            handler.send_header("content-length", str(len(self.data) - start))
            handler.end_headers()
            handler.wfile.write(self.data[start : start + self.breaks_after])
            handler.close_connection = True
        else:
            serve_blob(handler, self.data, headers)
        return True


@pytest.fixture
def site(published: Published) -> Site:
    return Site(published)


def test_file_is_pulled_once_and_named_after_its_address(store: Store, site: Site) -> None:
    with serving(site.registry):
        steps = pulled(store, site.url)
        assert steps[-1].status == "success"
        model = store.get(site.name)
        assert model.digest == store.get(site.url).digest
        assert model.runnable_path().read_bytes() == site.data
        assert "secret" not in (store.manifests / model.model_name.path).read_text()
        pulled(store, site.url)
        assert site.requested == [""]
        site.tag, site.data = '"two"', site.data + bytes(32)
        pulled(store, site.url)
        assert store.get(site.url).runnable_path().read_bytes() == site.data


def test_interrupted_pull_of_a_file_resumes(store: Store, site: Site) -> None:
    with serving(site.registry):
        site.breaks_after = 20_000
        with pytest.raises(RegistryError, match="max retries exceeded"):
            pulled(store, site.url)
        assert not list(store.manifests.rglob("latest"))
        site.breaks_after = 0
        site.requested.clear()
        pulled(store, site.url)
        assert site.requested == ["bytes=60000-"]
        assert store.blob_path(digest_of(site.data)).read_bytes() == site.data


def test_changed_file_is_fetched_from_the_beginning(store: Store, site: Site) -> None:
    with serving(site.registry):
        site.breaks_after = 20_000
        with pytest.raises(RegistryError):
            pulled(store, site.url)
        site.breaks_after = 0
        site.tag, site.data = '"two"', site.data[:-5000] + bytes(5000)
        pulled(store, site.url)
        assert store.blob_path(digest_of(site.data)).read_bytes() == site.data


def test_file_that_is_not_a_model_is_not_fetched_completely(store: Store, published: Published) -> None:
    def intercept(handler: BaseHTTPRequestHandler) -> bool:
        reply(handler, 200, b"<!doctype html>" + bytes(100))
        return True

    wanted = r"m\.gguf is not a GGUF file: it starts with b'<!do'"
    with (
        serving(Registry(published, intercept=intercept)) as registry,
        pytest.raises(RegistryError, match=wanted),
    ):
        pulled(store, f"http://{registry.address}/m.gguf")
    assert not list(store.manifests.rglob("latest"))


def test_endless_file_leaves_room_on_the_disk(
    store: Store, published: Published, monkeypatch: pytest.MonkeyPatch
) -> None:
    def intercept(handler: BaseHTTPRequestHandler) -> bool:
        handler.send_response(200)
        handler.end_headers()
        handler.close_connection = True
        with contextlib.suppress(OSError):
            handler.wfile.write(b"GGUF")
            for _ in range(500 if handler.command == "GET" else 0):  # more than there is room for
                handler.wfile.write(bytes(100_000))
        return True

    def usage(folder: Path) -> shutil._ntuple_diskusage:
        written = sum(file.stat().st_size for file in folder.iterdir())
        return shutil._ntuple_diskusage(1 << 40, written, (1 << 30) + 5_000_000 - written)

    monkeypatch.setattr(shutil, "disk_usage", usage)
    with (
        serving(Registry(published, intercept=intercept)) as registry,
        pytest.raises(StoreError, match="free some space"),
    ):
        pulled(store, f"http://{registry.address}/m.gguf")
    (partial,) = store.blobs.folder.glob("*-partial")
    assert 4_000_000 < partial.stat().st_size < 6_000_000


@pytest.mark.parametrize("number", ["9" * 5000, "\u0669"])
def test_invalid_numbers_in_headers_are_refused(store: Store, published: Published, number: str) -> None:
    """Python's `int` fails on the first and accepts the second."""

    def intercept(handler: BaseHTTPRequestHandler) -> bool:
        handler.send_response(206)
        handler.send_header("content-range", f"bytes 0-4/{number}".encode().decode("latin-1"))
        handler.send_header("content-length", "4")
        handler.end_headers()
        handler.wfile.write(b"GGUF")
        return True

    with (
        serving(Registry(published, intercept=intercept)) as registry,
        pytest.raises(RegistryError, match="sent"),
    ):
        pulled(store, f"http://{registry.address}/m.gguf")


def test_missing_file_is_reported(store: Store, site: Site) -> None:
    with serving(site.registry), pytest.raises(RegistryError, match="file does not exist"):
        pulled(store, f"http://{site.registry.address}/other/m.gguf")


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("https://models.example/a/b/Tiny-Q8_0.gguf", "models.example/a-b/Tiny-Q8_0:latest"),
        ("https://models.example/tiny.gguf#top", "models.example/library/tiny:latest"),
        ("http://Models.Example:8000/x/t%20y.GGUF", "models.example:8000/x/t-y:latest"),
        ("https://hf.co/a/b/blob/main/c-Q4_0.gguf", "hf.co/a/b:c-Q4_0.gguf"),
        ("https://models.example/../../etc/.gguf", None),
        ("https://models.example/" + "x" * 200 + ".gguf", "models.example/library/" + "x" * 80 + ":latest"),
    ],
)
def test_model_is_named_after_the_files_address(address: str, name: str | None) -> None:
    if name is None:
        with pytest.raises(InvalidNameError, match="invalid model name"):
            ModelName.parse(address)
    else:
        assert ModelName.parse(address).display == name


def test_interrupted_pull_leaves_nothing_visible(store: Store, site: Site, tmp_path: Path) -> None:
    with serving(site.registry):
        site.breaks_after = 20_000
        with pytest.raises(RegistryError):
            pulled(store, site.url)
    assert is_empty(store)

"""Pushing to Docker's registry, and to registries that drop connections, redirect and require signatures."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from puna.errors import ModelNotFoundError, RegistryError, StoreError
from puna.registry import upload
from puna.registry.network import TransferCancelledError
from puna.registry.push import push
from puna.registry.report import TransferProgress
from puna.store import ModelSpec, Store
from puna.store.manifest import MANIFEST
from puna.store.names import ModelName
from tests.registry.pulling import HASTY, holds, pulled
from tests.registry.receiving import Receiving
from tests.registry.registries import Published, Registry, docker_registry, serving


def pushed(store: Store, name: str, **options: Any) -> list[TransferProgress]:
    """Push to a registry without TLS and return the steps reported."""
    steps: list[TransferProgress] = []
    push(store, name, steps.append, insecure=True, patience=HASTY, **options)
    return steps


@pytest.fixture(scope="module")
def docker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with docker_registry(tmp_path_factory.mktemp("registry")) as address:
        yield address


@pytest.fixture
def model(store: Store, published: Published) -> Published:
    """Store the model as `team/model` of Ollama's registry."""
    for digest, data in published.blobs.items():
        store.put_blob(digest, [data])
    store.put_manifest("team/model", published.manifest)
    return published


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_pushed_model_can_be_pulled(store: Store, model: Published, docker: str) -> None:
    name = f"{docker}/team/model:small"
    store.copy("team/model", name)
    steps = pushed(store, f"http://{name}")
    statuses = list(dict.fromkeys(step.status for step in steps))
    hexes = [digest.removeprefix("sha256:")[:12] for digest in model.blobs]
    assert statuses[0] == "retrieving manifest"
    assert set(statuses[1:-2]) == {f"pushing {each}" for each in hexes}
    assert statuses[-2:] == ["pushing manifest", "success"]
    shutil.rmtree(store.root)
    pulled(store, f"http://{name}")
    assert holds(store, model)
    assert (store.manifests / ModelName.parse(name).path).read_bytes() == model.manifest
    assert not list(store.blobs.folder.glob("*-push-*"))


def test_blob_is_sent_in_pieces_and_only_once(
    store: Store, model: Published, docker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upload, "PIECE", 30_000)
    sent: list[tuple[str, int]] = []
    real = upload.Upload._piece

    def counted(self: upload.Upload, location: str, offset: int, length: int, *rest: Any) -> str:
        sent.append((self._layer.digest, offset))
        return real(self, location, offset, length, *rest)

    monkeypatch.setattr(upload.Upload, "_piece", counted)
    store.copy("team/model", f"{docker}/pieces/model")
    pushed(store, f"{docker}/pieces/model")
    assert [offset for digest, offset in sent if digest == model.model_digest] == [0, 30_000, 60_000, 90_000]
    sent.clear()
    pushed(store, f"{docker}/pieces/model")  # the registry already has everything
    assert sent == []
    # Another repository of the registry mounts them from the first.
    store.copy(f"{docker}/pieces/model", f"{docker}/others/model")
    pushed(store, f"{docker}/others/model")
    assert sent == []
    with httpx.Client(base_url=f"http://{docker}/v2/others/model/") as http:
        assert http.get("manifests/latest", headers={"accept": MANIFEST}).content == model.manifest
        assert http.get(f"blobs/{model.model_digest}").content == model.blobs[model.model_digest]


def test_interrupted_push_resumes(
    store: Store, model: Published, docker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upload, "PIECE", 30_000)
    store.copy("team/model", f"{docker}/broken/model")
    offsets: list[int] = []
    real = upload.Upload._piece
    cancelled = threading.Event()

    def watched(self: upload.Upload, location: str, offset: int, length: int, *rest: Any) -> str:
        if self._layer.digest == model.model_digest:
            offsets.append(offset)
            if len(offsets) == 3:
                cancelled.set()
        return real(self, location, offset, length, *rest)

    monkeypatch.setattr(upload.Upload, "_piece", watched)
    with pytest.raises(TransferCancelledError):
        pushed(store, f"{docker}/broken/model", cancelled=cancelled)
    cancelled.clear()
    pushed(store, f"{docker}/broken/model")
    assert offsets == [0, 30_000, 60_000, 60_000, 90_000]
    shutil.rmtree(store.root)
    pulled(store, f"{docker}/broken/model")
    assert holds(store, model)


def test_redirected_pieces_are_sent_without_the_token(
    store: Store, model: Published, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upload, "PIECE", 30_000)
    with serving(Receiving(secret="secret", redirects=True)) as registry:
        store.copy("team/model", f"{registry.address}/team/model")
        pushed(store, registry.name)
    assert registry.blobs == model.blobs
    assert registry.manifests == {"latest": model.manifest}
    assert registry.leaked == []
    assert registry.etags[model.model_digest] == registry.expected_etag(
        model.blobs[model.model_digest], 30_000
    )


def test_push_signs_with_a_key_that_is_created_once(store: Store, model: Published, home: Path) -> None:
    with serving(Receiving(secret="secret")) as registry:
        store.copy("team/model", f"{registry.address}/team/model")
        pushed(store, registry.name)
        key = home / ".ollama" / "id_ed25519"
        assert key.stat().st_mode & 0o777 == 0o600
        created = key.read_bytes()
        assert registry.signers == {(home / ".ollama" / "id_ed25519.pub").read_text().strip()}
        registry.blobs.clear()
        pushed(store, registry.name)
        assert key.read_bytes() == created
        assert len(registry.signers) == 1
    assert registry.blobs == model.blobs


def test_denied_push_reports_the_key_that_was_used(store: Store, model: Published, home: Path) -> None:
    with serving(Receiving(secret="secret", denies=True)) as registry:
        store.copy("team/model", f"{registry.address}/team/model")
        with pytest.raises(RegistryError, match=r"access denied.* to 'team' .*: ssh-ed25519 AAAA"):
            pushed(store, registry.name)
    assert registry.manifests == {}


def test_key_of_an_unsupported_kind_is_reported(store: Store, model: Published, home: Path) -> None:
    (home / ".ollama").mkdir(parents=True)
    (home / ".ollama" / "id_ed25519").write_text("no key")
    with serving(Receiving(secret="secret")) as registry:
        store.copy("team/model", f"{registry.address}/team/model")
        with pytest.raises(RegistryError, match="id_ed25519 is not an OpenSSH key"):
            pushed(store, registry.name)


@pytest.mark.parametrize("redirects", [False, True])
def test_dropped_connections_and_temporary_errors_are_retried(
    store: Store, model: Published, monkeypatch: pytest.MonkeyPatch, redirects: bool
) -> None:
    monkeypatch.setattr(upload, "PIECE", 30_000)
    with serving(Receiving(redirects=redirects, breaks=2, busy=2)) as registry:
        store.copy("team/model", f"{registry.address}/team/model")
        pushed(store, registry.name)
        assert registry.blobs == model.blobs
        registry.blobs.clear()
        registry.busy = 99
        with pytest.raises(RegistryError, match="max retries exceeded: 503"):
            pushed(store, registry.name)


def test_impossible_push_is_refused_with_the_reason(
    store: Store, model: Published, published: Published
) -> None:
    with pytest.raises(RegistryError, match="puna cp model YOU/model"):
        pushed(store, "model")
    steps: list[TransferProgress] = []
    with pytest.raises(ModelNotFoundError):
        push(store, "127.0.0.1:1/team/other", steps.append)
    assert [step.status for step in steps] == ["retrieving manifest", "couldn't retrieve manifest"]
    store.copy("team/model", "127.0.0.1:1/team/model")
    with pytest.raises(RegistryError, match="insecure protocol http"):
        push(store, "http://127.0.0.1:1/team/model", steps.append)
    with pytest.raises(RegistryError, match="Connection refused"):
        pushed(store, "127.0.0.1:1/team/model")
    with serving(Registry(published)) as pull_only:
        store.copy("team/model", f"{pull_only.address}/team/model")
        with pytest.raises(RegistryError, match="501"):
            pushed(store, pull_only.name)
    path = store.blob_path(model.model_digest)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(StoreError, match="has changed since"):
        pushed(store, "127.0.0.1:1/team/model")
    path.unlink()
    with pytest.raises(StoreError, match="is missing"):
        pushed(store, "127.0.0.1:1/team/model")


def test_locally_created_model_can_be_pushed(store: Store, model: Published, docker: str) -> None:
    store.create(f"{docker}/made/here", ModelSpec(from_model="team/model", system="Be brief."))
    pushed(store, f"{docker}/made/here")
    with httpx.Client(base_url=f"http://{docker}/v2/made/here/") as http:
        manifest = json.loads(http.get("manifests/latest", headers={"accept": MANIFEST}).content)
        texts = [http.get(f"blobs/{layer['digest']}").content for layer in manifest["layers"]]
    assert b"Be brief." in texts

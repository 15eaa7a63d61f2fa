"""Verifying a store: damage is reported with the models it affects, and repaired from the registry."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from puna.cli import main
from puna.store import Store
from puna.store.verify import verify
from tests.registry.pulling import pulled
from tests.registry.registries import Published, Registry, digest_of, serving
from tests.store.store_files import write_gguf


@pytest.fixture
def published(tmp_path: Path) -> Published:
    write_gguf(tmp_path / "published.gguf", "llama", parameters=50_000)
    return Published.of((tmp_path / "published.gguf").read_bytes())


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("PUNA_PRIVATE_REGISTRIES", "127.0.0.1")
    monkeypatch.setenv("PUNA_MODELS", str(tmp_path / "models"))
    return Store(tmp_path / "models")


@pytest.fixture
def registry(store: Store, published: Published) -> Iterator[Registry]:
    """Serve the registry that the store's model was pulled from."""
    with serving(Registry(published)) as registry:
        pulled(store, registry.name)
        store.copy(registry.name, "copied")
        yield registry


def test_intact_store_has_no_findings(store: Store, registry: Registry) -> None:
    steps: list[tuple[int, int]] = []
    found = verify(store, lambda done, total: steps.append((done, total)))
    assert (found.models, found.blobs, found.damages, found.manifests, found.unused) == (2, 3, [], [], [])
    assert steps[-1][0] == steps[-1][1] == found.size > 0


def test_each_kind_of_damage_is_reported(store: Store, registry: Registry, tmp_path: Path) -> None:
    model, template = registry.published.model_digest, registry.published.layer(1)
    path = store.blob_path(model)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    store.blob_path(template).unlink()
    (store.blobs.folder / "tmp-left").write_bytes(b"x")
    lost = store.blobs.folder / f"sha256-{'0' * 64}"
    lost.write_bytes(b"y")
    (store.manifests / "registry.ollama.ai/library/broken").mkdir(parents=True)
    (store.manifests / "registry.ollama.ai/library/broken/latest").write_text("no manifest")
    found = verify(store)
    problems = {damage.layer.digest: damage for damage in found.damages}
    assert problems[model].problem == "its content is damaged"
    assert {name.model for name in problems[model].models} == {"model", "copied"}
    assert problems[template].problem == "it is missing"
    assert problems[f"sha256:{'0' * 64}"].models == ()
    assert {each.name for each in found.unused} == {"tmp-left", lost.name}
    assert "not a model manifest" in found.manifests[0]
    path.write_bytes(data[:-5])
    assert f"not {len(data)}" in next(
        damage.problem for damage in verify(store).damages if damage.layer.digest == model
    )


def test_changed_linked_file_is_reported(store: Store, tmp_path: Path) -> None:
    write_gguf(tmp_path / "linked.gguf", "llama", parameters=2000)
    linked = (tmp_path / "linked.gguf").read_bytes()
    store.blobs.link(tmp_path / "linked.gguf", digest_of(linked))
    (tmp_path / "linked.gguf").write_bytes(linked[:-1] + b"\1")
    (damage,) = verify(store).damages
    assert damage.problem == "the file it was made from has changed"


def test_doctor_reports_and_repairs_damage(
    store: Store, registry: Registry, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", "--store"]) == 0
    assert "Nothing is damaged." in capsys.readouterr().out
    path = store.blob_path(registry.published.model_digest)
    whole = path.read_bytes()
    path.write_bytes(bytes(len(whole)))
    assert main(["doctor", "--store"]) == 1
    output = capsys.readouterr().out
    assert f"{registry.published.model_digest} of " in output
    assert "copied:latest" in output
    assert "--heal" in output
    # The registry has no TLS, which needs --insecure: without it, the damaged file stays.
    assert main(["doctor", "--store", "--heal"]) == 1
    assert re.search(r"does not provide it: .*SSL.*--insecure", capsys.readouterr().out)
    assert path.read_bytes() == bytes(len(whole))
    assert main(["doctor", "--store", "--heal", "--insecure"]) == 0
    assert path.read_bytes() == whole
    for option in ("--heal", "--insecure"):
        assert main(["doctor", option]) == 1
        assert f"{option} requires --store" in capsys.readouterr().err


def test_blob_no_model_uses_is_deleted(
    store: Store, registry: Registry, capsys: pytest.CaptureFixture[str]
) -> None:
    (store.blobs.folder / f"sha256-{'0' * 64}").write_bytes(b"y")
    assert main(["doctor", "--store", "--heal", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["healed"] == [f"sha256:{'0' * 64}"]
    assert not (store.blobs.folder / f"sha256-{'0' * 64}").exists()

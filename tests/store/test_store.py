"""Finding, copying and deleting models, including in damaged stores and stores other programs write to."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from puna.errors import ModelNotFoundError, RequestError, StoreError, UnsupportedModelError
from puna.store import ModelSpec, Store
from tests.store.store_files import add, blob_names, minimal_gguf, sha256

IMAGE = "application/vnd.ollama.image"


def test_lookups_ignore_case(store: Store) -> None:
    digest = add(store, minimal_gguf())
    store.create("NS/Mine:Q8", ModelSpec(files={"a.gguf": digest}))
    assert store.get("ns/mine:q8").name == "NS/Mine:Q8"
    assert store.exists(" ns/MINE:q8 ")
    assert store.resolve("ns/mine:other").display == "NS/Mine:other"
    store.copy("ns/mine:Q8", "b")
    store.create("B", ModelSpec(from_model="b", system="s"))
    assert [model.name for model in store.list()] == ["b:latest", "NS/Mine:Q8"]
    with pytest.raises(ModelNotFoundError, match="model 'nothing' not found"):
        store.get("nothing")


def test_models_are_listed_newest_first(store: Store) -> None:
    digest = add(store, minimal_gguf())
    for i, name in enumerate(("a", "b", "c")):
        store.create(name, ModelSpec(files={"a.gguf": digest}))
        os.utime(store.root / f"manifests/registry.ollama.ai/library/{name}/latest", (i % 2, i % 2))
    assert [model.name for model in store.list()] == ["b:latest", "a:latest", "c:latest"]


def test_empty_or_absent_store_lists_nothing(store: Store) -> None:
    assert store.list() == []
    assert not store.root.exists()


def test_manifests_of_other_programs_are_read(store: Store, tmp_path: Path) -> None:
    digest = add(store, minimal_gguf())
    config = add(
        store,
        b'{"model_format":"gguf","model_family":"test","odd":{"x":[1]},"model_families":null,'
        b'"renderer":null,"context_length":null}',
    )
    template = add(store, b"{{ .Prompt }}")
    text = json.dumps(
        {
            "future": True,
            "layers": [
                {"digest": template, "size": 13, "mediaType": f"{IMAGE}.model"},  # the last one counts
                {"digest": digest.replace(":", "-"), "size": 68, "mediaType": f"{IMAGE}.model"},
                {"digest": template, "size": 13, "mediaType": f"{IMAGE}.prompt"},
                {"digest": template, "size": 13, "mediaType": "application/vnd.example.unknown"},
            ],
            "config": {"mediaType": "x", "digest": config, "size": 1, "urls": []},
        },
        indent=4,
    )  # fmt: skip
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text(text)
    path = store.manifests / "localhost:5000/org/model/tag"
    path.parent.mkdir(parents=True)
    path.symlink_to(elsewhere)
    model = store.get("LOCALHOST:5000/org/model:tag")
    assert model.digest == sha256(text.encode()).removeprefix("sha256:")
    assert model.template == "{{ .Prompt }}"
    assert model.runnable_path() == store.blob_path(digest)
    assert [found.name for found in store.list()] == ["localhost:5000/org/model:tag"]
    assert elsewhere.read_text() == text


def test_damaged_models_are_not_listed_but_can_be_deleted(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    digest = add(store, minimal_gguf())
    for name in ("good", "no-config", "no-gguf", "garbage"):
        # Different system messages make the configs differ.
        store.create(name, ModelSpec(files={"a.gguf": digest}, system=name))
    library = store.manifests / "registry.ollama.ai/library"
    store.blob_path(store.get("no-config").manifest.config.digest).unlink()
    (library / "garbage/latest").write_text('{"layers": [}')
    (library / ".hidden").write_text("x")
    (library / "stray").write_text("x")
    (library / "deep/er").mkdir(parents=True)
    (library / "deep/er/file").write_text("x")
    (library / "good/bad name").write_text("x")
    assert {model.name for model in store.list()} == {"good:latest", "no-gguf:latest"}
    assert "garbage" in caplog.text
    with pytest.raises(StoreError, match="the manifest of garbage:latest: not a model manifest"):
        store.get("garbage")
    with pytest.raises(StoreError, match="no-config:latest: its config is missing; if it came"):
        store.get("no-config")
    for name in ("no-config", "garbage"):
        store.delete(name)
        with pytest.raises(ModelNotFoundError):
            store.get(name)
    assert store.has_blob(digest)


def test_model_without_its_gguf_is_listed_but_does_not_run(store: Store) -> None:
    digest = add(store, minimal_gguf())
    store.create("m", ModelSpec(files={"a.gguf": digest}))
    store.blob_path(digest).unlink()
    assert [model.name for model in store.list()] == ["m:latest"]
    assert store.get("m").facts is None
    with pytest.raises(StoreError, match="m:latest: its model file is missing; if it came"):
        store.get("m").runnable_path()
    with pytest.raises(RequestError, match="incomplete"):
        store.create("n", ModelSpec(from_model="m"))
    store.delete("m")
    assert store.list() == []


def test_cloud_stub_is_listed_but_does_not_run(store: Store) -> None:
    config = add(store, b'{"remote_host":"https://h","remote_model":"x","capabilities":["completion"]}')
    path = store.manifests / "registry.ollama.ai/library/stub/cloud"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"config": {"mediaType": "c", "digest": config, "size": 3}, "layers": []}))
    model = store.get("stub:cloud")
    assert model.config.capabilities == ("completion",)
    with pytest.raises(UnsupportedModelError, match="cloud"):
        model.runnable_path()


def test_model_of_mlx_tensors_is_listed_but_does_not_run(store: Store) -> None:
    store.create("mlx", ModelSpec(files={"a.gguf": add(store, minimal_gguf())}))
    manifest = store.get("mlx").manifest.encode().replace(b"image.model", b"image.tensor")
    store.put_manifest("mlx", manifest)
    assert [model.name for model in store.list()] == ["mlx:latest"]
    with pytest.raises(UnsupportedModelError, match="MLX tensors; only GGUF"):
        store.get("mlx").runnable_path()


def test_deleting_one_of_two_names_keeps_the_shared_blobs(store: Store) -> None:
    digest = add(store, minimal_gguf())
    store.create("a", ModelSpec(files={"a.gguf": digest}, system="Say hi!"))
    store.copy("a", "ns/b:t")
    original = store.manifests / "registry.ollama.ai/library/a/latest"
    copied = store.manifests / "registry.ollama.ai/ns/b/t"
    assert copied.read_bytes() == original.read_bytes()
    store.delete("a")
    assert not (store.manifests / "registry.ollama.ai/library").exists()
    assert store.get("ns/b:t").system == "Say hi!"
    assert store.get("ns/b:t").runnable_path().is_file()
    store.delete("ns/b:t")
    assert blob_names(store) == set()
    assert store.manifests.is_dir()
    with pytest.raises(ModelNotFoundError, match="model 'a' not found"):
        store.delete("a")
    with pytest.raises(ModelNotFoundError, match="model 'a' not found"):
        store.copy("a", "b")


def test_copying_a_model_onto_itself_changes_nothing(store: Store) -> None:
    digest = add(store, minimal_gguf())
    before = store.create("a", ModelSpec(files={"a.gguf": digest}))
    store.copy("a", "A:latest")
    assert store.get("a").modified_ns == before.modified_ns

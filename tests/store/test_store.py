"""The store: what is written, what is found again, what survives damage and strangers."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from puna.errors import (
    InvalidNameError,
    ModelNotFoundError,
    RequestError,
    StoreError,
    UnsupportedModelError,
)
from puna.store import ModelSpec, Store
from tests.store.store_files import minimal_gguf, sha256

IMAGE = "application/vnd.ollama.image"
TEMPLATE = "{{ .System }} {{ .Prompt }}"


def add(store: Store, data: bytes) -> str:
    digest = sha256(data)
    store.put_blob(digest, [data])
    return digest


def blob_names(store: Store) -> set[str]:
    return {path.name for path in (store.root / "blobs").iterdir()}


def test_a_minimal_model_is_written_byte_for_byte(store: Store) -> None:
    digest = add(store, minimal_gguf())
    assert digest == "sha256:89a2116c3a82d6a97f59f748d86ed4417214353fd178ee54df418fde32495fad"
    model = store.create("test", ModelSpec(files={"test.gguf": digest}))
    config = "sha256:6bcdb8859d417753645538d7bbfbd7ca91a3f0c191aef5379c53c05e86b669dd"
    blob = store.root / "blobs" / digest.replace(":", "-")
    written = store.root / "manifests/registry.ollama.ai/library/test/latest"
    assert written.read_text() == (
        '{"schemaVersion":2,"mediaType":"application/vnd.docker.distribution.manifest.v2+json",'
        '"config":{"mediaType":"application/vnd.docker.container.image.v1+json",'
        f'"digest":"{config}","size":{store.blob_path(config).stat().st_size}}},'
        '"layers":[{"mediaType":"application/vnd.ollama.image.model",'
        f'"digest":"{digest}","size":68,"from":"{blob}"}}]}}\n'
    )
    assert model.digest == sha256(written.read_bytes()).removeprefix("sha256:")
    assert model.size == 68 + store.blob_path(config).stat().st_size
    assert model.modified_ns == written.stat().st_mtime_ns
    assert abs(model.modified_at.timestamp() - written.stat().st_mtime) < 2e-6
    assert oct(written.stat().st_mode & 0o777) == "0o644"


def test_texts_and_parameters_become_the_known_layers(store: Store) -> None:
    spec = ModelSpec(
        files={"test.gguf": add(store, minimal_gguf())},
        template=TEMPLATE,
        system="Say hi!",
        license=["MIT", "and more"],
        parameters={"top_k": 10, "temperature": 1.0, "stop": ["USER:", "ASSISTANT:"]},
        messages=[
            {"role": "assistant", "content": "What is my purpose?"},
            {"role": "user", "content": "You run tests."},
            {"role": "assistant", "content": "Oh, my god."},
        ],
    )
    model = store.create("full", spec)
    digests = {layer.media_type.rpartition(".")[2]: layer.digest for layer in model.manifest.layers}
    assert digests["template"] == "sha256:fe7ac77b725cda2ccad03f88a880ecdfd7a33192d6cae08fce2c0ee1455991ed"
    assert digests["system"] == "sha256:f29e82a8284dbdf5910b1555580ff60b04238b8da9d5e51159ada67a4d0d5851"
    assert digests["params"] == "sha256:1d0ad71299d48c2fb7ae2b98e683643e771f8a5b72be34942af90d97a91c1e37"
    assert digests["messages"] == "sha256:298baeaf6928a60cf666d88d64a1ba606feb43a2865687c39e40652e407bffc4"
    again = store.get("full")
    assert again.template == TEMPLATE
    assert again.system == "Say hi!"
    assert again.license == ["MIT", "and more"]
    assert again.params == {"stop": ["USER:", "ASSISTANT:"], "temperature": 1, "top_k": 10}
    assert again.messages[1] == {"role": "user", "content": "You run tests."}


def test_a_child_inherits_replaces_merges_and_appends(store: Store) -> None:
    digest = add(store, minimal_gguf())
    store.create(
        "parent",
        ModelSpec(
            files={"a.gguf": digest},
            template=TEMPLATE,
            system="Say hi!",
            license=["MIT"],
            parameters={"top_k": 1, "stop": ["a"]},
            renderer="r1",
            parser="p1",
        ),
    )
    spec = ModelSpec(
        from_model="PARENT",
        system="Say bye!",
        template="",
        license=["more"],
        parameters={"stop": ["b"]},
        parser="p2",
    )
    child = store.create("ns/child:x", spec)
    assert child.template == TEMPLATE  # an empty text keeps what is inherited
    assert child.system == "Say bye!"
    assert child.license == ["MIT", "more"]
    assert child.params == {"top_k": 1, "stop": ["b"]}
    assert (child.config.renderer, child.config.parser) == ("r1", "p2")
    assert [layer.origin for layer in child.manifest.of_type("application/vnd.ollama.image.model")] == [
        "parent:latest"
    ]
    assert child.details["parent_model"] == "parent:latest"
    assert store.get("parent").system == "Say hi!"


def test_a_model_can_be_edited_in_place_and_sheds_what_it_replaced(store: Store) -> None:
    digest = add(store, minimal_gguf())
    store.create("m", ModelSpec(files={"a.gguf": digest}, system="Say hi!"))
    old = sha256(b"Say hi!").replace(":", "-")
    assert old in blob_names(store)
    store.create("m", ModelSpec(from_model="m", system="Say bye!"))
    assert store.get("m").system == "Say bye!"
    assert old not in blob_names(store)
    assert len(blob_names(store)) == 3  # the model, the new system text, the config


def test_the_config_tells_what_the_file_says(store: Store, make_gguf: Callable[..., Path]) -> None:
    path = make_gguf(
        "qwen2",
        parameters=3000,
        general__file_type=15,
        ARCH__context_length=4096,
        ARCH__embedding_length=64,
        tokenizer__chat_template="{{ messages }}",
    )
    digest = store.import_file(path)
    model = store.create("q", ModelSpec(files={"q.gguf": digest}))
    config = json.loads(store.blob_path(model.manifest.config.digest).read_text())
    assert config["model_family"] == "qwen2"
    assert config["model_families"] == ["qwen2"]
    assert config["model_type"] == "3K"
    assert config["file_type"] == "Q4_K_M"
    assert config["rootfs"] == {"type": "layers", "diff_ids": [digest]}
    assert model.facts is not None
    assert (model.facts.context_length, model.facts.embedding_length) == (4096, 64)
    assert model.facts.chat_template == "{{ messages }}"
    assert model.details == {
        "parent_model": str(store.blob_path(digest)),
        "format": "gguf",
        "family": "qwen2",
        "families": ["qwen2"],
        "parameter_size": "3K",
        "quantization_level": "Q4_K_M",
    }


def test_projectors_and_adapters_are_told_from_models(store: Store, make_gguf: Callable[..., Path]) -> None:
    main = store.import_file(make_gguf("llama", ARCH__block_count=1))
    projector = store.import_file(make_gguf("clip", ARCH__vision__block_count=1))
    adapter = store.import_file(make_gguf("llama", general__type="adapter"))
    files = {"main.gguf": main, "mm.gguf": projector}
    model = store.create("v", ModelSpec(files=files))
    assert model.model_path == store.blob_path(main)
    assert model.projector_paths == [store.blob_path(projector)]
    assert model.config.model_families == ("llama", "clip")
    with_adapter = store.create("a", ModelSpec(files={"main.gguf": main}, adapters={"a.gguf": adapter}))
    with pytest.raises(UnsupportedModelError, match="LoRA adapter"):
        with_adapter.runnable_path()
    with pytest.raises(RequestError, match=r"m\.gguf is a model, not an adapter"):
        store.create("a", ModelSpec(files={"main.gguf": main}, adapters={"m.gguf": main}))
    with pytest.raises(RequestError, match="only one adapter"):
        store.create("a", ModelSpec(from_model="v", adapters={"a.gguf": adapter, "b.gguf": adapter}))


def test_each_step_of_creation_is_reported(store: Store) -> None:
    seen: list[str] = []
    digest = add(store, minimal_gguf())
    store.create("m", ModelSpec(files={"a.gguf": digest}, system="Say hi!"), seen.append)
    assert seen == [
        "parsing GGUF",
        f"using existing layer {digest}",
        "creating new layer sha256:f29e82a8284dbdf5910b1555580ff60b04238b8da9d5e51159ada67a4d0d5851",
        f"creating new layer {store.get('m').manifest.config.digest}",
        "writing manifest",
        "success",
    ]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (ModelSpec(), "neither 'from' or 'files' was specified"),
        (ModelSpec(files={"../a.gguf": "sha256:" + "0" * 64}), "file path must be relative"),
        (ModelSpec(files={"/a.gguf": "sha256:" + "0" * 64}), "file path must be relative"),
        (ModelSpec(files={"a//b": "sha256:" + "0" * 64}), "file path must be relative"),
        (ModelSpec(files={"a.gguf": "sha256:" + "0" * 64}), "upload it first"),
        (ModelSpec(files={"a.gguf": sha256(b"text")}), "supplied file was not in GGUF format"),
        (ModelSpec(files={"a.txt": sha256(b"text")}), "unknown type"),
    ],
)
def test_an_impossible_model_is_refused_with_the_reason(store: Store, spec: ModelSpec, message: str) -> None:
    add(store, b"text")
    with pytest.raises(RequestError, match=message):
        store.create("m", spec)
    assert store.list() == []


def test_a_damaged_file_and_a_part_of_a_split_model_are_refused(
    store: Store, make_gguf: Callable[..., Path]
) -> None:
    damaged = add(store, b"GGUF" + b"\xff" * 50)
    part = store.import_file(make_gguf(split__count=2, split__no=0))
    with pytest.raises(RequestError, match=r"a\.gguf cannot be used: .*version"):
        store.create("m", ModelSpec(files={"a.gguf": damaged}))
    with pytest.raises(RequestError, match=r"a\.gguf cannot be used: .*split model"):
        store.create("m", ModelSpec(files={"a.gguf": part}))
    assert store.list() == []


def test_a_malformed_digest_is_refused(store: Store) -> None:
    for digest in ("", "sha256:", "sha256:" + "g" * 64, "md5:" + "0" * 64, "sha256:../../" + "0" * 58):
        with pytest.raises(InvalidNameError, match="invalid digest format"):
            store.has_blob(digest)
        with pytest.raises(InvalidNameError, match="invalid digest format"):
            store.create("m", ModelSpec(files={"a.gguf": digest}))


# --- blobs ---


def test_a_blob_is_stored_only_if_it_is_what_it_claims(store: Store) -> None:
    right, wrong = sha256(b"hello"), sha256(b"other")
    with pytest.raises(RequestError, match=f'digest mismatch, expected "{wrong}", got "{right}"'):
        store.put_blob(wrong, [b"hel", b"lo"])
    assert blob_names(store) == set()
    assert store.put_blob(right.upper().replace("SHA256:", "sha256-"), [b"hel", b"lo"])
    assert store.blob_path(right).read_bytes() == b"hello"
    assert not store.put_blob(right, iter(()))  # there already: nothing is read
    assert store.has_blob(right)


def test_a_broken_off_upload_leaves_nothing(store: Store) -> None:
    def body() -> object:
        yield b"hel"
        raise ConnectionError("client gone")

    with pytest.raises(ConnectionError):
        store.put_blob(sha256(b"hello"), body())  # type: ignore[arg-type]
    assert blob_names(store) == set()


def test_storing_a_blob_again_makes_it_young(store: Store) -> None:
    digest = add(store, b"x")
    os.utime(store.blob_path(digest), (1, 1))
    store.put_blob(digest, [])
    assert store.blob_path(digest).stat().st_mtime > 1e9


@pytest.mark.parametrize(
    ("number", "advice"),
    [("ENOSPC", "disk is full"), ("EACCES", "permission denied"), ("EROFS", "read-only")],
)
def test_a_failed_write_says_where_and_what_helps(
    store: Store, monkeypatch: pytest.MonkeyPatch, number: str, advice: str
) -> None:
    import errno

    code = getattr(errno, number)

    def refuse(descriptor: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("puna.store.blobs.os.fsync", refuse)
    with pytest.raises(StoreError, match=f"blobs/tmp-.*{advice}"):
        store.put_blob(sha256(b"hello"), [b"hello"])
    assert blob_names(store) == set()


def test_a_full_disk_during_the_manifest_leaves_the_old_model(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    import errno

    digest = add(store, minimal_gguf())
    store.create("m", ModelSpec(files={"a.gguf": digest}, system="old"))

    def full(*arguments: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("puna.store.store.write_atomically", full)
    with pytest.raises(StoreError, match=r"manifests/.*m/latest: the disk is full"):
        store.create("m", ModelSpec(from_model="m", system="new"))
    assert store.get("m").system == "old"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_directory_that_may_not_be_written_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    store = Store(tmp_path / "models")
    with pytest.raises(StoreError, match="permission denied"):
        add(store, b"x")
    assert store.list() == []


def test_a_store_below_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = Store(tmp_path / "file" / "models")
    assert [model for model in store.list() if not model.bundled] == []
    with pytest.raises(StoreError, match="Not a directory"):
        add(store, b"x")
    with pytest.raises(StoreError, match="Not a directory"):
        store.create("m", ModelSpec(from_model=None, files={"a.gguf": sha256(b"x")}))


# --- finding ---


def test_letter_case_does_not_matter_for_finding(store: Store) -> None:
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


def test_an_empty_or_absent_store_lists_nothing(store: Store) -> None:
    assert store.list() == []
    assert not store.root.exists()


def test_foreign_manifests_are_read_as_they_are(store: Store, tmp_path: Path) -> None:
    digest = add(store, minimal_gguf())
    config = add(
        store, b'{"model_format":"gguf","model_family":"test","odd":{"x":[1]},"model_families":null}'
    )
    template = add(store, b"{{ .Prompt }}")
    text = json.dumps(
        {
            "future": True,
            "layers": [
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


def test_blobs_of_ancient_stores_are_found(store: Store) -> None:
    digest = add(store, b"hello")
    usual = store.blob_path(digest)
    usual.rename(usual.with_name(digest))
    assert store.has_blob(digest)
    assert store.blob_path(digest).read_bytes() == b"hello"


def test_damaged_entries_are_left_out_but_can_be_removed(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    digest = add(store, minimal_gguf())
    for name in ("good", "no-config", "no-gguf", "garbage"):
        # The system texts make the configs differ.
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
    with pytest.raises(StoreError, match="garbage/latest: not a model manifest"):
        store.get("garbage")
    with pytest.raises(StoreError, match="config of no-config"):
        store.get("no-config")
    for name in ("no-config", "garbage"):
        store.delete(name)
        with pytest.raises(ModelNotFoundError):
            store.get(name)
    assert store.has_blob(digest)


def test_a_model_without_its_gguf_is_listed_but_does_not_run(store: Store) -> None:
    digest = add(store, minimal_gguf())
    store.create("m", ModelSpec(files={"a.gguf": digest}))
    store.blob_path(digest).unlink()
    assert [model.name for model in store.list()] == ["m:latest"]
    assert store.get("m").facts is None
    with pytest.raises(StoreError, match=r"m:latest: its model file .* is missing"):
        store.get("m").runnable_path()
    with pytest.raises(RequestError, match="incomplete"):
        store.create("n", ModelSpec(from_model="m"))
    store.delete("m")
    assert store.list() == []


def test_a_cloud_stub_is_listed_and_refuses_to_run(store: Store) -> None:
    config = add(store, b'{"remote_host":"https://h","remote_model":"x","capabilities":["completion"]}')
    path = store.manifests / "registry.ollama.ai/library/stub/cloud"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"config": {"mediaType": "c", "digest": config, "size": 3}, "layers": []}))
    model = store.get("stub:cloud")
    assert model.config.capabilities == ("completion",)
    with pytest.raises(UnsupportedModelError, match="cloud"):
        model.runnable_path()


# --- copying, deleting, pruning ---


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


def test_an_unreadable_manifest_keeps_all_blobs(store: Store) -> None:
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


def age(path: Path) -> None:
    old = time.time() - 2 * 3600
    os.utime(path, (old, old))


def test_pruning_removes_what_is_old_and_unnamed(store: Store) -> None:
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
def test_pruning_is_off_where_anything_is_not_understood(store: Store, stray: str) -> None:
    store.create("a", ModelSpec(files={"a.gguf": add(store, minimal_gguf())}))
    (store.manifests / "registry.ollama.ai/library/a" / stray).write_text("x")
    old = add(store, b"old")
    age(store.blob_path(old))
    assert store.prune() == 0
    assert store.has_blob(old)

"""Creating models: the files written, byte for byte, and the requests refused."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from puna.errors import InvalidNameError, ModelError, RequestError, StoreError
from puna.options import AdapterFile
from puna.store import ModelSpec, Store
from puna.store.config import parameter_label
from puna.store.show import projector_info
from tests.store.store_files import add, blob_names, minimal_gguf, sha256

TEMPLATE = "{{ .System }} {{ .Prompt }}"


def test_minimal_model_is_written_byte_for_byte(store: Store) -> None:
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


def test_texts_and_parameters_become_layers_with_known_digests(store: Store) -> None:
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


def test_derived_model_inherits_replaces_merges_and_appends(store: Store) -> None:
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
            requires="0.14.0",
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
    assert child.template == TEMPLATE  # an empty string keeps the inherited value
    assert child.system == "Say bye!"
    assert child.license == ["MIT", "more"]
    assert child.params == {"top_k": 1, "stop": ["b"]}
    config = json.loads(store.blob_path(child.manifest.config.digest).read_text())
    assert (config["renderer"], config["parser"], config["requires"]) == ("r1", "p2", "0.14.0")
    assert [layer.origin for layer in child.manifest.of_type("application/vnd.ollama.image.model")] == [
        "parent:latest"
    ]
    assert child.details["parent_model"] == "parent:latest"
    assert store.get("parent").system == "Say hi!"


def test_derived_model_ignores_files_and_replaces_an_old_stores_template(store: Store) -> None:
    digest = add(store, minimal_gguf())
    parent = store.create("parent", ModelSpec(files={"a.gguf": digest}, template=TEMPLATE))
    old = parent.manifest.encode().replace(b".template", b".prompt")
    store.put_manifest("parent", old)
    assert store.get("parent").template == TEMPLATE
    other = {"b.gguf": add(store, b"no model")}
    child = store.create("child", ModelSpec(from_model="parent", files=other, template="[{{ .Prompt }}]"))
    kinds = [layer.media_type.rpartition(".")[2] for layer in child.manifest.layers]
    assert kinds == ["model", "template"]
    assert child.template == "[{{ .Prompt }}]"


@pytest.mark.parametrize(
    ("count", "label"),
    [
        (7_000_000_000, "7B"), (3_212_749_888, "3.2B"), (1_000_000_000, "1B"), (22_000_000, "22M"),
        (362_821_120, "362.82M"), (1_000_000, "1M"), (99_999, "99K"), (1000, "1K"), (999, "999"), (0, "0"),
    ],
)  # fmt: skip
def test_parameter_counts_are_formatted_as_ollama_does(count: int, label: str) -> None:
    assert parameter_label(count) == label


def test_model_edited_in_place_drops_its_old_layers(store: Store) -> None:
    digest = add(store, minimal_gguf())
    store.create("m", ModelSpec(files={"a.gguf": digest}, system="Say hi!"))
    old = sha256(b"Say hi!").replace(":", "-")
    assert old in blob_names(store)
    store.create("m", ModelSpec(from_model="m", system="Say bye!"))
    assert store.get("m").system == "Say bye!"
    assert old not in blob_names(store)
    assert len(blob_names(store)) == 3  # the model, the new system text, the config


def test_config_describes_the_model_file(store: Store, make_gguf: Callable[..., Path]) -> None:
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


def test_projectors_and_adapters_are_recognised(store: Store, make_gguf: Callable[..., Path]) -> None:
    main = store.import_file(make_gguf("llama", ARCH__block_count=1))
    projector = store.import_file(make_gguf("clip", ARCH__vision__block_count=1))
    adapter = store.import_file(make_gguf("llama", general__type="adapter"))
    files = {"main.gguf": main, "mm.gguf": projector}
    model = store.create("v", ModelSpec(files=files))
    assert model.model_path == store.blob_path(main)
    assert model.projector_paths == [store.blob_path(projector)]
    assert model.config.model_families == ("llama", "clip")
    assert projector_info(model)["clip.vision.block_count"] == 1
    with_adapter = store.create("a", ModelSpec(files={"main.gguf": main}, adapters={"a.gguf": adapter}))
    assert with_adapter.runnable_path() == store.blob_path(main)
    assert with_adapter.config.model_families == ("llama", "llama"), "one per file"
    assert with_adapter.adapters == (AdapterFile(str(store.blob_path(adapter)), "a"),)
    with pytest.raises(RequestError, match=r"m\.gguf is a model, not an adapter"):
        store.create("a", ModelSpec(files={"main.gguf": main}, adapters={"m.gguf": main}))
    adapters, scales = {"s/b.gguf": adapter, "c.gguf": adapter}, {"c.gguf": -0.5}
    more = store.create("b", ModelSpec(from_model="a", adapters=adapters, adapter_scales=scales))
    assert [(each.name, each.scale) for each in more.adapters] == [("a", 1.0), ("b", 1.0), ("c", -0.5)]
    with pytest.raises(RequestError, match="two adapters are called 'c'"):
        store.create("b", ModelSpec(from_model="b", adapters={"c.gguf": adapter}))
    with pytest.raises(RequestError, match=r"adapter_scales: there is no adapter 'd\.gguf'"):
        store.create("b", ModelSpec(from_model="v", adapter_scales={"d.gguf": 2.0}))
    for scale in (1e9, float("nan")):
        with pytest.raises(RequestError, match=f"{scale} of 'c.gguf' is not between -10000 and 10000"):
            store.create("d", ModelSpec(from_model="v", adapters=adapters, adapter_scales={"c.gguf": scale}))
    with pytest.raises(RequestError, match=r"s has no adapter_model\.safetensors; PEFT saves both"):
        store.create("b", ModelSpec(from_model="v", adapters={"s/adapter_config.json": adapter}))


def test_adapters_keep_the_order_in_which_they_are_given(
    store: Store, make_gguf: Callable[..., Path]
) -> None:
    main = store.import_file(make_gguf("llama", ARCH__block_count=1))
    paths = [make_gguf("llama", general__type="adapter", n=n) for n in range(3)]
    files = [store.import_file(path) for path in paths[:2]]
    config = add(store, b"{}")
    adapters = {"x/adapter_config.json": config, "a.gguf": files[0], "x/adapter_model.safetensors": config}
    spec = ModelSpec(files={"main.gguf": main}, adapters={**adapters, "b.gguf": files[1]})

    def convert(config: Path, weights: Path, model: Path, target: Path) -> None:
        target.write_bytes(paths[2].read_bytes())

    model = store.create("m", spec, convert=convert)
    assert [each.name for each in model.adapters] == ["x", "a", "b"]
    assert Path(model.adapters[0].path).read_bytes() == paths[2].read_bytes()


def test_adapters_that_no_request_could_use_are_refused(store: Store, make_gguf: Callable[..., Path]) -> None:
    file = make_gguf("llama", ARCH__block_count=1)
    main = store.import_file(file)
    other = store.import_file(make_gguf("qwen2", general__type="adapter"))
    with pytest.raises(RequestError, match=r"'a\.gguf' is an adapter for 'qwen2', but the model is 'llama'"):
        store.create("m", ModelSpec(files={"main.gguf": main}, adapters={"a.gguf": other}))
    fitting = store.import_file(make_gguf("llama", general__type="adapter"))
    adapters = {f"{number}.gguf": fitting for number in range(65)}
    assert store.import_file(file) == main  # uploads for a refused model were deleted
    with pytest.raises(RequestError, match="a model can have at most 64 adapters"):
        store.create("m", ModelSpec(files={"main.gguf": main}, adapters=adapters))
    adapters.popitem()
    store.import_file(file)
    assert len(store.create("m", ModelSpec(files={"main.gguf": main}, adapters=adapters)).adapters) == 64


def test_every_step_of_creation_is_reported(store: Store) -> None:
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
def test_invalid_spec_is_refused_with_the_reason(store: Store, spec: ModelSpec, message: str) -> None:
    add(store, b"text")
    with pytest.raises(RequestError, match=message):
        store.create("m", spec)
    assert store.list() == []


def test_damaged_file_and_single_part_of_a_split_model_are_refused(
    store: Store, make_gguf: Callable[..., Path]
) -> None:
    damaged = add(store, b"GGUF" + b"\xff" * 50)
    part = store.import_file(make_gguf(split__count=2, split__no=0))
    with pytest.raises(RequestError, match=r"a\.gguf cannot be used: .*version"):
        store.create("m", ModelSpec(files={"a.gguf": damaged}))
    with pytest.raises(RequestError, match=r"a\.gguf cannot be used: .*split model"):
        store.create("m", ModelSpec(files={"a.gguf": part}))
    assert store.list() == []


def test_errors_name_a_blob_by_its_digest_and_not_by_its_path(store: Store) -> None:
    def refuse(path: Path) -> None:
        raise ModelError(f"{path}: no tensors")

    def vanish(path: Path) -> None:
        path.unlink()
        path.open()

    digest = add(store, minimal_gguf())
    for check, found in ((refuse, f"{digest}: no tensors"), (vanish, f"{digest} cannot be read")):
        with pytest.raises((RequestError, StoreError), match=rf"a\.gguf cannot be used: {found}") as caught:
            store.create("m", ModelSpec(files={"a.gguf": digest}), check=check)
        assert str(store.root) not in str(caught.value)
        add(store, minimal_gguf())
    store.create("m", ModelSpec(files={"a.gguf": digest}))
    store.blob_path(digest).write_bytes(b"GGUF" + b"\xff" * 50)
    with pytest.raises(RequestError, match=rf"m:latest cannot be used: {digest}: .*version") as caught:
        store.create("n", ModelSpec(from_model="m"))
    assert str(store.root) not in str(caught.value)


def test_malformed_digest_is_refused(store: Store) -> None:
    for digest in ("", "sha256:", "sha256:" + "g" * 64, "md5:" + "0" * 64, "sha256:../../" + "0" * 58):
        with pytest.raises(InvalidNameError, match="invalid digest format"):
            store.has_blob(digest)
        with pytest.raises(InvalidNameError, match="invalid digest format"):
            store.create("m", ModelSpec(files={"a.gguf": digest}))


def test_disk_full_while_writing_the_manifest_keeps_the_old_model(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = add(store, minimal_gguf())
    store.create("m", ModelSpec(files={"a.gguf": digest}, system="old"))

    def full(*arguments: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("puna.store.store.write_atomically", full)
    with pytest.raises(StoreError, match=r"manifests/.*m/latest: the disk is full"):
        store.create("m", ModelSpec(from_model="m", system="new"))
    assert store.get("m").system == "old"

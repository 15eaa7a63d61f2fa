"""Models whose files are made during creation: converted, joined, quantised."""

from __future__ import annotations

import json
import os
from pathlib import Path

import gguf
import numpy as np
import pytest

from puna.errors import RequestError, StoreError
from puna.gguf import FileType, GGMLType, GGUFWriter, open_gguf
from puna.store import ModelSpec, Store
from tests.convert.checkpoints import save_tokenizer, saved
from tests.convert.jina import TASKS, save_jina3
from tests.model.models.parity import original
from tests.store.store_files import add, blob_names
from tests.tiny.encoders import TinyJinaBertV3
from tests.tiny.llama import TinyLlama, tiny_llama_gguf
from tests.tiny.vision.idefics3 import TinyIdefics3
from tests.tiny.words import save_words


def test_uploaded_model_is_quantised(store: Store, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    path = tiny_llama_gguf(tmp_path / "tiny.gguf")
    digest = store.import_file(path)
    spec = ModelSpec(files={"tiny.gguf": digest}, quantize=FileType.Q8_0, system="Hi")
    model = store.create("q", spec, on_progress=lambda *step: seen.append(step))
    assert model.details["quantization_level"] == "Q8_0"
    assert model.system == "Hi"
    with open_gguf(model.model_path) as file:
        assert file.tensor("blk.0.attn_q.weight").type is GGMLType.Q8_0
    assert {step[0] for step in seen} == {"quantizing F32 model to Q8_0", "checking model"}
    assert seen[-1][1] == seen[-1][2] > 0
    assert digest.replace(":", "-") not in blob_names(store)  # the source is no longer needed
    assert not [name for name in blob_names(store) if name.startswith("tmp-")]


def test_derived_model_is_quantised_and_keeps_everything_else(store: Store, tmp_path: Path) -> None:
    digest = store.import_file(tiny_llama_gguf(tmp_path / "tiny.gguf"))
    store.create("big", ModelSpec(files={"tiny.gguf": digest}, system="Hi", parameters={"top_k": 3}))
    small = store.create("small", ModelSpec(from_model="big", quantize=FileType.Q8_0))
    assert (small.system, small.params) == ("Hi", {"top_k": 3})
    assert small.details["quantization_level"] == "Q8_0"
    assert store.get("big").details["quantization_level"] == "F32"
    same = store.create("same", ModelSpec(from_model="small", quantize=FileType.Q8_0))
    assert same.model_path == small.model_path
    with pytest.raises(RequestError, match=r"only supported for F16, BF16 and F32 models"):
        store.create("smaller", ModelSpec(from_model="small", quantize=FileType.Q4_0))


def test_parts_of_a_split_model_are_joined(store: Store, tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "s.gguf", "llama", split_max_tensors=2)
    for name in "abc":
        writer.add_tensor(name, np.full((2, 32), ord(name), np.float32))
    for write in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file):
        write()
    writer.close()
    parts = sorted(tmp_path.glob("*-of-*.gguf"))
    files = {path.name: store.import_file(path) for path in parts}
    projector = GGUFWriter(tmp_path / "mm.gguf", "clip")
    projector.add("general.type", "projector")
    projector.write()
    files["mm.gguf"] = store.import_file(tmp_path / "mm.gguf")
    model = store.create("whole", ModelSpec(files=files))
    with open_gguf(model.model_path) as file:
        assert {name: float(file.array(name)[0, 0]) for name in file.tensors} == {"a": 97, "b": 98, "c": 99}
    assert len(model.manifest.of_type("application/vnd.ollama.image.projector")) == 1
    del files[parts[1].name]
    with pytest.raises(RequestError, match=r"1 of 2 parts of the split model are missing"):
        store.create("half", ModelSpec(files={parts[0].name: store.import_file(parts[0])}))


def test_unconvertible_model_is_refused_and_its_uploads_deleted(store: Store) -> None:
    files = {
        "config.json": add(store, b'{"architectures": ["NoSuchModel"]}'),
        "model.safetensors": add(store, b"\x02\0\0\0\0\0\0\0{}"),
    }
    with pytest.raises(RequestError, match="unsupported architecture 'NoSuchModel'"):
        store.create("m", ModelSpec(files=files))
    assert blob_names(store) == set()


def test_vision_model_is_converted_to_a_model_and_a_projector(store: Store, tmp_path: Path) -> None:
    tiny = TinyIdefics3(TinyLlama())
    folder = saved(tmp_path / "checkpoint", original(tiny), tokenizer=False)
    save_tokenizer(folder, markers=[*tiny.markers, "<|part|>"])
    files = {path.name: store.import_file(path) for path in folder.iterdir()}
    with pytest.raises(RequestError, match=r"preprocessor_config\.json lacks 'image_mean'"):
        store.create("blind", ModelSpec(files=files))
    (folder / "preprocessor_config.json").write_text(json.dumps(tiny.pictures))
    files = {
        path.name: store.import_file(path) for path in folder.iterdir()
    }  # the uploads of the failed attempt were deleted
    model = store.create("seeing", ModelSpec(files=files))
    assert len(model.manifest.of_type("application/vnd.ollama.image.projector")) == 1
    with open_gguf(model.model_path) as file:
        assert file.architecture == "llama"


def test_adapters_published_with_a_model_are_kept_and_off_by_default(store: Store, tmp_path: Path) -> None:
    folder = save_jina3(tmp_path / "checkpoint", original(TinyJinaBertV3()))
    save_words(folder)
    files = {path.name: store.import_file(path) for path in folder.iterdir()}
    model = store.create("jina", ModelSpec(files=files, quantize=FileType.Q8_0))
    assert [(each.name, each.scale) for each in model.adapters] == [(task, 0.0) for task in TASKS]
    for each in model.adapters:
        with open_gguf(Path(each.path)) as file:
            assert file.metadata["adapter.lora.task_name"] == each.name
    assert not [name for name in blob_names(store) if name.startswith("tmp-")]


@pytest.fixture
def uploads(store: Store, tmp_path: Path) -> dict[str, str]:
    """Return the digests of a published model's uploaded files, by name."""
    folder = saved(tmp_path / "published", original(TinyLlama()))
    return {path.name: store.import_file(path) for path in folder.iterdir()}


def test_concurrent_creations_from_the_same_uploads_do_not_delete_each_others_files(
    store: Store, uploads: dict[str, str]
) -> None:
    spec = ModelSpec(files=uploads, quantize=FileType.Q8_0)
    others: list[str] = []

    def make_another(status: str, done: int, total: int) -> None:
        if not others:
            others.append(status)
            store.create("another", ModelSpec(files=uploads))

    store.create("first", spec, on_progress=make_another)
    assert others == ["converting model"]
    kept = {digest.replace(":", "-") for name in ("first", "another") for digest in store.get(name).files}
    assert blob_names(store) == kept  # neither the uploads nor the conversion before quantising


def test_uploads_another_client_checks_in_the_meantime_are_kept(
    store: Store, uploads: dict[str, str]
) -> None:
    checked = uploads["model.safetensors"]
    store.create("m", ModelSpec(files=uploads), on_progress=lambda *_: store.blobs.touch(checked))
    assert store.has_blob(checked)
    assert not store.has_blob(uploads["config.json"])


def test_uploads_in_use_are_not_pruned(store: Store, uploads: dict[str, str]) -> None:
    for digest in uploads.values():
        os.utime(store.blob_path(digest), (0, 0))
    assert (
        store.create("m", ModelSpec(files=uploads), on_progress=lambda *_: store.prune()).name == "m:latest"
    )


def test_unreadable_upload_is_reported_by_its_digest(store: Store, tmp_path: Path) -> None:
    digest = store.import_file(tiny_llama_gguf(tmp_path / "tiny.gguf"))
    store.blob_path(digest).unlink()
    with pytest.raises(StoreError) as failed:
        store.create("m", ModelSpec(files={"tiny.gguf": digest}, quantize=FileType.Q8_0))
    assert str(failed.value) == f"{digest} cannot be read: No such file or directory"

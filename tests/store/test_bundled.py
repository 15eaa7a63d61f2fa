"""The bundled model is available without a store and cannot be deleted."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from puna.errors import ModelNotFoundError, RequestError
from puna.store import ModelSpec, Store, bundled
from tests.store.store_files import sha256


@pytest.fixture
def with_demo(tmp_path: Path, make_gguf: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> Store:
    path = make_gguf("llama", parameters=2_000_000, general__file_type=7)
    monkeypatch.setattr(bundled, "BUNDLED", (replace(bundled.DEMO, file=path),))
    return Store(tmp_path / "models")


def test_demo_is_found_and_listed_without_a_store(with_demo: Store) -> None:
    model = with_demo.get("DEMO")
    assert model.name == "demo:latest"
    assert model.bundled
    assert model.runnable_path().is_file()
    assert model.details == {
        "parent_model": "",
        "format": "gguf",
        "family": "llama",
        "families": ["llama"],
        "parameter_size": "2M",
        "quantization_level": "Q8_0",
    }
    assert model.digest == sha256(model.manifest.encode()).removeprefix("sha256:")
    assert model.size > model.runnable_path().stat().st_size
    assert model.params == json.loads(bundled.DEMO.params.read_text())
    assert (model.template, model.system, model.messages, model.license) == (None, None, [], [])
    assert [found.name for found in with_demo.list()] == ["demo:latest"]
    assert not with_demo.root.exists()


def test_demo_can_be_copied_and_derived_from_but_not_deleted(with_demo: Store) -> None:
    with pytest.raises(RequestError, match="is bundled with Puna"):
        with_demo.delete("demo")
    child = with_demo.create("child", ModelSpec(from_model="demo", system="s"))
    assert child.runnable_path().read_bytes() == with_demo.get("demo").runnable_path().read_bytes()
    assert child.runnable_path().is_relative_to(with_demo.root)
    with_demo.copy("demo", "demo")
    with_demo.copy("demo", "copied")
    assert {model.name for model in with_demo.list()} == {"demo:latest", "child:latest", "copied:latest"}


def test_demo_in_the_store_takes_precedence(with_demo: Store) -> None:
    with_demo.create("Demo", ModelSpec(from_model="demo", system="mine"))
    assert with_demo.get("demo").system == "mine"
    assert len(with_demo.list()) == 1
    with_demo.delete("demo")
    assert with_demo.get("demo").bundled


@pytest.mark.parametrize("content", [None, b"", b"GGUF", b"not a model at all"])
def test_installation_without_a_usable_demo_lists_no_demo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None
) -> None:
    path = tmp_path / "demo.gguf"
    if content is not None:
        path.write_bytes(content)
    monkeypatch.setattr(bundled, "BUNDLED", (replace(bundled.DEMO, file=path),))
    store = Store(tmp_path / "models")
    assert store.list() == []
    with pytest.raises(ModelNotFoundError, match="model 'demo' not found"):
        store.get("demo")


def test_bundled_tower_is_a_layer_of_its_own(
    tmp_path: Path, make_gguf: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, tower = make_gguf("qwen2"), make_gguf("clip")
    audio = replace(bundled.DEMO_AUDIO, file=model, projector=tower)
    monkeypatch.setattr(bundled, "BUNDLED", (audio,))
    store = Store(tmp_path / "models")
    assert store.get("demo-audio").projector_paths == [tower]
    assert store.get("demo-audio").size > model.stat().st_size + tower.stat().st_size
    child = store.create("child", ModelSpec(from_model="demo-audio", system="s"))
    assert child.projector_paths[0].read_bytes() == tower.read_bytes()
    tower.unlink()
    assert [found.name for found in store.list()] == ["child:latest"]

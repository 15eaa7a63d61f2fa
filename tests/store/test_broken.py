"""Models with a missing or damaged file: the error names the model and the kind of file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from puna.errors import StoreError
from puna.store import ModelSpec, Store
from tests.store.store_files import add, minimal_gguf

KINDS: dict[str, tuple[str, Any]] = {
    "template": ("template", "{{ .Prompt }}"),
    "system": ("system text", "be kind"),
    "params": ("list of parameters", {"top_k": 3}),
    "messages": ("list of messages", [{"role": "user", "content": "hi"}]),
    "license": ("license", ["mine"]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_missing_or_damaged_layer_is_reported_without_its_path(store: Store, kind: str) -> None:
    what, value = KINDS[kind]
    field = {"params": "parameters"}.get(kind, kind)
    spec = ModelSpec(files={"a.gguf": add(store, minimal_gguf())}, **{field: value})
    store.create("m", spec)
    (layer,) = store.get("m").manifest.of_type(f"application/vnd.ollama.image.{kind}")
    path = store.blob_path(layer.digest)
    advice = "'puna doctor --store --heal' downloads it again; otherwise pull or create the model again"

    def problem() -> str:
        with pytest.raises(StoreError) as caught:
            getattr(store.get("m"), kind)
        return str(caught.value)

    path.unlink()
    assert problem() == f"m:latest: its {what} is missing; if it came from a registry, {advice}"
    path.mkdir()
    assert problem().startswith(f"m:latest: its {what} cannot be read (Is a directory); ")
    path.rmdir()
    path.write_bytes(b"{")
    if isinstance(value, dict | list) and kind != "license":
        assert problem().startswith(f"m:latest: its {what} is damaged (")


@pytest.mark.parametrize("kind", ["projector", "adapter"])
def test_model_does_not_run_without_its_projector_or_adapter(
    store: Store, make_gguf: Callable[..., Path], kind: str
) -> None:
    main = store.import_file(make_gguf("llama", ARCH__block_count=1))
    if kind == "projector":
        other = store.import_file(make_gguf("clip", ARCH__vision__block_count=1))
        store.create("m", ModelSpec(files={"main.gguf": main, "mm.gguf": other}))
    else:
        other = store.import_file(make_gguf("llama", general__type="adapter"))
        store.create("m", ModelSpec(files={"main.gguf": main}, adapters={"a.gguf": other}))
    path = store.blob_path(other)
    path.write_bytes(path.read_bytes()[:-1])
    what = {"projector": "vision tower", "adapter": "adapter"}[kind]
    with pytest.raises(StoreError, match=rf"m:latest: its {what} has \d+ bytes, not the \d+ it had when"):
        store.get("m").runnable_path()
    path.unlink()
    with pytest.raises(StoreError, match=f"m:latest: its {what} is missing; if it came"):
        store.get("m").runnable_path()

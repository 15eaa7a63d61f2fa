"""Stores with tampered manifests, configs and layers: listed, shown, copied and deleted."""

from __future__ import annotations

import json
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

from puna.errors import PunaError
from puna.store import ModelName, ModelSpec, Store
from puna.store.show import model_info, modelfile_text, parameters_text, tensor_list
from tests.fuzz.case import Bounds
from tests.fuzz.hostile_bytes import damaged
from tests.gguf.test_hostile import valid_file

BOUNDS = Bounds(seconds=2.0, memory=64 << 20)

_VALUES: tuple[Any, ...] = (
    None, 0, -1, 2**31, 2**63, 2**64, 1e308, 1.5, True, "", "x", "../../../etc/passwd", "sha256:" + "0" * 64,
    "sha256-" + "A" * 64, "é" * 1000, "x" * 300_000, [], [[]], {}, {"a": {}}, ["x"] * 1000,
)  # fmt: skip


def fuzz(dice: random.Random, folder: Path) -> None:
    store = Store(folder)
    digest = store.blobs.add(valid_file())[0]
    name = ModelName.parse("one")
    store.create(name, _spec(digest))
    path = store.manifests / name.path
    files = [path, *(file for file in sorted(store.blobs.folder.iterdir()) if not _is_model(file))]
    for _ in range(dice.randint(1, 3)):
        file = dice.choice(files)
        file.write_bytes(_tampered(dice, file.read_bytes()))
    for stored in store.list():
        _inspect(stored)
    with suppress(PunaError):
        store.copy("one", "two")
    with suppress(PunaError):
        store.create("three", ModelSpec(from_model="one", system="terse"))
    store.prune()
    with suppress(PunaError):
        _inspect(store.get("one"))
    store.delete("one")


def _spec(digest: str) -> ModelSpec:
    return ModelSpec(
        files={"model.gguf": digest},
        template="{{ .Prompt }}",
        system="be terse",
        license=["free"],
        parameters={"temperature": 0.5, "stop": ["a"]},
        messages=[{"role": "user", "content": "hello"}],
    )


def _is_model(file: Path) -> bool:
    return file.read_bytes().startswith(b"GGUF")


def _inspect(stored: Any) -> None:
    """Read everything that listing, showing and running a model reads; each may be refused."""
    for ask in (
        lambda: stored.details, lambda: stored.facts, stored.runnable_path, lambda: stored.template,
        lambda: stored.messages, lambda: model_info(stored, verbose=True), lambda: tensor_list(stored),
        lambda: parameters_text(stored.params), lambda: modelfile_text(stored), lambda: stored.manifest.size,
    ):  # fmt: skip
        with suppress(PunaError):
            ask()


def _tampered(dice: random.Random, content: bytes) -> bytes:
    if dice.random() < 0.3:
        return damaged(dice, content)
    if dice.random() < 0.1:
        return dice.choice((b"", b"[" * 100_000, b'{"a":' * 100_000, b"9" * 10_000, b"null", b'"x"'))
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        return damaged(dice, content)
    for _ in range(dice.randint(1, 3)):
        value = _changed(dice, value)
    return json.dumps(value).encode()


def _changed(dice: random.Random, value: Any) -> Any:
    """Return `value` with something in it replaced, dropped or repeated."""
    if dice.random() < 0.2 or not value or not isinstance(value, dict | list):
        return dice.choice(_VALUES)
    copied = value.copy()
    key = dice.choice(sorted(copied)) if isinstance(copied, dict) else dice.randrange(len(copied))
    if dice.random() < 0.2:
        del copied[key]
    elif isinstance(copied, list) and dice.random() < 0.2:
        copied += [copied[key]] * dice.choice((1, 1000))
    else:
        copied[key] = _changed(dice, copied[key])
    return copied

"""Model files that are or become invalid: they get an error with a message, and other models keep working."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from tests.model.test_load import rewritten
from tests.soak.attacks import Target
from tests.tiny.llama import TinyLlama, tiny_llama_gguf

#: Metadata that no valid model has.
_WRONG: tuple[dict[str, Any], ...] = (
    {"tokenizer.ggml.pre": "x" * 1_000_000},
    {"llama.context_length": -1},
    {"llama.attention.head_count_kv": -2},
    {"llama.block_count": 1_000_000},
    {"llama.embedding_length": 2**31 - 1},
    {"llama.feed_forward_length": 2**31 - 1},
    {"llama.attention.head_count": 0},
    {"llama.rope.freq_base": 1.0, "llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 4.0},
    {"tokenizer.ggml.tokens": ["same"] * 50},
    {"tokenizer.chat_template": "{{ " + "(" * 100_000},
)


def wrong_models(target: Target) -> None:
    """Upload files with impossible metadata."""
    base = _base(target)
    for wrong in target.rng.sample(_WRONG, 3):
        path = rewritten(base, target.folder / "wrong.gguf", **wrong)
        _try(target, path.read_bytes())


def damaged_models(target: Target) -> None:
    """Upload truncated and corrupted files."""
    data = bytearray(_base(target).read_bytes())
    _try(target, bytes(data[: target.rng.randrange(len(data))]))
    for _ in range(5):
        data[target.rng.randrange(5000)] = target.rng.randrange(256)
    _try(target, bytes(data))


def shrinking_models(target: Target) -> None:
    """Truncate a stored file, half of the time while it is loaded, then inspect and use it."""
    data = _base(target).read_bytes() + bytes(target.rng.randrange(1, 1000))
    blob = _upload(target, data)
    create = {"model": "shrinking", "files": {"a.gguf": blob}, "stream": False}
    target.ask("/api/create", create, 200)
    loaded = target.generate(200, model="shrinking") if target.rng.random() < 0.5 else None
    (target.server.models / "blobs" / blob.replace(":", "-")).open("r+b").truncate(len(data) // 2)
    for verbose in (False, True):
        target.ask("/api/show", {"model": "shrinking", "verbose": verbose}, 200, 400, 500)
    target.generate(*((200, 400, 500) if loaded else (400, 500)), model="shrinking")
    target.generate(200, 500, model="shrinking", prompt="", keep_alive=0)
    target.check(target.http.request("DELETE", "/api/delete", json={"model": "shrinking"}), 200)


def _base(target: Target) -> Path:
    path = target.folder / "base.gguf"
    return path if path.exists() else tiny_llama_gguf(path, TinyLlama(layers=1, context=256))


def _upload(target: Target, data: bytes) -> str:
    blob = "sha256:" + hashlib.sha256(data).hexdigest()
    target.ask(f"/api/blobs/{blob}", data, 200, 201)
    return blob


def _try(target: Target, data: bytes) -> None:
    """Create a model from `data` and use it; either step may report an error."""
    create = {"model": "wrong", "files": {"a.gguf": _upload(target, data)}, "stream": False}
    if target.ask("/api/create", create, 200, 400, 500).status_code != 200:
        return
    target.ask("/api/show", {"model": "wrong"}, 200, 400, 500)
    target.generate(200, 400, 500, 503, model="wrong")
    target.generate(200, 400, 500, model="wrong", prompt="", keep_alive=0)
    target.check(target.http.request("DELETE", "/api/delete", json={"model": "wrong"}), 200)


MODEL_ATTACKS = {
    attack.__name__.replace("_", "-"): attack for attack in (wrong_models, damaged_models, shrinking_models)
}

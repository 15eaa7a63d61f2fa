"""Pulling from a model hub: Hugging Face's protocols, spoken by a stand-in that serves real files."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from puna.errors import PunaError, RegistryError
from puna.registry.pull import pull
from puna.registry.report import TransferProgress
from puna.store import Store
from tests.registry.hub import StandIn
from tests.registry.pulling import HASTY, holds
from tests.registry.registries import Published, Registry, digest_of, reply, serving
from tests.store.store_files import write_gguf

Hubs = Callable[[StandIn], AbstractContextManager[StandIn]]


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, published: Published) -> Hubs:
    """Return a function that serves a hub at HF_ENDPOINT; no other private address is allowed."""
    monkeypatch.delenv("PUNA_PRIVATE_REGISTRIES", raising=False)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "huggingface"))

    @contextmanager
    def serve(hub: StandIn) -> Iterator[StandIn]:
        with serving(Registry(published)) as registry:
            hub.take_over(registry)
            monkeypatch.setenv("HF_ENDPOINT", f"http://{registry.address}/")
            yield hub

    return serve


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "models")


def pulled(store: Store, name: str) -> list[TransferProgress]:
    steps: list[TransferProgress] = []
    pull(store, name, steps.append, patience=HASTY)
    return steps


def model_file(path: Path, architecture: str = "llama", **metadata: Any) -> bytes:
    write_gguf(path, architecture, parameters=20_000, **metadata)
    return path.read_bytes()


def test_model_offered_by_the_hubs_registry_is_pulled_from_it(
    store: Store, serve: Hubs, published: Published
) -> None:
    with serve(StandIn({}, offered={"Q4_K_M": published})) as hub:
        pulled(store, "hf.co/team/model-GGUF:Q4_K_M")
        assert not any(path.startswith("/api/") for path in hub.requested)
    assert holds(store, published)
    assert store.get("hf.co/team/model-GGUF:Q4_K_M").manifest.layers[0].digest == published.model_digest


def test_files_become_a_model_with_projector_and_settings_beside_them(
    store: Store, serve: Hubs, tmp_path: Path
) -> None:
    model = model_file(tmp_path / "model.gguf", tokenizer__chat_template="{{ messages }}")
    projector = model_file(tmp_path / "mmproj.gguf", "clip", clip__vision__block_count=2)
    hub = StandIn(
        {"m-Q8_0.gguf": b"GGUF of another", "m-Q4_K_M.gguf": model, "mmproj-F16.gguf": projector},
        small={"template": b"{{ .Prompt }}", "system": b"Be brief.", "params": b'{"stop": ["</s>"]}'},
        pages=3,
    )
    with serve(hub):
        steps = pulled(store, "huggingface.co/team/model-GGUF")
        assert [step.status for step in steps if not step.digest][-1] == "success"
        got = store.get("huggingface.co/team/model-GGUF:latest")
        assert got.runnable_path().read_bytes() == model
        assert [path.read_bytes() for path in got.projector_paths] == [projector]
        assert (got.template, got.system, got.params) == ("{{ .Prompt }}", "Be brief.", {"stop": ["</s>"]})
        before = len(hub.requested)
        pulled(store, "huggingface.co/team/model-GGUF")
        assert not any(path.endswith(".gguf") for path in hub.requested[before:])


def parts_of(folder: Path) -> dict[str, bytes]:
    """Return a model in three parts, as llama.cpp's tool and the `gguf` package split it."""
    folder.mkdir()
    writer = gguf.GGUFWriter(folder / "big-Q4_K_M.gguf", "llama", split_max_tensors=1)
    for i in range(3):
        writer.add_tensor(f"blk.{i}.weight", np.full((4, 64), i, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return {f"Q4_K_M/{path.name}": path.read_bytes() for path in folder.iterdir()}


def test_parts_are_downloaded_and_joined_only_once(store: Store, serve: Hubs, tmp_path: Path) -> None:
    parts = parts_of(tmp_path / "parts")
    assert len(parts) == 3
    with serve(StandIn(parts)) as hub:
        steps = pulled(store, "hf.co/team/model-GGUF:Q4_K_M")
        assert "joining 3 parts" in [step.status for step in steps]
        path = store.get("hf.co/team/model-GGUF:Q4_K_M").runnable_path()
        assert [float(tensor.data.max()) for tensor in gguf.GGUFReader(path).tensors] == [0.0, 1.0, 2.0]
        assert not any(store.has_blob(digest_of(data)) for data in parts.values())
        before = len(hub.requested)
        pulled(store, "hf.co/team/model-GGUF:Q4_K_M")
        assert not any(requested.endswith(".gguf") for requested in hub.requested[before:])


def test_gated_files_need_a_token_that_is_sent_to_the_hub_alone(
    store: Store, serve: Hubs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = StandIn({"m-Q4_K_M.gguf": model_file(tmp_path / "model.gguf")}, token="hf_secret")
    with serve(hub):
        with pytest.raises(
            RegistryError, match=r"team/model-GGUF is gated: agree .*HF_TOKEN, which is not set"
        ):
            pulled(store, "hf.co/team/model-GGUF")
        (tmp_path / "huggingface").mkdir()
        (tmp_path / "huggingface" / "token").write_text("hf_wrong\n")
        with pytest.raises(RegistryError, match="the token in HF_TOKEN must belong to an account"):
            pulled(store, "hf.co/team/model-GGUF")
        assert hub.tokens == {"", "hf_wrong"}
        monkeypatch.setenv("HF_TOKEN", "hf_secret")
        pulled(store, "hf.co/team/model-GGUF")
    assert store.get("hf.co/team/model-GGUF").runnable_path().is_file()


def test_missing_repository_or_quantisation_is_reported(store: Store, serve: Hubs, tmp_path: Path) -> None:
    with serve(StandIn({"m-Q4_K_M.gguf": model_file(tmp_path / "model.gguf")})):
        with pytest.raises(RegistryError, match=r"there is no .*/team/other, or it is private"):
            pulled(store, "hf.co/team/other")
        with pytest.raises(RegistryError, match=r"hf\.co/team/model-GGUF has no 'q2_k'; it has Q4_K_M"):
            pulled(store, "hf.co/team/model-GGUF:q2_k")


def test_invalid_hub_endpoint_is_reported(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "hub.example")
    with pytest.raises(RegistryError, match=r"HF_ENDPOINT=hub\.example is not a web address"):
        pulled(store, "hf.co/team/model-GGUF")


def test_url_of_a_file_at_the_hub_pulls_from_its_repository(
    store: Store, serve: Hubs, tmp_path: Path
) -> None:
    data = model_file(tmp_path / "model.gguf")
    with serve(StandIn({"sub/m-Q4_K_M.gguf": data})):
        pulled(store, "https://huggingface.co/team/model-GGUF/resolve/main/sub/m-Q4_K_M.gguf?download=true")
    assert store.get("huggingface.co/team/model-GGUF:m-Q4_K_M.gguf").runnable_path().read_bytes() == data


class Hostile(StandIn):
    """A hub where `tree` answers requests for the tree, and `sends` requests for a large file."""

    tree: Callable[[BaseHTTPRequestHandler], None] | None = None
    sends: Callable[[BaseHTTPRequestHandler], None] | None = None

    def _intercept(self, handler: BaseHTTPRequestHandler) -> bool:
        self.requested.append(handler.path)
        if self.tree is not None and "/tree/main" in handler.path:
            self.tree(handler)
        elif self.sends is not None and handler.path.endswith(".gguf"):
            self.sends(handler)
        else:
            return super()._intercept(handler)
        return True


def endless(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.end_headers()
    handler.close_connection = True
    with contextlib.suppress(OSError):
        for _ in range(100):
            handler.wfile.write(b"[" * 1_000_000)


def tree_of(entries: object, **headers: str) -> Callable[[BaseHTTPRequestHandler], None]:
    return lambda handler: reply(handler, 200, json.dumps(entries).encode(), headers)


def tree_entry(path: str = "m-Q4_K_M.gguf", oid: str = "0" * 64, size: int = 1000) -> dict[str, object]:
    return {"type": "file", "path": path, "lfs": {"oid": oid, "size": size}}


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        (endless, "does not answer like a model hub"),
        (tree_of({"error": "x"}), "does not answer like a model hub"),
        (tree_of([[]] * 1000), "does not answer like a model hub"),
        (tree_of([tree_entry(oid="../../../escaped")]), "digest"),
        (tree_of([tree_entry(oid="")]), "digest"),
        (tree_of([tree_entry(size=2**62)]), "no GGUF"),
        (tree_of([tree_entry(size=-1)]), "no GGUF"),
        (tree_of([tree_entry(size=2**49)]), "room for"),
        (tree_of([tree_entry(path="../../../m-Q4_K_M.gguf", size=1000)]), "exist"),
        (tree_of([], link='</api/models/team/model-GGUF/tree/main>; rel="next"'), "no GGUF"),
        (tree_of([], link='<http://169.254.169.254/latest>; rel="next"'), "no GGUF"),
    ],
)
def test_hostile_tree_is_refused(store: Store, serve: Hubs, tmp_path: Path, tree: Any, message: str) -> None:
    hub = Hostile({"m-Q4_K_M.gguf": model_file(tmp_path / "m.gguf")})
    hub.tree = tree
    with serve(hub), pytest.raises(PunaError, match=message):
        pulled(store, "hf.co/team/model-GGUF")
    assert len(hub.requested) < 40
    assert not list(tmp_path.rglob("*escaped*"))
    assert not store.exists("hf.co/team/model-GGUF")


def test_file_that_redirects_to_a_private_address_or_never_ends_is_refused(
    store: Store, serve: Hubs, tmp_path: Path
) -> None:
    data = model_file(tmp_path / "m.gguf")
    hub = Hostile({"m-Q4_K_M.gguf": data})
    hub.sends = lambda handler: reply(handler, 302, b"", {"location": "http://127.0.0.2:9/m.gguf"})
    with serve(hub), pytest.raises(PunaError, match=r"127\.0\.0\.2"):
        pulled(store, "hf.co/team/model-GGUF")
    hub = Hostile({"m-Q4_K_M.gguf": data})
    hub.sends = endless
    with serve(hub), pytest.raises(PunaError):
        pulled(store, "hf.co/team/model-GGUF")
    assert not store.exists("hf.co/team/model-GGUF")
    assert sum(file.stat().st_size for file in store.blobs.folder.iterdir()) <= 2 * len(data)

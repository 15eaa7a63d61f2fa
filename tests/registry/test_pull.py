"""Pulling: whole or not at all, whatever the registry and the network do."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from puna.errors import InvalidNameError, RegistryError, StoreError
from puna.registry import partial
from puna.registry.download import Patience, PullCancelledError
from puna.registry.pull import Progress, pull
from puna.store import Store
from tests.registry.registries import Published, Registry, docker_registry, publish, reply, serving

HASTY = Patience(tries=3, first_wait_s=0.0, report_s=0.01)


def pulled(store: Store, name: str, **more: Any) -> list[Progress]:
    """The steps of a pull from a registry without TLS."""
    steps: list[Progress] = []
    pull(store, name, steps.append, insecure=True, patience=HASTY, **more)
    return steps


def holds(store: Store, published: Published) -> bool:
    return all(store.blob_path(digest).read_bytes() == data for digest, data in published.blobs.items())


def is_empty(store: Store) -> bool:
    """Whether nothing of a model can be seen: no manifest, no blob that is not whole."""
    blobs = [path for path in store.blobs.folder.glob("*") if "-partial" not in path.name]
    return not any(path.is_file() for path in store.manifests.rglob("*")) and not blobs


def test_a_pull_from_a_real_registry(store: Store, published: Published, tmp_path: Path) -> None:
    (tmp_path / "registry").mkdir()
    with docker_registry(tmp_path / "registry") as address:
        publish(address, published, tag="small")
        steps = pulled(store, f"http://{address}/team/model:small")
    assert holds(store, published)
    model = store.get(f"{address}/team/model:small")
    assert (store.manifests / model.model_name.path).read_bytes() == published.manifest
    statuses = list(dict.fromkeys(step.status for step in steps))
    hexes = [digest.removeprefix("sha256:")[:12] for digest in published.blobs]
    assert statuses[0] == "pulling manifest"
    assert {f"pulling {each}" for each in hexes} < set(statuses)
    assert statuses[-2:] == ["writing manifest", "success"]
    last = [step for step in steps if step.digest == published.model_digest][-1]
    assert last.completed == last.total == len(published.blobs[published.model_digest])
    assert not list(store.blobs.folder.glob("*partial*"))


def test_what_the_store_has_is_not_fetched(store: Store, published: Published) -> None:
    with serving(Registry(published)) as registry:
        pulled(store, registry.name)
        before = registry.sent
        steps = pulled(store, registry.name)
        assert registry.sent == before
    assert [step.completed for step in steps if step.digest == published.model_digest] == [
        len(published.blobs[published.model_digest])
    ]


def test_a_new_version_replaces_the_old_one(store: Store, published: Published) -> None:
    with serving(Registry(published)) as registry:
        pulled(store, registry.name)
        registry.published = newer = Published.of(
            published.blobs[published.model_digest], b"another template"
        )
        assert "removing unused layers" in {step.status for step in pulled(store, registry.name)}
    assert holds(store, newer)
    assert len(list(store.blobs.folder.iterdir())) == 3


def breaking_off(published: Published, after: int) -> Registry:
    """A registry whose connections break after so many bytes of the model."""

    def told(handler: BaseHTTPRequestHandler) -> bool:
        if not handler.path.endswith(published.model_digest):
            return False
        data = published.blobs[published.model_digest]
        start, end = (int(number) for number in handler.headers["range"].removeprefix("bytes=").split("-"))
        handler.send_response(206)
        handler.send_header("content-range", f"bytes {start}-{end}/{len(data)}")
        handler.send_header("content-length", str(end + 1 - start))
        handler.end_headers()
        handler.wfile.write(data[start : start + after])
        registry.sent += after
        handler.close_connection = True
        return True

    registry = Registry(published, told=told)
    return registry


def test_a_broken_pull_is_continued(store: Store, published: Published) -> None:
    size = len(published.blobs[published.model_digest])
    with serving(breaking_off(published, 20_000)) as registry:
        with pytest.raises(RegistryError, match="max retries exceeded"):
            pulled(store, registry.name)
        assert is_empty(store)
        registry.told = lambda handler: False
        registry.asked.clear()
        pulled(store, registry.name)
        starts = [asked for path, asked in registry.asked if path.endswith(published.model_digest)]
        assert starts == [f"bytes={20_000 * HASTY.tries}-{size - 1}"]
    assert holds(store, published)


def test_parts_are_fetched_side_by_side(
    store: Store, published: Published, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partial, "LEAST_PART", 30_000)
    size = len(published.blobs[published.model_digest])
    with serving(Registry(published)) as registry:
        pulled(store, registry.name)
        ranges = [asked for path, asked in registry.asked if path.endswith(published.model_digest)]
    assert len(ranges) == -(-size // 30_000) == 4
    assert holds(store, published)


def test_parts_that_ollama_left_are_used(store: Store, published: Published) -> None:
    data = published.blobs[published.model_digest]
    path = store.blob_path(published.model_digest)
    path.parent.mkdir(parents=True)
    half = len(data) // 2
    path.with_name(f"{path.name}-partial").write_bytes(data[:half] + bytes(len(data) - half))
    for n, (offset, size, completed) in enumerate([(0, half, half), (half, len(data) - half, 0)]):
        sidecar = {"N": n, "Offset": offset, "Size": size, "Completed": completed}
        path.with_name(f"{path.name}-partial-{n}").write_text(json.dumps(sidecar))
    with serving(Registry(published)) as registry:
        pulled(store, registry.name)
        asked = [asked for path, asked in registry.asked if path.endswith(published.model_digest)]
    assert asked == [f"bytes={half}-{len(data) - 1}"]
    assert holds(store, published)


@pytest.mark.parametrize(
    "sidecars",
    [
        [],
        ["not JSON"],
        ['{"N":0,"Offset":5,"Size":10,"Completed":0}'],
        ['{"N":0,"Offset":0,"Size":99999999,"Completed":99999999}'],
        ['{"N":0,"Offset":0,"Size":-1,"Completed":-5}'],
    ],
)
def test_parts_that_make_no_sense_are_fetched_anew(
    store: Store, published: Published, sidecars: list[str]
) -> None:
    path = store.blob_path(published.model_digest)
    path.parent.mkdir(parents=True)
    path.with_name(f"{path.name}-partial").write_bytes(b"something else")
    for n, text in enumerate(sidecars):
        path.with_name(f"{path.name}-partial-{n}").write_text(text)
    with serving(Registry(published)) as registry:
        pulled(store, registry.name)
    assert holds(store, published)
    assert len(list(store.blobs.folder.iterdir())) == 3


def test_a_server_without_ranges(store: Store, published: Published, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partial, "LEAST_PART", 30_000)
    with serving(Registry(published, ranges=False)) as registry:
        pulled(store, registry.name)
    assert holds(store, published)


def test_other_bytes_than_the_manifest_says(store: Store, published: Published) -> None:
    data = published.blobs[published.model_digest]
    published.blobs[published.model_digest] = data[:-1] + bytes([data[-1] ^ 1])
    with serving(Registry(published)) as registry, pytest.raises(RegistryError, match="digest mismatch"):
        pulled(store, registry.name)
    assert is_empty(store)
    assert not list(store.blobs.folder.iterdir())


def test_another_size_than_the_manifest_says(store: Store, published: Published) -> None:
    published.blobs[published.model_digest] += b"more"
    with serving(Registry(published)) as registry, pytest.raises(RegistryError, match="not the bytes from"):
        pulled(store, registry.name)
    with (
        serving(Registry(published, ranges=False)) as registry,
        pytest.raises(RegistryError, match="should have"),
    ):
        pulled(store, registry.name)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda value: value | {"layers": value["layers"] * 501}, "at most 1000"),
        (lambda value: value | {"config": value["config"] | {"size": -1}}, "has -1 bytes"),
        (lambda value: value | {"config": value["config"] | {"size": 1 << 60}}, "bytes"),
        (lambda value: value | {"config": value["config"] | {"digest": "../../x"}}, "invalid digest"),
        (lambda value: [value], "not a model manifest"),
        (lambda value: {"padding": "x" * (5 << 20)}, "more than 4 MB"),
        (lambda value: value | {"config": value["config"] | {"size": 1 << 49}}, "free some space"),
    ],
)
def test_hostile_manifests(store: Store, published: Published, change: Any, message: str) -> None:
    published.manifest = json.dumps(change(json.loads(published.manifest))).encode()
    with serving(Registry(published)) as registry, pytest.raises((RegistryError, StoreError), match=message):
        pulled(store, registry.name)
    assert not store.blobs.folder.exists() or is_empty(store)


def test_a_model_that_is_not_there(store: Store, published: Published) -> None:
    with serving(Registry(published)) as registry:
        with pytest.raises(RegistryError, match="pull model manifest: file does not exist"):
            pulled(store, f"http://{registry.address}/team/other")
        with pytest.raises(InvalidNameError):
            pulled(store, f"http://{registry.address}/team/mo del")


def test_errors_that_pass_and_errors_that_stay(store: Store, published: Published) -> None:
    statuses = [503, 429]

    def told(handler: BaseHTTPRequestHandler) -> bool:
        if not statuses or "/blobs/" not in handler.path:
            return False
        reply(handler, statuses.pop(), b"later")
        return True

    with serving(Registry(published, told=told)) as registry:
        pulled(store, registry.name)
        assert holds(store, published)
        shutil.rmtree(store.root)
        statuses[:] = [500] * 9
        with pytest.raises(RegistryError, match="max retries exceeded: 500: later"):
            pulled(store, registry.name)
        statuses[:] = [403]
        with pytest.raises(RegistryError, match="unauthorized: access denied"):
            pulled(store, registry.name)


def test_a_registry_that_wants_a_token(store: Store, published: Published) -> None:
    def told(handler: BaseHTTPRequestHandler) -> bool:
        if handler.path.startswith("/token?"):
            assert handler.path == "/token?service=models&scope=repository%3Ateam%2Fmodel%3Apull"
            reply(handler, 200, b'{"token": "secret"}')
            return True
        if handler.headers.get("authorization") == "Bearer secret":
            return False
        challenge = f'Bearer realm="http://{registry.address}/token",service="models",scope="repository:team/model:pull"'
        reply(handler, 401, b"", {"www-authenticate": challenge})
        return True

    registry = Registry(published, told=told)
    with serving(registry):
        pulled(store, registry.name)
    assert holds(store, published)


def test_a_token_goes_to_no_other_host(store: Store, published: Published) -> None:
    heard: list[str | None] = []

    def elsewhere(handler: BaseHTTPRequestHandler) -> bool:
        heard.append(handler.headers.get("authorization"))
        return False

    with serving(Registry(published, told=elsewhere)) as other:

        def told(handler: BaseHTTPRequestHandler) -> bool:
            if handler.path.startswith("/token"):
                reply(handler, 200, b'{"access_token": "secret"}')
            elif handler.headers.get("authorization") != "Bearer secret":
                challenge = f'Bearer realm="http://{registry.address}/token"'
                reply(handler, 401, b"", {"www-authenticate": challenge})
            elif "/blobs/" in handler.path:
                reply(handler, 307, b"", {"location": f"http://{other.address}{handler.path}"})
            else:
                return False
            return True

        with serving(Registry(published, told=told)) as registry:
            pulled(store, registry.name)
    assert holds(store, published)
    assert heard == [None] * 3


def test_plain_http_must_be_asked_for(store: Store, published: Published) -> None:
    with serving(Registry(published)) as registry:
        with pytest.raises(RegistryError, match="insecure protocol http"):
            pull(store, registry.name, lambda _: None)
        # Without a scheme TLS is tried first, as it should be.
        pulled(store, f"{registry.address}/team/model")
    assert holds(store, published)


def test_private_addresses_must_be_allowed(
    store: Store, published: Published, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(Registry(published)) as registry:
        monkeypatch.setenv("PUNA_PRIVATE_REGISTRIES", "registry.example")
        with pytest.raises(
            RegistryError, match=r"not a public address; PUNA_PRIVATE_REGISTRIES=127\.0\.0\.1"
        ):
            pulled(store, registry.name)
        assert registry.asked == []
        monkeypatch.setenv("PUNA_PRIVATE_REGISTRIES", registry.address)
        pulled(store, registry.name)


def test_a_redirect_leads_to_no_private_address(
    store: Store, published: Published, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(Registry(published)) as secret:

        def told(handler: BaseHTTPRequestHandler) -> bool:
            if "/blobs/" in handler.path:
                reply(handler, 307, b"", {"location": f"http://{secret.address}{handler.path}"})
                return True
            return False

        with serving(Registry(published, told=told)) as registry:
            monkeypatch.setenv("PUNA_PRIVATE_REGISTRIES", registry.address)
            with pytest.raises(RegistryError, match="not a public address"):
                pulled(store, registry.name)
        assert secret.asked == []


def test_two_pulls_fetch_once(store: Store, published: Published) -> None:
    entered, go_on = threading.Event(), threading.Event()

    def told(handler: BaseHTTPRequestHandler) -> bool:
        if handler.path.endswith(published.model_digest):
            entered.set()
            go_on.wait(30)
        return False

    with serving(Registry(published, told=told)) as registry:
        first = threading.Thread(target=pulled, args=(store, registry.name))
        first.start()
        assert entered.wait(30)
        waits = threading.Event()
        steps: list[Progress] = []

        def hear(step: Progress) -> None:
            steps.append(step)
            if step.digest == published.model_digest:
                waits.set()

        second = threading.Thread(
            target=pull,
            args=(Store(store.root), registry.name, hear),
            kwargs={"insecure": True, "patience": HASTY},
        )
        second.start()
        assert waits.wait(30)
        go_on.set()
        first.join(30)
        second.join(30)
        assert registry.sent == sum(map(len, published.blobs.values()))
    assert holds(store, published)
    assert steps[-1].status == "success"


def test_a_cancelled_pull_leaves_what_came(store: Store, published: Published) -> None:
    cancelled = threading.Event()
    registry = breaking_off(published, 20_000)
    broken = registry.told

    def told(handler: BaseHTTPRequestHandler) -> bool:
        answered = broken(handler)
        if answered:
            cancelled.set()
        return answered

    registry.told = told
    with serving(registry):
        with pytest.raises(PullCancelledError):
            pulled(store, registry.name, cancelled=cancelled)
        registry.told = lambda handler: False
        registry.asked.clear()
        pulled(store, registry.name)
        asked = [asked for path, asked in registry.asked if path.endswith(published.model_digest)]
    assert len(asked) == 1
    assert not asked[0].startswith("bytes=0-")
    assert holds(store, published)


PULL = """
import sys
from pathlib import Path
from puna.registry.pull import pull
from puna.store import Store
pull(Store(Path(sys.argv[1])), sys.argv[2], lambda step: None, insecure=True)
"""


@pytest.mark.slow
def test_a_killed_pull_leaves_a_store_that_is_whole(
    store: Store, published: Published, tmp_path: Path
) -> None:
    """Killed at each of the moments at which the registry is asked for something, and between them."""
    killed: list[int] = []

    def told(handler: BaseHTTPRequestHandler) -> bool:
        if len(killed) < len(registry.asked) <= 3:
            killed.append(process.pid)
            os.kill(process.pid, signal.SIGKILL)
        return False

    registry = Registry(published, told=told)
    with serving(registry):
        while True:
            process = subprocess.Popen([sys.executable, "-c", PULL, str(store.root), registry.name])
            if process.wait(60) == 0:
                break
            assert is_empty(store)
    assert len(killed) == 3
    assert holds(store, published)
    assert store.get(registry.name).model_path is not None

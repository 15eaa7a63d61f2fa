"""Pulling gives a complete model or none, whatever the registry and the network do."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from puna import __version__
from puna.errors import RegistryError, UnreachableError
from puna.registry import download, network
from puna.registry.network import USER_AGENT, TransferCancelledError
from puna.registry.pull import heal, pull
from puna.registry.report import TransferProgress
from puna.store import Store
from puna.store.verify import verify
from tests.registry.pulling import HASTY, holds, is_empty, pulled
from tests.registry.registries import Published, Registry, docker_registry, publish, serving
from tests.waiting import PATIENCE_S


def test_model_is_pulled_from_a_real_registry(store: Store, published: Published, tmp_path: Path) -> None:
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


def test_pull_sends_a_user_agent(store: Store, published: Published) -> None:
    user_agents: set[str | None] = set()

    def intercept(handler: BaseHTTPRequestHandler) -> bool:
        user_agents.add(handler.headers.get("user-agent"))
        return False

    with serving(Registry(published, intercept=intercept)) as registry:
        pulled(store, registry.name)
    assert user_agents == {USER_AGENT}
    assert USER_AGENT.startswith(f"puna/{__version__} (")


def test_blobs_in_the_store_are_not_fetched_again(store: Store, published: Published) -> None:
    with serving(Registry(published)) as registry:
        pulled(store, registry.name)
        before = registry.sent
        steps = pulled(store, registry.name)
        assert registry.sent == before
    assert [step.completed for step in steps if step.digest == published.model_digest] == [
        len(published.blobs[published.model_digest])
    ]


def test_new_version_replaces_the_old_one(store: Store, published: Published) -> None:
    with serving(Registry(published)) as registry:
        pulled(store, registry.name)
        registry.published = newer = Published.of(
            published.blobs[published.model_digest], b"another template"
        )
        assert "removing unused layers" in {step.status for step in pulled(store, registry.name)}
    assert holds(store, newer)
    assert len(list(store.blobs.folder.iterdir())) == 3


def breaking_off(published: Published, after: int) -> Registry:
    """Return a registry whose connections break after sending `after` bytes of the model."""

    def intercept(handler: BaseHTTPRequestHandler) -> bool:
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

    registry = Registry(published, intercept=intercept)
    return registry


def test_interrupted_pull_resumes(store: Store, published: Published) -> None:
    size = len(published.blobs[published.model_digest])
    with serving(breaking_off(published, 20_000)) as registry:
        with pytest.raises(RegistryError, match="max retries exceeded"):
            pulled(store, registry.name)
        assert is_empty(store)
        registry.intercept = lambda handler: False
        registry.requested.clear()
        pulled(store, registry.name)
        starts = [
            requested for path, requested in registry.requested if path.endswith(published.model_digest)
        ]
        assert starts == [f"bytes={20_000 * HASTY.tries}-{size - 1}"]
    assert holds(store, published)


@pytest.mark.parametrize(
    ("size", "parts"),
    [
        (0, []), (1, [1]), (100_000_000, [100_000_000]), (150_000_000, [100_000_000, 50_000_000]),
        (3_200_000_000, [200_000_000] * 16), (16_500_000_000, [1_000_000_000] * 16 + [500_000_000]),
    ],
)  # fmt: skip
def test_blob_is_divided_into_the_same_parts_as_ollamas(size: int, parts: list[int]) -> None:
    found = download.divided(size)
    assert [part.size for part in found] == parts
    assert [part.n for part in found] == list(range(len(parts)))
    assert [part.offset for part in found] == [sum(parts[:n]) for n in range(len(parts))]


def test_parts_are_fetched_in_parallel(
    store: Store, published: Published, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "MIN_PART", 30_000)
    size = len(published.blobs[published.model_digest])
    with serving(Registry(published)) as registry:
        pulled(store, registry.name)
        ranges = [
            requested for path, requested in registry.requested if path.endswith(published.model_digest)
        ]
    assert len(ranges) == -(-size // 30_000) == 4
    assert holds(store, published)


def test_parts_left_by_ollama_are_used(store: Store, published: Published) -> None:
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
        requested = [
            requested for path, requested in registry.requested if path.endswith(published.model_digest)
        ]
    assert requested == [f"bytes={half}-{len(data) - 1}"]
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
def test_invalid_partial_files_are_fetched_anew(
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


def test_parts_with_a_hole_between_them_are_fetched_anew(store: Store, published: Published) -> None:
    """Each part is complete and their lengths add up to the blob's, but two of them overlap."""
    data = published.blobs[published.model_digest]
    path = store.blob_path(published.model_digest)
    path.parent.mkdir(parents=True)
    hole = len(data) // 3
    parts = [(0, hole), (2 * hole, hole + 1), (2 * hole + 1, len(data) - 2 * hole - 1)]
    path.with_name(f"{path.name}-partial").write_bytes(data[:hole] + b"?" * hole + data[2 * hole :])
    for n, (offset, size) in enumerate(parts):
        sidecar = {"N": n, "Offset": offset, "Size": size, "Completed": size}
        path.with_name(f"{path.name}-partial-{n}").write_text(json.dumps(sidecar))
    with serving(Registry(published)) as registry:
        pulled(store, registry.name)
    assert holds(store, published)


def test_progress_is_recorded_while_a_part_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A killed process has no time to record progress at the end."""
    monkeypatch.setattr(download, "_NOTE_EVERY", 1000)
    noted = []
    with download.Partial(tmp_path / "sha256-0", 10_000) as file:
        assert file.lock()
        file.plan()
        for _ in range(9):
            file.write(file.parts[0], bytes(700))
            noted.append(download.Partial(tmp_path / "sha256-0", 10_000).saved_bytes)
    assert noted == [0, 1400, 1400, 2800, 2800, 4200, 4200, 5600, 5600]


def test_server_without_ranges_is_pulled_from(
    store: Store, published: Published, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "MIN_PART", 30_000)
    with serving(Registry(published, ranges=False)) as registry:
        pulled(store, registry.name)
    assert holds(store, published)


def test_content_that_does_not_match_the_manifest_is_refused(store: Store, published: Published) -> None:
    data = published.blobs[published.model_digest]
    published.blobs[published.model_digest] = data[:-1] + bytes([data[-1] ^ 1])
    with serving(Registry(published)) as registry, pytest.raises(RegistryError, match="digest mismatch"):
        pulled(store, registry.name)
    assert is_empty(store)
    assert not list(store.blobs.folder.iterdir())


def test_size_that_does_not_match_the_manifest_is_refused(store: Store, published: Published) -> None:
    published.blobs[published.model_digest] += b"more"
    with serving(Registry(published)) as registry, pytest.raises(RegistryError, match="not the bytes from"):
        pulled(store, registry.name)
    with (
        serving(Registry(published, ranges=False)) as registry,
        pytest.raises(RegistryError, match="should have"),
    ):
        pulled(store, registry.name)


def test_concurrent_pulls_of_one_model_fetch_it_once(store: Store, published: Published) -> None:
    entered, proceed = threading.Event(), threading.Event()

    def intercept(handler: BaseHTTPRequestHandler) -> bool:
        if handler.path.endswith(published.model_digest):
            entered.set()
            proceed.wait(30)
        return False

    with serving(Registry(published, intercept=intercept)) as registry:
        first = threading.Thread(target=pulled, args=(store, registry.name))
        first.start()
        assert entered.wait(30)
        waits = threading.Event()
        steps: list[TransferProgress] = []

        def record(step: TransferProgress) -> None:
            steps.append(step)
            if step.digest == published.model_digest:
                waits.set()

        second = threading.Thread(
            target=pull,
            args=(Store(store.root), registry.name, record),
            kwargs={"insecure": True, "patience": HASTY},
        )
        second.start()
        assert waits.wait(30)
        proceed.set()
        first.join(30)
        second.join(30)
        assert registry.sent == sum(map(len, published.blobs.values()))
    assert holds(store, published)
    assert steps[-1].status == "success"


def test_cancelled_pull_keeps_what_was_received(store: Store, published: Published) -> None:
    cancelled = threading.Event()
    registry = breaking_off(published, 20_000)
    broken = registry.intercept
    broken_off = 0

    def intercept(handler: BaseHTTPRequestHandler) -> bool:
        nonlocal broken_off
        was_answered = broken(handler)
        broken_off += was_answered
        if broken_off > 1:  # by the second request, the first answer's bytes have been read
            cancelled.set()
        return was_answered

    registry.intercept = intercept
    with serving(registry):
        with pytest.raises(TransferCancelledError):
            pulled(store, registry.name, cancelled=cancelled)
        registry.intercept = lambda handler: False
        registry.requested.clear()
        pulled(store, registry.name)
        requested = [
            requested for path, requested in registry.requested if path.endswith(published.model_digest)
        ]
    assert len(requested) == 1
    assert not requested[0].startswith("bytes=0-")
    assert holds(store, published)


PULL = """
import sys
from pathlib import Path
from puna.registry.pull import pull
from puna.registry.remote import Registry as Remote
from puna.store import Store
from puna.store.verify import verify
pull(Store(Path(sys.argv[1])), sys.argv[2], lambda step: None, insecure=True)
"""


@pytest.mark.slow
def test_killed_pull_leaves_an_intact_store(store: Store, published: Published, tmp_path: Path) -> None:
    """Kill the pull at each request to the registry."""
    killed: list[int] = []

    def intercept(handler: BaseHTTPRequestHandler) -> bool:
        if len(killed) < len(registry.requested) <= 3:
            killed.append(process.pid)
            os.kill(process.pid, signal.SIGKILL)
        return False

    registry = Registry(published, intercept=intercept)
    with serving(registry):
        while True:
            process = subprocess.Popen([sys.executable, "-c", PULL, str(store.root), registry.name])
            if process.wait(60) == 0:
                break
            assert is_empty(store)
    assert len(killed) == 3
    assert holds(store, published)
    assert store.get(registry.name).model_path is not None


def test_pull_fetches_visibly_damaged_blobs_again(store: Store, published: Published) -> None:
    with serving(Registry(published)) as registry:
        pulled(store, registry.name)
        text, model = (published.blobs[digest] for digest in (published.layer(1), published.model_digest))
        for text_found, model_found in ((b"", model[:-1]), (b"X" * len(text), model + b"X")):
            store.blob_path(published.layer(1)).write_bytes(text_found)
            store.blob_path(published.model_digest).write_bytes(model_found)
            pulled(store, registry.name)
            assert holds(store, published)


def test_intact_file_of_a_future_version_is_not_fetched_again(store: Store) -> None:
    published = Published.of(b"GGUF" + (99).to_bytes(4, "little") + bytes(100))
    with serving(Registry(published)) as registry:
        pulled(store, registry.name)
        registry.requested.clear()
        pulled(store, registry.name)
        assert not [path for path, _ in registry.requested if "/blobs/" in path]
        assert holds(store, published)


def test_damaged_blob_is_healed_from_its_registry(store: Store, published: Published) -> None:
    with serving(Registry(published)) as registry:
        pulled(store, registry.name)
        path = store.blob_path(published.model_digest)
        path.write_bytes(bytes(path.stat().st_size))
        (damage,) = verify(store).damages
        assert heal(store, damage, lambda step: None, HASTY, insecure=True) == ""
        assert holds(store, published)
        assert not list(store.blobs.folder.glob("*-damaged"))
        path.unlink()
        (damage,) = verify(store).damages
        registry.published = Published.of(b"another")
        reason = heal(store, damage, lambda step: None, HASTY, insecure=True)
        assert "does not provide it" in reason


def dripping(published: Published, over: threading.Event, part: str, at_header: bool) -> Registry:
    """Return a registry that sends paths containing `part` a byte at a time until `over` is set."""

    def intercept(handler: BaseHTTPRequestHandler) -> bool:
        if part not in handler.path:
            return False
        if at_header:
            handler.wfile.write(b"HTTP/1.1 200 OK\r\nx-slow: ")
        else:
            handler.send_response(200)
            handler.send_header("content-length", str(len(published.blobs[published.model_digest])))
            handler.end_headers()
        with contextlib.suppress(OSError):  # the client has disconnected
            while not over.wait(0.05):
                handler.wfile.write(b"a")
        handler.close_connection = True
        return True

    return Registry(published, intercept=intercept)


@pytest.mark.parametrize("at_header", [True, False])
def test_manifest_that_drips_in_times_out(
    store: Store, published: Published, at_header: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network, "DOCUMENT_S", 0.5)
    over = threading.Event()
    with serving(dripping(published, over, "/manifests/", at_header)) as registry:
        try:
            with pytest.raises(UnreachableError, match=r"did not arrive within 0\.5 s"):
                pulled(store, registry.name)
        finally:
            over.set()


@pytest.mark.parametrize(
    ("part", "at_header"),
    [("/manifests/", True), ("/manifests/", False), ("/blobs/", True), ("/blobs/", False)],
)
def test_pull_that_drips_in_can_be_cancelled(
    store: Store, published: Published, part: str, at_header: bool
) -> None:
    over, cancelled = threading.Event(), threading.Event()
    registry = dripping(published, over, part, at_header)
    drip = registry.intercept
    errors: list[BaseException] = []

    def intercept(handler: BaseHTTPRequestHandler) -> bool:
        if part in handler.path:
            cancelled.set()
        return drip(handler)

    def work() -> None:
        try:
            pulled(store, registry.name, cancelled=cancelled)
        except BaseException as error:
            errors.append(error)

    registry.intercept = intercept
    with serving(registry):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join(PATIENCE_S / 4)
        ended = not thread.is_alive()
        over.set()
        thread.join(PATIENCE_S)
    assert ended
    assert [type(error) for error in errors] == [TransferCancelledError]

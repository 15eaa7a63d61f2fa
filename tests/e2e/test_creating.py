"""Creating models from files that take much time or memory, while others want answers."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from puna.gguf import FileType
from tests.convert.checkpoints import saved
from tests.e2e.canary import canary
from tests.e2e.servers import Server, add_model, running
from tests.model.models.parity import original
from tests.processes import children
from tests.store.store_files import sha256
from tests.tiny.llama import TinyLlama, tiny_llama_gguf
from tests.waiting import PATIENCE_S, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

#: Limit on the answers of others; without a separate process, such files block everything for 8 s.
_WITHIN_S = 3.0


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory, tiny_file: Path) -> Iterator[Server]:
    """Run a server for this module alone, whose processes and store nothing else changes."""
    with running(tmp_path_factory.mktemp("models")) as server:
        add_model(server, "tiny", tiny_file)
        yield server


def upload(server: Server, data: bytes) -> str:
    digest = sha256(data)
    assert server.http.post(f"/api/blobs/{digest}", content=data).status_code == 201
    return digest


def upload_folder(server: Server, folder: Path) -> dict[str, str]:
    return {path.name: upload(server, path.read_bytes()) for path in sorted(folder.iterdir())}


#: A safetensors file without tensors.
_WEIGHTS = len(b"{}").to_bytes(8, "little") + b"{}"


def creators(server: Server) -> list[psutil.Process]:
    return children("puna.store.creator", server.process.pid)


def blobs(server: Server) -> set[str]:
    return {path.name for path in (server.models / "blobs").iterdir()}


def largest_bytes(server: Server, over: threading.Event) -> int:
    """Return the most memory that the server or a process it started used before `over` was set."""
    most = 0
    while not over.wait(0.02):
        for process in (psutil.Process(server.process.pid), *creators(server)):
            with contextlib.suppress(psutil.Error):  # it has ended in the meantime
                most = max(most, process.memory_info().rss)
    return most


def settings_of_lists() -> dict[str, bytes]:
    return {"config.json": b'{"a": [' + b"[]," * 21_000_000 + b"[]]}", "model.safetensors": _WEIGHTS}


def deep_objects() -> dict[str, bytes]:
    # Fewer marks than the limit, but more memory than allowed.
    text = b'{"a": [' + b'{"a": {"b": 1}},' * 2_600_000 + b"{}]}"
    return {"config.json": text, "model.safetensors": _WEIGHTS}


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (settings_of_lists, "config.json has more than 8,000,000 commas and opening brackets"),
        (deep_objects, " MB of memory, the limit"),
    ],
)
def test_excessive_files_are_refused_while_others_are_answered(
    crowded: Server, files: Any, words: str
) -> None:
    digests = {name: upload(crowded, data) for name, data in files().items()}
    over = threading.Event()
    with ThreadPoolExecutor(1) as pool, canary(crowded, "/api/tags", model="tiny") as others:
        memory = pool.submit(largest_bytes, crowded, over)
        try:
            answer = crowded.http.post(
                "/api/create", json={"model": "m", "files": digests, "stream": False}, timeout=PATIENCE_S
            )
        finally:
            over.set()
    assert answer.status_code == 400
    assert words in answer.json()["error"]
    assert str(crowded.models) not in answer.text
    assert memory.result() < 2 << 30
    left = {digest.replace(":", "-") for digest in digests.values()}
    wait_until(lambda: not blobs(crowded) & left, "the uploads to be deleted")
    assert not [name for name in blobs(crowded) if name.startswith("tmp-")]
    others.check(_WITHIN_S)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a model file that takes some seconds to quantise."""
    config = TinyLlama(hidden=512, heads=8, kv_heads=8, feed_forward=4096, layers=6)
    return tiny_llama_gguf(tmp_path_factory.mktemp("gguf") / "large.gguf", config)


def test_two_models_are_created_at_a_time_and_others_are_told_to_wait(
    crowded: Server, tmp_path: Path
) -> None:
    files = upload_folder(crowded, saved(tmp_path / "published", original(TinyLlama())))
    body: dict[str, Any] = {"files": files, "quantize": FileType.Q8_0.label}

    def create(number: int) -> list[dict[str, Any]]:
        answer = crowded.http.post("/api/create", json={"model": f"made-{number}", **body})
        return [json.loads(line) for line in answer.text.splitlines()]

    most = 0
    with ThreadPoolExecutor(6) as pool, canary(crowded, "/api/tags") as others:
        answers = [pool.submit(create, number) for number in range(6)]
        while not all(answer.done() for answer in answers):
            most = max(most, len(creators(crowded)))
    assert [answer.result()[-1] for answer in answers] == [{"status": "success"}] * 6
    waits = [answer.result()[0] for answer in answers if "waiting" in answer.result()[0]["status"]]
    assert len(waits) >= 3
    assert {"status": "waiting for 2 other models to be created"} in waits
    assert 1 <= most <= 2
    left = {digest.replace(":", "-") for digest in files.values()}
    wait_until(lambda: not blobs(crowded) & left, "the end of the uploads")
    for number in range(6):
        crowded.client.delete(f"made-{number}")
    others.check(_WITHIN_S)


def test_disconnecting_stops_the_creation_and_deletes_its_files(crowded: Server, large: Path) -> None:
    digest = crowded.client.create_blob(large)
    before = blobs(crowded)
    body = {"model": "left", "files": {"large.gguf": digest}, "quantize": "q4_K_M", "stream": False}
    with crowded.open_request("/api/create", body):
        wait_until(lambda: bool(blobs(crowded) - before), "a file to be written")
        (creator,) = creators(crowded)
    wait_until(lambda: not creator.is_running(), "the end of the process")
    wait_until(lambda: blobs(crowded) == before, "the end of what was written")
    assert crowded.http.post("/api/show", json={"model": "left"}).status_code == 404


def test_killed_creator_process_gives_a_readable_error(crowded: Server, large: Path) -> None:
    digest = crowded.client.create_blob(large)
    body = {"model": "killed", "files": {"large.gguf": digest}, "quantize": "q4_K_M", "stream": False}
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(crowded.http.post, "/api/create", json=body)
        wait_until(lambda: bool(creators(crowded)), "a process")
        creators(crowded)[0].kill()
    answered: httpx.Response = answer.result()
    assert answered.status_code == 400
    assert "probably because memory ran out" in answered.json()["error"]


def test_creation_without_progress_times_out(tmp_path: Path, large: Path) -> None:
    with running(tmp_path / "models", PUNA_CREATE_TIMEOUT="10ms") as server:
        digest = server.client.create_blob(large)
        body = {"model": "slow", "files": {"large.gguf": digest}, "quantize": "q4_K_M", "stream": False}
        answer = server.http.post("/api/create", json=body)
        assert answer.status_code == 400
        assert "(PUNA_CREATE_TIMEOUT)" in answer.json()["error"]
        wait_until(lambda: not creators(server), "the end of the process")

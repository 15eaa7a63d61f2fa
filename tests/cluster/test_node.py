"""The agent of a node: how it gets blobs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from puna.cluster.asking import NodeLostError
from puna.cluster.node import PART_BYTES, DiskError, NodeAgent, Source
from puna.errors import StoreError
from puna.store.blobs import Blobs, file_digest
from tests.cluster.conftest import HAS_RAY

pytestmark = pytest.mark.skipif(not HAS_RAY, reason="ray is not installed: pip install '.[test]'")


class Remote:
    """An agent in this process, called as Ray calls one; `gone` after that number of parts."""

    def __init__(self, agent: NodeAgent, gone: int = 1000) -> None:
        self._agent = agent
        self._parts_left = gone
        self.read = SimpleNamespace(remote=self._read)

    def _read(self, *arguments: Any) -> asyncio.Task[bytes]:
        self._parts_left -= 1
        reading = asyncio.create_task(self._agent.read(*arguments) if self._parts_left >= 0 else _lost())
        reading.add_done_callback(lambda task: task.cancelled() or task.exception())  # nobody may ask for it
        return reading


async def _lost() -> bytes:
    from ray.exceptions import ActorUnavailableError

    raise ActorUnavailableError("it is being restarted", None)


@pytest.fixture
def original(tmp_path: Path) -> Path:
    """A file of three parts, the last one short, that is no blob."""
    path = tmp_path / "original.gguf"
    path.write_bytes(b"begin" + bytes(2 * PART_BYTES) + b"end")
    return path


def agent(folder: Path, monkeypatch: pytest.MonkeyPatch) -> NodeAgent:
    monkeypatch.setenv("PUNA_MODELS", str(folder))
    return NodeAgent()


def fetched(place: NodeAgent, original: Path, *sources: Source) -> bytes:
    digest, size = file_digest(original), original.stat().st_size
    found = Path(asyncio.run(place.fetch(digest, size, sources)))
    assert asyncio.run(place.held([digest, "sha256:" + "0" * 64])) == [digest]
    return found.read_bytes()


def test_file_arrives_in_parts_from_all_that_have_it(
    original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head, other, new = (agent(tmp_path / name, monkeypatch) for name in ("head", "other", "new"))
    blobs = Blobs(tmp_path / "other" / "blobs")
    blobs.folder.mkdir(parents=True)
    blobs.path(file_digest(original)).write_bytes(original.read_bytes())
    sources = [Source("head", Remote(head), str(original)), Source("other", Remote(other))]
    assert fetched(new, original, *sources) == original.read_bytes()


@pytest.mark.parametrize("parts", [0, 1, 2])
def test_parts_of_a_lost_node_come_from_another(
    parts: int, original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head, new = (agent(tmp_path / name, monkeypatch) for name in ("head", "new"))
    lost = Source("lost", Remote(head, gone=parts), str(original))
    whole = Source("whole", Remote(head), str(original))
    assert fetched(new, original, lost, whole) == original.read_bytes()


def test_loss_of_all_nodes_that_have_a_file_differs_from_a_file_that_cannot_be_read(
    original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head, new = (agent(tmp_path / name, monkeypatch) for name in ("head", "new"))
    with pytest.raises(NodeLostError, match=r"no node could send bytes 0 to .*: node a is lost"):
        fetched(new, original, Source("a", Remote(head, gone=0), str(original)))
    with pytest.raises(StoreError, match=r"no node could send bytes 0 to .*absent: No such file") as raised:
        fetched(new, original, Source("a", Remote(head), str(tmp_path / "absent")))
    assert "Traceback" not in str(raised.value)
    with pytest.raises(StoreError, match="no node of the cluster has the file sha256:") as nowhere:
        fetched(new, original)
    assert not isinstance(nowhere.value, DiskError)
    assert [path for path in (tmp_path / "new").rglob("*") if path.is_file()] == []


def test_failures_of_the_own_disk_are_told_from_others(
    original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new, digest = agent(tmp_path / "new", monkeypatch), file_digest(original)
    source = Source("head", Remote(new), str(original))
    with pytest.raises(DiskError, match=f"a file has {10**18} bytes, and "):
        asyncio.run(new.fetch(digest, 10**18, [source]))
    assert list((tmp_path / "new" / "blobs").iterdir()) == []
    (tmp_path / "new" / "blobs").rmdir()
    (tmp_path / "new" / "blobs").write_text("this is no folder")
    with pytest.raises(DiskError, match="cannot write into"):
        fetched(new, original, source)

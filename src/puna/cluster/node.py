"""A node of the cluster: the actor that knows it and keeps its blobs, and the head's view of it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import time
from collections import deque
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from puna import __version__
from puna.cluster.asking import NodeLostError, ask
from puna.cluster.settings import memory_limit
from puna.cluster.split_plan import ModelSizes
from puna.config import models_dir
from puna.errors import PunaError, StoreError
from puna.machine import available_memory, total_memory
from puna.protocol import Load
from puna.store.blobs import Blobs, BlobWriter, storage_errors
from puna.system.processors import usable_processors

T = TypeVar("T")

#: Blobs travel in parts of this size, a few at a time.
PART_BYTES: Final = 8 << 20
_PARTS_AT_ONCE: Final = 4
#: How long a part may take before another node is asked for it.
_PART_TIMEOUT_S: Final = 60.0
#: How long a node that could not keep a file is given no others.
_DISK_PAUSE_S: Final = 60.0

#: The variable that names the file by which a node's operator and its agent tell each other of its end.
LEAVING_FILE: Final = "PUNA_CLUSTER_LEAVING_FILE"


class DiskError(StoreError):
    """A node cannot keep a file: its disk is full, or cannot be written."""


def leaving_file() -> str:
    return os.environ.get(LEAVING_FILE, "")


@dataclass(frozen=True)
class NodeFacts:
    """The size of a node, and how much of it is free."""

    hostname: str
    version: str  # of Puna
    processors: int
    memory_bytes: int  # in all, or as much as models may take (PUNA_CLUSTER_MEMORY_MB)
    available_bytes: int
    free_disk_bytes: int
    leaving: bool = False  # its operator has asked it to end
    kernels: str = ""
    read_speed: float = 1.0  # bytes a second that decoding reads


class NodeAgent:
    """The actor of a node. Its blobs are those of `PUNA_MODELS` there."""

    def __init__(self) -> None:
        self._blobs = Blobs(models_dir() / "blobs")
        self._fetching: dict[str, asyncio.Task[str]] = {}
        self._fetched: dict[str, int] = {}  # bytes so far, by digest
        self._computing: tuple[str, float] | None = None  # kernels, speed of reading

    async def facts(self) -> NodeFacts:
        leaving = Path(leaving_file())
        with contextlib.suppress(OSError):
            os.utime(leaving)  # so that its process sees that the head knows
        if self._computing is None:
            from puna.cluster.measuring import kernels, read_speed  # the head's server never computes

            self._computing = await asyncio.to_thread(lambda: (kernels(), read_speed()))
        folder = models_dir()
        while not folder.exists():  # it is made with its first blob
            folder = folder.parent
        return NodeFacts(
            hostname=socket.gethostname(),
            version=__version__,
            processors=usable_processors(),
            memory_bytes=min(total_memory(), memory_limit()),
            available_bytes=available_memory(),
            free_disk_bytes=shutil.disk_usage(folder).free,
            leaving=leaving.is_file(),
            kernels=self._computing[0],
            read_speed=self._computing[1],
        )

    async def sizes(self, load: Load) -> ModelSizes:
        """Return the sizes of a model whose files are here. Raises PunaError if it cannot be split."""
        from puna.cluster.sizes import model_sizes

        return await asyncio.to_thread(model_sizes, load)

    async def let_go(self) -> None:
        """Note that nothing is needed of this node any more, for the process that waits to end it."""
        Path(leaving_file()).unlink(missing_ok=True)

    async def held(self, digests: Sequence[str]) -> list[str]:
        """Return which of these blobs are here."""
        return [digest for digest in digests if self._blobs.path(digest).is_file()]

    async def read(self, path: str, digest: str, begin: int, length: int) -> bytes:
        """Return a part of a file, or of a blob without a path. Raises StoreError."""
        place = Path(path) if path else self._blobs.path(digest)
        return await asyncio.to_thread(_read, place, begin, length)

    async def fetch(self, digest: str, size: int, sources: Sequence[Source]) -> str:
        """Return the path of a blob of `size` bytes, copied from `sources` if it is not here.

        Raises StoreError if it cannot be copied, DiskError if the reason is this node's disk, and
        NodeLostError if no source answers.
        """
        if (path := self._blobs.path(digest)).is_file():
            return str(path)
        task = self._fetching.get(digest)
        if task is None:
            task = self._fetching[digest] = asyncio.create_task(self._fetch(digest, size, sources))
            task.add_done_callback(lambda _: self._fetching.pop(digest, None))
        return await asyncio.shield(task)

    async def fetched(self, digest: str) -> int:
        """Return how many bytes of a blob were copied so far."""
        return self._fetched.get(digest, 0)

    async def _fetch(self, digest: str, size: int, sources: Sequence[Source]) -> str:
        places = list(sources)
        if not places:
            raise StoreError(f"no node of the cluster has the file {digest}")
        ahead: deque[tuple[int, Source, Any]] = deque()
        with self._writer(size) as writer:
            parts = [(begin, min(PART_BYTES, size - begin)) for begin in range(0, size, PART_BYTES)]
            for number, (begin, length) in enumerate(parts):
                while len(ahead) < _PARTS_AT_ONCE and number + len(ahead) < len(parts):
                    next_number = number + len(ahead)
                    place = places[next_number % len(places)]
                    ahead.append((next_number, place, place.part(digest, *parts[next_number])))
                _, place, reply = ahead.popleft()
                data = await _arrived(reply, [place, *places], digest, begin, length)
                with _disk_errors():
                    await asyncio.to_thread(writer.write, data)
                self._fetched[digest] = begin + length
            with _disk_errors():
                await asyncio.to_thread(writer.commit, digest)
        return str(self._blobs.path(digest))

    def _writer(self, size: int) -> BlobWriter:
        """Return a writer of a blob of `size` bytes. Raises DiskError if the disk has no room for it."""
        folder = self._blobs.folder
        with _disk_errors():
            with storage_errors("write into", folder):
                folder.mkdir(parents=True, exist_ok=True)
                free = shutil.disk_usage(folder).free
            if free < size:
                raise StoreError(f"a file has {size} bytes, and {free} are free on the disk")
            return BlobWriter(folder)


@dataclass(frozen=True)
class Source:
    """A node that has a file, which is in its store unless `path` says where it is."""

    node: str
    agent: Any
    path: str = ""

    def part(self, digest: str, begin: int, length: int) -> Any:
        """Ask for a part of the file."""
        return self.agent.read.remote(self.path, digest, begin, length)


def _read(path: Path, begin: int, length: int) -> bytes:
    with storage_errors("read", path), path.open("rb") as file:
        file.seek(begin)
        return file.read(length)


@contextlib.contextmanager
def _disk_errors() -> Iterator[None]:
    """Tell failures of this node's own disk from those of others."""
    try:
        yield
    except StoreError as error:
        raise DiskError(str(error)) from error


async def _arrived(reply: Any, places: Sequence[Source], digest: str, begin: int, length: int) -> bytes:
    """Return a part that the first of `places` was asked for, or else from one of the others."""
    problem: PunaError | None = None
    for number, place in enumerate(places):
        asked = place.part(digest, begin, length) if number else reply
        try:
            data: bytes = await ask(asked, place.node, _PART_TIMEOUT_S)
        except PunaError as error:
            problem = error
            continue
        if len(data) == length:
            return data
        problem = StoreError(f"{len(data)} bytes instead of {length}")
    kind = NodeLostError if isinstance(problem, NodeLostError) else StoreError
    raise kind(f"no node could send bytes {begin} to {begin + length} of {digest}: {problem}")


@dataclass(eq=False)
class Node:
    """The head's view of a node."""

    id: str  # Ray's
    address: str
    agent: Any
    facts: NodeFacts
    draining: bool = False
    leaving: bool = False  # its operator has asked it to end, and it is being drained for that
    asked: bool = False  # for its facts
    lost: asyncio.Event = field(default_factory=asyncio.Event)
    #: Held from when a load is told how much memory there is until its model counts as one of those here.
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    _disk_problem: tuple[str, float] = ("", 0.0)  # and until when it counts, by time.monotonic
    _loads: int = 0  # under way
    _loaded: asyncio.Event = field(default_factory=asyncio.Event)  # set when one has ended

    @property
    def name(self) -> str:
        """The host's name and the beginning of Ray's id, since a host may have several nodes."""
        return f"{self.facts.hostname}-{self.id[:6]}"

    @property
    def usable(self) -> bool:
        return not (self.draining or self.lost.is_set())

    @property
    def disk_problem(self) -> str:
        """The reason why it could not keep a file in the last minute; empty if there is none."""
        problem, until_s = self._disk_problem
        return problem if time.monotonic() < until_s else ""

    def note_disk_problem(self, problem: str) -> None:
        self._disk_problem = problem, time.monotonic() + _DISK_PAUSE_S

    async def while_there(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of `work`, which is cancelled if the node is lost. Raises NodeLostError then."""
        working = asyncio.create_task(work)
        lost = asyncio.create_task(self.lost.wait())
        try:
            await asyncio.wait((working, lost), return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                return working.result()
            raise NodeLostError(f"node {self.name} is lost")
        finally:
            lost.cancel()
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)

    @contextlib.contextmanager
    def loads(self) -> Iterator[None]:
        """Count a load within the block."""
        self._loads += 1
        try:
            yield
        finally:
            self._loads -= 1
            self._loaded.set()

    async def at_rest(self) -> None:
        """Wait until no load is under way."""
        while self._loads:
            self._loaded.clear()
            await self._loaded.wait()


def check_version(facts: NodeFacts) -> None:
    """Raise PunaError unless a node runs this version."""
    if facts.version != __version__:
        raise PunaError(f"node {facts.hostname} has Puna {facts.version}, and the head {__version__}")

"""A replica: a runner process on some node, the actor that owns it, and the server's connection to it."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import itertools
import os
import secrets
import ssl
import time
from dataclasses import dataclass, field
from typing import Any, Final

from puna.cluster.asking import NodeLostError, actor_on, ask
from puna.cluster.node import Node
from puna.errors import PunaError, RunnerError
from puna.protocol import Pong
from puna.runner.client import RunnerClient
from puna.runner.spawned import SpawnedProcess, death
from puna.runner.tls import tls_contexts
from puna.system.processes import notice_loss

#: What a connection sends first: the secret that the actor gave to the head.
_TOKEN_BYTES: Final = 32
_START_TIMEOUT_S: Final = 60.0
#: How long an actor waits for the head's connection.
_CONNECT_TIMEOUT_S: Final = 30.0
_PIECE_BYTES: Final = 1 << 18
#: How long to ask the actor of a runner whose connection broke what became of it.
_OBITUARY_S: Final = 2.0


_numbers = itertools.count(1)


class RunnerHost:
    """The actor that owns a runner process, and passes on what the head's connection brings."""

    def __init__(self) -> None:
        self._process: SpawnedProcess | None = None
        self._pumping: asyncio.Task[None] | None = None
        self._cut_off: bool | None = None  # the head has gone before the process; None while both are there

    async def start(self, address: str) -> tuple[int, bytes]:
        """Start the process, and return the port at `address` and the secret to connect with."""
        process, reader, writer = await SpawnedProcess.spawn()
        self._process = process
        contexts = tls_contexts(os.environ)
        secret = secrets.token_bytes(_TOKEN_BYTES)
        connected: asyncio.Future[tuple[asyncio.StreamReader, asyncio.StreamWriter]]
        connected = asyncio.get_running_loop().create_future()

        async def accept(theirs: asyncio.StreamReader, ours: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, TimeoutError):
                given = await asyncio.wait_for(theirs.readexactly(_TOKEN_BYTES), _CONNECT_TIMEOUT_S)
                if hmac.compare_digest(given, secret) and not connected.done():
                    connected.set_result((theirs, ours))
                    return
            ours.close()

        server = await asyncio.start_server(accept, address, 0, ssl=contexts[0] if contexts else None)
        self._pumping = asyncio.create_task(self._pump(server, connected, reader, writer))
        return server.sockets[0].getsockname()[1], secret

    async def memory(self) -> int:
        """Return the bytes of memory that the process takes."""
        assert self._process is not None
        return self._process.memory_bytes

    async def kill(self) -> None:
        """Kill the process."""
        assert self._process is not None
        self._process.end()

    async def ended(self, patience_s: float) -> tuple[int | None, list[str]] | None:
        """Wait for the process to end, killing it after `patience_s`; return its status and last lines.

        Returns None if it ended because the connection with the head broke.
        """
        assert self._process is not None
        await self._process.ended(patience_s)
        await self._process.last_words()
        return None if self._cut_off else (self._process.returncode, self._process.last_lines)

    async def _pump(
        self,
        server: asyncio.Server,
        connected: asyncio.Future[tuple[asyncio.StreamReader, asyncio.StreamWriter]],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        """Copy both ways between the head and the process, until either has gone."""
        try:
            theirs, ours = await asyncio.wait_for(connected, _CONNECT_TIMEOUT_S)
        except TimeoutError:
            writer.close()
            return
        finally:
            server.close()
        notice_loss(ours.get_extra_info("socket"))

        async def copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            """Pass on bytes as they come; close `sink` when either side has ended."""
            with contextlib.suppress(OSError):
                while data := await source.read(_PIECE_BYTES):
                    sink.write(data)
                    await sink.drain()
            if self._cut_off is None:  # before closing one end ends the other
                self._cut_off = theirs.at_eof() or theirs.exception() is not None
            sink.close()

        await asyncio.gather(copy(theirs, writer), copy(reader, ours))


class RemoteProcess:
    """A runner process on another node; see `puna.runner.client.Process`."""

    def __init__(self, node: Node, actor: Any) -> None:
        self.running = True
        self.memory_bytes = 0
        self.last_line = ""
        self._node = node
        self._actor = actor
        self._killed_for: str | None = None
        self._ending: tuple[int | None, list[str]] | None = None  # exit status and last lines, if known

    def note(self, line: str) -> None:
        self.last_line = line

    def kill(self, reason: str) -> None:
        self._killed_for = reason
        self.end()

    def end(self) -> None:
        self._actor.kill.remote()

    async def ended(self, patience_s: float) -> None:
        if not self.running:
            return
        asked = ask(self._actor.ended.remote(patience_s), self._node.name, patience_s + _OBITUARY_S)
        with contextlib.suppress(PunaError):  # it stays unknown how it ended
            self._ending = await self._node.while_there(asked)
        self.running = False

    async def last_words(self) -> None:
        """Do nothing: the actor has waited for them."""

    async def close(self) -> None:
        import ray

        self.running = False
        with contextlib.suppress(Exception):  # it is gone already
            ray.kill(self._actor)

    def death(self, *, loaded: bool) -> RunnerError:
        if self._killed_for is not None:
            return RunnerError(f"the model runner was ended: {self._killed_for}")
        if self._ending is None:
            return NodeLostError(f"the connection with node {self._node.name} is lost")
        return death(*self._ending, loaded=loaded)

    async def measure(self) -> None:
        """Ask how much memory it takes. Raises `NodeLostError`."""
        self.memory_bytes = await ask(self._actor.memory.remote(), self._node.name, _OBITUARY_S)


async def start_runner(node: Node, tls: ssl.SSLContext | None) -> tuple[RunnerClient, RemoteProcess]:
    """Start a runner process on a node, and connect with it. Raises `RunnerError`."""
    actor = actor_on(node.id, RunnerHost)
    process = RemoteProcess(node, actor)
    try:
        port, secret = await ask(actor.start.remote(node.address), node.name, _START_TIMEOUT_S)
        reader, writer = await asyncio.wait_for(
            asyncio.open_connection(node.address, port, ssl=tls, server_hostname="" if tls else None),
            _CONNECT_TIMEOUT_S,
        )
        writer.write(secret)
        notice_loss(writer.get_extra_info("socket"))
    except (OSError, TimeoutError) as error:
        await process.close()
        raise NodeLostError(f"cannot connect with node {node.name}: {error}") from error
    except BaseException:
        await process.close()
        raise
    return RunnerClient(process, reader, writer), process


@dataclass(eq=False)
class StageRunner:
    """A stage of a split model other than the first: layers [begin, end) on a node."""

    node: Node
    client: RunnerClient
    process: RemoteProcess
    begin: int
    end: int
    cache_bytes: int = 0  # that its cache may take
    pong: Pong | None = None  # the newest


@dataclass(eq=False)
class Replica:
    """A loaded model on a node, or its first layers there and the others on other nodes."""

    node: Node
    client: RunnerClient
    process: RemoteProcess
    stages: list[StageRunner] = field(default_factory=list)  # after the first; empty: all is on `node`
    draining: bool = False
    pong: Pong | None = None  # the newest
    users: int = 0  # requests
    idle_since_s: float = field(default_factory=time.monotonic)
    version: int = 0  # of its prefixes that the router knows
    name: str = field(default_factory=lambda: f"r{next(_numbers)}")

    @property
    def alive(self) -> bool:
        clients = self.clients
        return all(client.alive for client in clients) and not any(node.lost.is_set() for node in self.nodes)

    @property
    def clients(self) -> list[RunnerClient]:
        return [self.client, *(stage.client for stage in self.stages)]

    @property
    def nodes(self) -> list[Node]:
        return [self.node, *(stage.node for stage in self.stages)]

    @property
    def processes(self) -> list[RemoteProcess]:
        return [self.process, *(stage.process for stage in self.stages)]

    def kill(self, reason: str) -> None:
        """Kill its processes."""
        for client in self.clients:
            client.kill(reason)

    async def close(self) -> None:
        """End its processes, first the one that the others work for."""
        try:
            await self.client.close()
        finally:
            await asyncio.gather(*(stage.client.close() for stage in self.stages), return_exceptions=True)

    @property
    def usable(self) -> bool:
        """Whether it takes new requests."""
        return self.alive and not self.draining and not any(node.draining for node in self.nodes)

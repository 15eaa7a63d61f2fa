"""A replica: a runner process on some node, and the server's connection to it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import ssl
import time
from dataclasses import dataclass, field
from typing import Any, Final

from puna.cluster.asking import NodeLostError, actor_on, ask
from puna.cluster.node import Node
from puna.cluster.runner_host import RunnerHost
from puna.errors import PunaError, RunnerError
from puna.protocol import Pong
from puna.runner.client import RunnerClient
from puna.runner.peers import CONNECT_TIMEOUT_S, Hello
from puna.runner.spawned import death
from puna.system.processes import notice_loss

_START_TIMEOUT_S: Final = 60.0
#: How long to ask the actor of a runner whose connection broke what became of it.
_OBITUARY_S: Final = 2.0


_numbers = itertools.count(1)


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


async def start_runner(node: Node, tls: ssl.SSLContext | None) -> tuple[RunnerClient, RemoteProcess]:
    """Start a runner process on a node, and connect with it. Raises `RunnerError`."""
    actor = actor_on(node.id, RunnerHost)
    process = RemoteProcess(node, actor)
    try:
        port, secret = await ask(actor.start.remote(node.address), node.name, _START_TIMEOUT_S)
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(
                node.address, port, ssl=tls, server_hostname="" if tls else None
            )
        writer.write(Hello().introduced(secret))
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

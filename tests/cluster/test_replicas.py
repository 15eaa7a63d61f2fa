"""The replicas of a model, without Ray."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from puna.cluster import replicas as replicas_module
from puna.cluster.node import Node, NodeFacts
from puna.cluster.replica import Replica
from puna.cluster.replicas import Nodes, Replicas
from puna.cluster.settings import ClusterSettings
from puna.errors import RunnerError
from puna.protocol import Load, Loaded, Pong
from tests.waiting import PATIENCE_S


class Client:
    """A client whose first ping is answered when it is cancelled, as `wait_for` of Python 3.11 does."""

    def __init__(self) -> None:
        self.info = Loaded(context_length=64, parallel=1, weight_bytes=1, cache_bytes=0)
        self.alive = True
        self.asked = asyncio.Event()
        self.cancelled = 0

    async def ping(self, timeout_s: float) -> Pong:
        self.asked.set()
        try:
            await asyncio.sleep(PATIENCE_S)
        except asyncio.CancelledError:
            self.cancelled += 1
            if self.cancelled > 1:
                raise
        return Pong(
            id=1, active=0, running=0, step_age_s=0, cache_bytes=0, cells=[], evicted=0, memory_bytes=0
        )

    async def close(self) -> None:
        self.alive = False

    def death(self) -> RunnerError:
        return RunnerError("it was closed")


def test_model_is_closed_though_a_cancellation_gets_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas_module, "_HEARTBEAT_S", 0.0)

    async def scenario() -> None:
        client = Client()
        node = Node("node", "192.0.2.1", None, NodeFacts("box", "", 1, 1, 1, 1))
        process = SimpleNamespace(memory_bytes=0)

        async def place(*_: Any, **__: Any) -> Replica:
            return Replica(node, cast(Any, client), cast(Any, process))

        cluster = SimpleNamespace(
            settings=ClusterSettings(), keep_alive_s=60.0, step_timeout_s=60.0, nodes=[node],
            promised=lambda node: 0, allowed=lambda node: 1, place=place, forget=lambda replicas: None,
        )  # fmt: skip
        model = Replicas(cast(Nodes, cluster))
        await model.load(Load(path="", num_ctx=64))
        await client.asked.wait()
        await asyncio.wait_for(model.close(), 5.0)
        assert (client.alive, client.cancelled) == (False, 1)

    asyncio.run(scenario())

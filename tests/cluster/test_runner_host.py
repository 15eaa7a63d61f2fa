"""The actor that owns a runner process, without Ray."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys

import pytest

from puna.cluster.runner_host import RunnerHost
from puna.protocol import Load, Ping, pack
from puna.runner.peers import Hello
from puna.store.bundled import DEMO_FILE
from tests.waiting import PATIENCE_S

ADDRESS = "127.0.0.1"


async def connected(host: RunnerHost) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Start a runner, and return a connection over which it has answered."""
    port, secret = await host.start(ADDRESS)
    reader, writer = await asyncio.open_connection(ADDRESS, port)
    writer.write(Hello().introduced(secret) + pack(Load(path=str(DEMO_FILE), num_ctx=64)))
    assert await reader.read(1)
    return reader, writer


@pytest.mark.slow
def test_runner_that_ends_with_its_connection_has_not_crashed() -> None:
    async def cut_off() -> object:
        host = RunnerHost()
        _, writer = await connected(host)
        writer.transport.abort()
        return await host.ended(PATIENCE_S)

    assert asyncio.run(cut_off()) is None


@pytest.mark.slow
def test_runner_ends_with_its_actor() -> None:
    async def orphaned() -> object:
        host = RunnerHost()
        reader, writer = await connected(host)
        assert host._lifeline is not None
        host._lifeline.close()  # as the system does when the actor's process ends
        async with asyncio.timeout(PATIENCE_S):
            await reader.read()
        assert host._process is not None
        await host._process.ended(PATIENCE_S)
        writer.close()
        return host._process.returncode

    assert asyncio.run(orphaned()) == 0


@pytest.mark.slow
def test_runner_that_was_killed_has_crashed() -> None:
    async def killed() -> object:
        host = RunnerHost()
        reader, writer = await connected(host)
        writer.write(pack(Ping(id=1)) * 1000)  # unread messages break the connection in another way
        await host.kill()
        with contextlib.suppress(ConnectionResetError):
            await reader.read()
        ended = await host.ended(PATIENCE_S)
        writer.close()
        return ended and ended[0]

    assert asyncio.run(killed()) == -signal.SIGKILL


def test_actor_imports_no_more_than_it_needs() -> None:
    code = "import sys, puna.cluster.runner_host; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {*done.stdout.split()} & {"numpy", "ray", "puna.store", "puna.cluster.node"}

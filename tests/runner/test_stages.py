"""Stages of a split model in processes of their own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import ssl
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from puna.cluster.credentials import init, protection
from puna.errors import PunaError, RunnerError, UnsupportedModelError
from puna.ops import default_backend
from puna.options import Options
from puna.protocol import Generate, Load, SplitLoad, StageAddress
from puna.runner.client import LocalRunner
from puna.runner.tls import tls_contexts
from tests.processors import NOT_BUILT
from tests.runner.running import tokens_of
from tests.tiny.llama import TinyLlama, tiny_llama_gguf
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.slow

SECRET = bytes(range(32))
LAYERS = 3


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stages")
    return tiny_llama_gguf(folder / "model.gguf", TinyLlama(layers=LAYERS, context=512))


def load(path: Path, split: SplitLoad | None = None) -> Load:
    return Load(path=str(path), num_ctx=512, num_thread=1, split=split)


@asynccontextmanager
async def runners(count: int) -> AsyncIterator[list[LocalRunner]]:
    found = [await LocalRunner.spawn() for _ in range(count)]
    try:
        yield found
    finally:
        for runner in found:
            with contextlib.suppress(PunaError):
                await runner.close()


@asynccontextmanager
async def stages(path: Path, cuts: list[int]) -> AsyncIterator[list[LocalRunner]]:
    """Load a model in stages; the last ones begin at `cuts`."""
    ends = [*cuts[1:], LAYERS]
    others = tuple(
        StageAddress(node=f"n{begin}", begin=begin, end=end, address="127.0.0.1")
        for begin, end in zip(cuts, ends, strict=True)
    )
    async with runners(len(cuts) + 1) as (first, *later):
        for number, runner in enumerate(later, 1):
            await runner.load(load(path, SplitLoad(number=number, stages=others, secret=SECRET)))
        known = tuple(
            msgspec.structs.replace(each, port=runner.info.port)
            for each, runner in zip(others, later, strict=True)
        )
        await first.load(load(path, SplitLoad(number=0, stages=known, secret=SECRET)))
        yield [first, *later]


async def tokens(runner: LocalRunner, count: int = 20) -> list[int]:
    options = Options(num_predict=count, temperature=0.0)
    return await tokens_of(runner, Generate(prompt=[1, *range(3, 40)] * 8, options=options, ignore_eos=True))


def test_tokens_are_those_of_one_process(path: Path) -> None:
    async def both() -> tuple[list[int], list[int]]:
        async with runners(1) as [whole]:
            await whole.load(load(path))
            expected = await tokens(whole)
        async with stages(path, [1, 2]) as parts:
            found = await tokens(parts[0])
            pong = await parts[0].ping()
            assert [cost.rows for cost in pong.stages] == [304 + 19] * 3
            assert all(cost.compute_us for cost in pong.stages)
            back, second, third = (cost.received_bytes for cost in pong.stages)
            states = 4 * TinyLlama().hidden * (304 + 19)
            assert (
                0 < back < states < second < third < 1.2 * states
            )  # the third is told of the second's costs
            for part in parts:
                assert (await part.ping()).cache_bytes
        return expected, found

    expected, found = asyncio.run(both())
    assert found == expected
    assert len(found) == 20


@pytest.mark.parametrize("victim", [1, 2])
def test_end_of_a_stage_ends_the_answer_with_its_name(path: Path, victim: int) -> None:
    async def killed() -> None:
        async with stages(path, [1, 2]) as parts:
            asking = asyncio.create_task(tokens(parts[0], 10**6))
            while not (await parts[0].ping()).stages[0].rows:
                await asyncio.sleep(0)
            os.kill(parts[victim].pid, signal.SIGKILL)
            await asyncio.wait_for(asking, PATIENCE_S)

    with pytest.raises(RunnerError, match=r"a part of the model is lost: .*stage [23] \(layers "):
        asyncio.run(killed())


@asynccontextmanager
async def second_stage(path: Path, stage: LocalRunner) -> AsyncIterator[StageAddress]:
    """Load all layers but the first in a process, and give the address at which it waits."""
    address = StageAddress(node="n", begin=1, end=LAYERS, address="127.0.0.1")
    await stage.load(load(path, SplitLoad(number=1, stages=(address,), secret=SECRET)))
    yield msgspec.structs.replace(address, port=stage.info.port)


@pytest.mark.skipif(default_backend().name != "cpu", reason=NOT_BUILT)
@pytest.mark.parametrize("allowed", [False, True])
def test_other_kernels_of_a_stage_are_refused_unless_allowed(
    path: Path, allowed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def mixed() -> list[int]:
        async with runners(1) as [first]:
            monkeypatch.setenv("PUNA_OPS", "reference")
            async with runners(1) as [second], second_stage(path, second) as address:
                split = SplitLoad(number=0, stages=(address,), secret=SECRET, any_kernels=allowed)
                await first.load(load(path, split))
                return await tokens(first, 3)

    if allowed:
        assert len(asyncio.run(mixed())) == 3
        return
    with pytest.raises(UnsupportedModelError, match=r"different kernels \(.*PUNA_SPLIT_KERNELS=any"):
        asyncio.run(mixed())


def test_connections_of_stages_need_certificates_of_the_same_cluster(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contexts = {}
    for name in ("theirs", "ours"):
        init(tmp_path / name, ["127.0.0.1"])
        given = protection("127.0.0.1", tmp_path / name, {})
        contexts[name] = tls_contexts(given)
    for variable, text in given.items():
        monkeypatch.setenv(variable, text)
    foreign = contexts["theirs"]
    assert foreign is not None
    foreign[1].verify_mode = ssl.CERT_NONE  # it would trust anyone

    def is_refused(port: int, context: ssl.SSLContext | None) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", port)) as plain:
                stranger = plain if context is None else context.wrap_socket(plain)
                stranger.sendall(hello(msgspec.msgpack.encode({})))
                return stranger.recv(1) == b""
        except OSError:
            return True

    async def both() -> tuple[list[int], list[int]]:
        async with runners(1) as [whole]:
            await whole.load(load(path))
            expected = await tokens(whole, 5)
        async with runners(2) as (first, second), second_stage(path, second) as address:
            assert is_refused(address.port, None)
            assert is_refused(address.port, foreign[1])
            await first.load(load(path, SplitLoad(number=0, stages=(address,), secret=SECRET)))
            return expected, await tokens(first, 5)

    expected, found = asyncio.run(both())
    assert found == expected


def hello(body: bytes, secret: bytes = SECRET) -> bytes:
    return secret + struct.pack("<I", len(body)) + body


@pytest.mark.parametrize(
    ("sent", "lives"),
    [
        (b"GET / HTTP/1.1\r\nHost: stage\r\n\r\n" + bytes(64), True),
        (hello(msgspec.msgpack.encode({}), bytes(32)), True),
        (SECRET + struct.pack("<I", 2**31), True),
        (hello(b"\xc1"), True),
        (hello(msgspec.msgpack.encode({})) + b"\xff" * 64, False),
        (hello(msgspec.msgpack.encode({})) + struct.pack("<4sIQ", b"puna", 2**31, 0), False),
        (hello(msgspec.msgpack.encode({})) + struct.pack("<4sIQ", b"puna", 8, 2**60), False),
    ],
    ids=["http", "wrong secret", "long hello", "no hello", "no frame", "long message", "long arrays"],
)
def test_strangers_are_refused_and_garbage_of_a_stage_ends_it(path: Path, sent: bytes, lives: bool) -> None:
    async def attacked() -> bool:
        address = StageAddress(node="n", begin=1, end=LAYERS, address="127.0.0.1")
        async with runners(1) as [stage]:
            await stage.load(load(path, SplitLoad(number=1, stages=(address,), secret=SECRET)))
            where = ("127.0.0.1", stage.info.port)
            with socket.create_connection(where) as attacker:
                if not lives:  # it begins once it knows where its results go
                    fetching = socket.create_connection(where)
                    fetching.sendall(hello(msgspec.msgpack.encode({"returns": True})))
                attacker.sendall(sent)
                with contextlib.suppress(ConnectionResetError):
                    while attacker.recv(1):
                        pass
            if lives:
                await stage.ping()
                return True
            fetching.close()
            return stage.alive and not await ended(stage)

    assert asyncio.run(attacked()) is lives


async def ended(stage: LocalRunner) -> bool:
    """Wait for the end of a process."""
    with contextlib.suppress(PunaError):
        while stage.alive:
            await stage.ping()
    return not stage.alive

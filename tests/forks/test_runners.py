"""Forked model processes are like those that Python starts."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from puna.errors import RunnerError
from puna.protocol import Load
from tests.forks.asking import forking_process
from tests.forks.runners import forked_runners
from tests.runner.running import GREEDY, collect, started
from tests.tiny.llama import tiny_llama_gguf

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a process adopt others"),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama_gguf(tmp_path_factory.mktemp("forks") / "tiny.gguf")


@pytest.fixture(autouse=True)
def forked() -> Iterator[None]:
    with forked_runners(forking_process()):
        yield


def surroundings(pid: int) -> dict[str, object]:
    """Return the state of a process that its parent or its start decides."""
    folder = Path(f"/proc/{pid}")
    status = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
    process = psutil.Process(pid)
    return {
        "status": {name: status[name] for name in ("Name", "Umask", "SigBlk", "SigIgn", "SigCgt")},
        "limits": (folder / "limits").read_text(),
        "descriptors": sorted(str(each.readlink()).partition(":[")[0] for each in (folder / "fd").iterdir()),
        "folder": process.cwd(),
        "nice": process.nice(),
        "cores": process.cpu_affinity(),
        "own session": os.getsid(pid) == pid,
        "parent": process.ppid(),
        "threads": sorted(each.read_text() for each in folder.glob("task/*/comm")),
        "children": [child.cmdline() for child in process.children()],
    }  # fmt: skip


async def seen(model: Path) -> tuple[bool, dict[str, object], tuple[str, int | None, str]]:
    """Return whether a runner was forked, its surroundings, and its answer, exit status and death."""
    runner = await started(Load(path=str(model), num_ctx=64))
    try:
        answer, _ = await collect(runner, "hello")
        found = surroundings(runner.pid)
        forked = "tests.forks" in psutil.Process(runner.pid).cmdline()
        os.kill(runner.pid, signal.SIGSEGV)
        with pytest.raises(RunnerError) as caught:
            await collect(runner, "hello", GREEDY)
        return forked, found, (answer, runner._process.returncode, str(caught.value))
    finally:
        await runner.close()


def test_forked_runner_has_the_surroundings_of_a_started_one(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forked, surroundings, history = asyncio.run(seen(model))
    assert forked
    monkeypatch.setenv("MALLOC_ARENA_MAX", "8")  # read when a process starts
    anew = asyncio.run(seen(model))
    assert anew == (False, surroundings, history)
    assert history[1] == -signal.SIGSEGV


def test_process_whose_runner_was_forked_adopts_no_others(model: Path) -> None:
    async def scenario() -> list[psutil.Process]:
        runner = await started(Load(path=str(model), num_ctx=64))
        try:
            ours = psutil.Process().children()
            parent = await asyncio.create_subprocess_shell("cat &", stdin=asyncio.subprocess.PIPE)
            await parent.wait()
            return [each for each in psutil.Process().children() if each not in ours]
        finally:
            await runner.close()

    assert asyncio.run(scenario()) == []

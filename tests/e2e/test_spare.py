"""The process that waits for the next model."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.e2e.servers import Server, add_model, running
from tests.waiting import wait_until

pytestmark = pytest.mark.e2e


@pytest.fixture
def server(tmp_path: Path, tiny_file: Path) -> Iterator[Server]:
    with running(tmp_path, PUNA_SPARE_RUNNER="1") as started:
        add_model(started, "tiny", tiny_file)
        yield started


def spare_of(server: Server, *others: psutil.Process) -> psutil.Process:
    """The process that waits, beside `others`; waits for it."""
    found: list[psutil.Process] = []

    def is_there() -> bool:
        found[:] = [process for process in server.runners() if process not in others]
        return len(found) == 1

    wait_until(is_there, "a spare process", timeout_s=60)
    return found[0]


def answer(server: Server) -> None:
    assert server.client.generate("tiny", "hello", options={"num_predict": 2}).eval_count


def test_a_load_takes_the_process_that_waits_and_another_comes(server: Server) -> None:
    spare = spare_of(server)
    answer(server)
    assert spare in server.runners()
    following = spare_of(server, spare)
    metrics = server.http.get("/metrics").text
    shown = [line for line in metrics.splitlines() if line.startswith("puna_spare_runner_bytes ")]
    assert float(shown[0].split()[1]) > 0
    server.client.generate("tiny", keep_alive=0)
    wait_until(lambda: not spare.is_running(), "the unloading")
    assert server.runners() == [following]
    assert server.stop() == 0
    assert not following.is_running()


def test_a_process_that_died_waiting_is_replaced(server: Server) -> None:
    spare = spare_of(server)
    spare.kill()
    answer(server)
    assert spare not in server.runners()


def test_what_waits_ends_with_a_server_that_is_killed(server: Server) -> None:
    spare = spare_of(server)
    server.stop(signal.SIGKILL)
    spare.wait(timeout=60)


def test_a_server_that_leaves_at_once_leaves_nothing(tmp_path: Path) -> None:
    with running(tmp_path, PUNA_SPARE_RUNNER="1") as server:
        parent = psutil.Process(server.process.pid)
        children = parent.children()
        assert server.stop() == 0
        psutil.wait_procs(children, timeout=60)
        assert not any(child.is_running() for child in children)


def test_without_it_there_is_none(tmp_path: Path, tiny_file: Path) -> None:
    with running(tmp_path, PUNA_SPARE_RUNNER="0") as server:
        add_model(server, "tiny", tiny_file)
        answer(server)
        assert len(server.runners()) == 1

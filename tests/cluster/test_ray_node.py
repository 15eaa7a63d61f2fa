"""Ray's processes of a machine: their messages, and those that others have started."""

from __future__ import annotations

import logging
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

import puna
from puna.cluster.credentials import init, protection
from puna.cluster.ray_node import _log_errors
from tests.cluster.conftest import HAS_RAY
from tests.e2e.servers import environment, running
from tests.ports import free_port
from tests.waiting import PATIENCE_S, wait_until

needs_ray = pytest.mark.skipif(not HAS_RAY, reason="ray is not installed: pip install '.[test]'")


@contextmanager
def ray_cluster(folder: Path, address: str, settings: Mapping[str, str]) -> Iterator[None]:
    """Run `ray start` within the block."""
    log = folder / "ray.log"
    command = [
        sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block",
        "--node-ip-address", address, "--port", str(free_port()), "--include-dashboard=false",
        "--disable-usage-stats", "--object-store-memory", str(100 << 20),
        "--min-worker-port=0", "--max-worker-port=0",
    ]  # fmt: skip
    env = {**os.environ, **environment(folder, **settings)}
    with log.open("w") as file:
        ray = subprocess.Popen(command, stdout=file, stderr=file, start_new_session=True, env=env)
    try:
        wait_until(lambda: "Ray runtime started" in log.read_text(), "the start of Ray")
        yield
    finally:
        os.killpg(ray.pid, signal.SIGTERM)
        ray.wait(PATIENCE_S)


@needs_ray
@pytest.mark.e2e
@pytest.mark.thorough
def test_a_cluster_of_ray_is_found_and_used(tmp_path: Path) -> None:
    import ray

    address = ray.util.get_node_ip_address()
    init(tmp_path / "credentials", [address])
    # Paths of Ray's sockets must be short.
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as temp:
        given = protection(address, tmp_path / "credentials", {})
        settings = {**given, "RAY_TMPDIR": temp, "PUNA_CLUSTER": "1", "PUNA_CLUSTER_RAY": "auto"}
        with (
            ray_cluster(tmp_path, address, settings),
            running(tmp_path / "head", started=True, **settings) as server,
        ):
            answer = server.client.generate("demo", "Hello", options={"num_predict": 4, "seed": 1})
            assert answer.eval_count == 4
            status = server.http.get("/api/cluster").json()
            assert [node["address"] for node in status["nodes"]] == [address]
            assert [model["name"] for model in status["models"]] == ["demo:latest"]


@needs_ray
def test_errors_that_ray_reports_are_logged_and_not_printed(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    from ray._private import worker

    monkeypatch.setattr(worker, "print_to_stdstream", worker.print_to_stdstream)  # restored at the end
    _log_errors()
    with caplog.at_level(logging.WARNING):
        worker.print_to_stdstream({"lines": ["An actor died."], "pid": "raylet", "is_err": False}, False)
    assert capfd.readouterr() == ("", "")
    assert "Ray: An actor died." in caplog.text


def test_no_decision_of_a_cluster_depends_on_the_time_of_day() -> None:
    """Clocks may jump; only certificates have to say when they begin and end."""
    package = Path(puna.__file__).parent
    folders = [package / name for name in ("cluster", "runner", "model/split")]
    using = {
        path.name
        for folder in folders
        for path in folder.rglob("*.py")
        if re.search(r"\btime\.time(_ns)?\(|\.now\(", path.read_text())
    }
    assert using == {"credentials.py"}

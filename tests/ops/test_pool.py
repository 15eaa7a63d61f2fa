"""The kernels' thread pool, through the operations that use it."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch

from puna.ops import Weight
from tests.ops.torch_ops import cpu, weight_of
from tests.processors import NOT_BUILT
from tests.waiting import PATIENCE_S, wait_until_asleep

_native = pytest.importorskip("puna._native", reason=NOT_BUILT)


@pytest.fixture(autouse=True)
def _two_threads() -> Iterator[None]:
    before = _native.threads()
    _native.set_threads(2)
    yield
    _native.set_threads(before)


def work() -> tuple[torch.Tensor, Weight, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    weight = weight_of("w", torch.randn(2048, 256, generator=generator))
    x = torch.randn(5, 256, generator=generator)
    return x, weight, cpu().linear(x, weight)


def test_calls_from_several_python_threads_are_right() -> None:
    x, weight, expected = work()
    wrong: list[int] = []

    def call() -> None:
        wrong.extend(i for i in range(200) if not torch.equal(cpu().linear(x, weight), expected))

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert not any(thread.is_alive() for thread in threads)
    assert not wrong


def test_threads_can_change_while_others_compute() -> None:
    x, weight, expected = work()
    wrong, stop = [], threading.Event()

    def call() -> None:
        while not stop.is_set():
            if not torch.equal(cpu().linear(x, weight), expected):
                wrong.append(1)

    thread = threading.Thread(target=call)
    thread.start()
    for count in (1, 3, 2, 1, 4) * 4:
        _native.set_threads(count)
        assert _native.threads() == count
        assert torch.equal(cpu().linear(x, weight), expected)
    stop.set()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert not wrong


def _in_child(queue: multiprocessing.Queue) -> None:  # type: ignore[type-arg]
    x, weight, expected = work()
    queue.put(bool(torch.equal(cpu().linear(x, weight), expected)))


def test_a_forked_child_computes() -> None:
    work()  # starts the parent's workers, which the child will not have
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_in_child, args=(queue,))
    child.start()
    assert queue.get(timeout=PATIENCE_S)
    child.join(PATIENCE_S)
    assert child.exitcode == 0
    work()  # and the parent still does


def test_an_idle_pool_uses_no_cpu() -> None:
    work()
    wait_until_asleep(os.getpid(), except_for=threading.get_native_id())


def printed(script: str, **variables: str) -> str:
    """Return the output of a Python program run with only these PUNA and OLLAMA variables."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PUNA_", "OLLAMA_"))}
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120,
        env={**kept, **variables},
    )  # fmt: skip
    return run.stdout.strip()


@pytest.mark.slow
def test_a_process_is_idle_after_a_request() -> None:
    script = (
        "import puna\n"
        "model = puna.load('demo', num_thread=2)\n"
        "model.generate('Once upon a time', num_predict=8)\n"
        "print('done', flush=True)\n"
        "input()"
    )
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "done\n"
        wait_until_asleep(process.pid)
        process.communicate("go\n")
    assert process.returncode == 0


@pytest.mark.parametrize("name", ["PUNA_NUM_THREADS", "OLLAMA_NUM_THREADS"])
def test_the_environment_sets_the_number_of_threads(name: str) -> None:
    script = "from puna.ops import default_backend; print(default_backend().threads())"
    assert printed(script, **{name: "1"}) == "1"


@pytest.mark.slow
def test_there_are_no_more_threads_than_processors() -> None:
    script = (
        "import os, sys, puna; from puna.ops import default_backend as ops\n"
        "os.sched_setaffinity(0, list(os.sched_getaffinity(0))[:1])\n"
        "print(ops().threads()); ops().set_threads(4096); print(ops().threads())\n"
        "puna.load('demo', num_thread=100); print(ops().threads())"
    )
    assert printed(script, PUNA_NUM_THREADS="3").split() == ["1", "1", "1"]


@pytest.mark.slow
def test_num_thread_takes_precedence_over_the_environment() -> None:
    script = (
        "import puna; from puna.ops import default_backend\n"
        "puna.load('demo', num_thread=1); print(default_backend().threads())"
    )
    assert printed(script, PUNA_NUM_THREADS="3") == "1"


@pytest.mark.parametrize(
    ("memberships", "files", "cores"),
    [
        ("0::/\n", {"cpu.max": "150000 100000"}, 1.5),
        ("0::/a/b\n", {"a/cpu.max": "200000 100000", "a/b/cpu.max": "max 100000"}, 2),
        ("0::/a/b\n", {"a/cpu.max": "200000 100000", "a/b/cpu.max": "50000 100000"}, 0.5),
        ("0::/a\n", {"a/cpu.max": "max 100000"}, 0),
        (
            "5:memory:/x\n3:cpu,cpuacct:/docker/c\n",
            {"cpu/docker/c/cpu.cfs_quota_us": "300000", "cpu/docker/c/cpu.cfs_period_us": "100000"},
            3,
        ),
        # Inside a container the path is the host's, while the mount is the container's own.
        (
            "3:cpuacct,cpu:/docker/c\n",
            {"cpu/cpu.cfs_quota_us": "100000", "cpu/cpu.cfs_period_us": "50000"},
            2,
        ),
        ("3:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 0),
        ("3:cpuset:/\n", {"cpu/cpu.cfs_quota_us": "100000", "cpu/cpu.cfs_period_us": "100000"}, 0),
        ("", {}, 0),
    ],
    ids=[
        "version 2", "version 2, parent", "version 2, smallest", "version 2, none",
        "version 1", "version 1, container", "version 1, none", "version 1, not of cpu", "no cgroups",
    ],
)  # fmt: skip
def test_the_quota_of_the_cgroup_is_found(
    tmp_path: Path, memberships: str, files: dict[str, str], cores: float
) -> None:
    written = {"proc/self/cgroup": memberships} | {f"sys/fs/cgroup/{name}": files[name] for name in files}
    for name, text in written.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    assert _native.cgroup_cores(str(tmp_path)) == cores


def test_the_default_is_the_cores_the_process_may_use() -> None:
    assert 1 <= _native.usable_cores() <= len(psutil.Process().cpu_affinity())


def test_unknown_kernels_are_refused() -> None:
    with pytest.raises(ValueError, match="'avx1024'"):
        _native.set_cpu_level("avx1024")

"""Weights, caches and threads spread over the memories of a machine (NUMA), simulated where it has one."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from puna.system import has_linux
from tests.processors import NOT_BUILT

_native = pytest.importorskip("puna._native", reason=NOT_BUILT, exc_type=ImportError)

pytestmark = pytest.mark.skipif(not has_linux(), reason="only Linux lists its memory nodes")

#: Loads weights and makes a cache on the machine described at argv[1]; prints where they and the threads are.
SCRIPT = """
import os, sys
from pathlib import Path
import numpy as np
from puna import _native
from puna.gguf import GGMLType
from puna.ops import default_backend

ops = default_backend()
x = np.random.default_rng(1).standard_normal((4, 1024), np.float32)
weights = np.random.default_rng(2).integers(0, 60, 8192 * 32 * 34, np.uint8)

def product():
    return _native.linear(x, [_native.Matrix(weights, GGMLType.Q8_0, 8192, 1024)], [None])[0]

def policies():
    return [line.split()[1] for line in Path("/proc/self/numa_maps").read_text().splitlines()]

before = product()
assert not any("interleave" in each for each in policies())
assert _native.spread_over_nodes(sys.argv[1]) == 2
ops.set_threads(2)
matrix = _native.Matrix(weights, GGMLType.Q8_0, 8192, 1024)
of_weights = sum("interleave" in each for each in policies())
storage = ops.storage(GGMLType.F16, 65536, (8, 64))
of_all = sum("interleave" in each for each in policies())
assert np.array_equal(before, product())
threads = [os.sched_getaffinity(int(each)) for each in os.listdir("/proc/self/task")]
print(of_weights, of_all, sorted(sorted(each) for each in threads))
"""


def machine(root: Path, *nodes: str, memory: str) -> str:
    """Describe a machine with the processors `nodes`, each a list like `0-3,8`, under `root`."""
    folder = root / "sys/devices/system/node"
    folder.mkdir(parents=True)
    (folder / "has_memory").write_text(memory + "\n")
    for number, processors in enumerate(nodes):
        (folder / f"node{number}").mkdir()
        (folder / f"node{number}/cpulist").write_text(processors + "\n")
    return str(root)


def test_nodes_with_memory_and_usable_processors_count(tmp_path: Path) -> None:
    first = min(os.sched_getaffinity(0))
    root = machine(tmp_path, "900-903", f"{first},1000", "0-1023", "", memory="0-1,3")
    assert _native.memory_nodes(root) == [[first]]


def test_lists_of_processors_are_read(tmp_path: Path) -> None:
    usable = sorted(os.sched_getaffinity(0))
    listed = ",".join(map(str, usable))
    assert _native.memory_nodes(machine(tmp_path, "0-1023", listed, memory="0-1")) == [usable, usable]


@pytest.mark.parametrize("memory", ["0", ""])
def test_fewer_than_two_nodes_change_nothing(tmp_path: Path, memory: str) -> None:
    assert _native.spread_over_nodes(machine(tmp_path, "0-1023", memory=memory)) == len(memory)


def test_a_policy_that_the_system_refuses_is_an_error(tmp_path: Path) -> None:
    absent = machine(tmp_path, *["0-1023"] * 9, memory="7-8")
    if Path("/sys/devices/system/node/node7").exists():
        pytest.skip("this machine has eight nodes")
    with pytest.raises(RuntimeError, match=r"Invalid argument|not permitted"):
        _native.spread_over_nodes(absent)
    assert _native.spread_over_nodes(str(tmp_path / "none")) == 0


@pytest.mark.slow
def test_weights_caches_and_threads_are_spread(tmp_path: Path) -> None:
    processors = sorted(os.sched_getaffinity(0))
    if len(processors) < 2:
        pytest.skip("one processor")
    if not Path("/proc/self/numa_maps").exists():
        pytest.skip("this system does not tell the policies of memory")
    first, second = processors[:2]
    root = machine(tmp_path, str(first), str(second), memory="0-1")
    try:
        _native.spread_over_nodes(root)
    except RuntimeError as error:
        pytest.skip(f"this process may not choose its memory: {error}")
    finally:
        _native.spread_over_nodes(str(tmp_path / "none"))
    run = subprocess.run([sys.executable, "-c", SCRIPT, root], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    of_weights, of_all, threads = run.stdout.split(" ", 2)
    assert 0 < int(of_weights) < int(of_all)
    assert [second] in eval(threads)  # the pool's own thread; the caller's stays where it was
    assert processors in eval(threads)


@pytest.mark.parametrize(
    ("found", "said"),
    [(1, "one memory node only"), (RuntimeError("forbidden"), "SYS_NICE"), (2, "spread over 2 memory nodes")],
    ids=str,
)
def test_the_log_says_what_came_of_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, found: int | RuntimeError, said: str
) -> None:
    from puna.ops.cpu import CPU

    def spread() -> int:
        if isinstance(found, RuntimeError):
            raise found
        return found

    monkeypatch.setattr(_native, "spread_over_nodes", spread)
    with caplog.at_level(logging.INFO, "puna.ops"):
        CPU()
        assert not caplog.messages
        monkeypatch.setenv("PUNA_NUMA", "1")
        CPU()
    assert said in caplog.text

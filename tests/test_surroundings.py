"""Tests see the same environment whoever starts them, and from any folder; `--cases` (tests/conftest.py)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import spread_cases

ROOT = Path(__file__).parents[1]

SEEN = """
import json, os, time
from pathlib import Path
import tests.conftest
Path("text").write_text(chr(233))
written = Path("text").read_bytes().hex()
print(json.dumps([sorted(os.environ), time.strftime("%Z"), str(Path.home()), written]))
"""


def test_tests_do_not_depend_on_the_shell_that_starts_them(tmp_path: Path) -> None:
    shell = {
        "PUNA_HOST": "192.0.2.1:1", "OLLAMA_MODELS": "/nowhere", "https_proxy": "http://192.0.2.1:1",
        "SSL_CERT_FILE": "/nowhere", "HF_TOKEN": "secret", "OPENAI_BASE_URL": "http://192.0.2.1:1",
        "COLUMNS": "20", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "TZ": "Asia/Kathmandu",
        "GITHUB_ACTIONS": "true",
    }  # fmt: skip
    env = os.environ | shell | {"HOME": "/nowhere", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", SEEN]
    printed = subprocess.run(
        command, env=env, cwd=tmp_path, capture_output=True, text=True, check=True
    ).stdout
    names, zone, home, written = json.loads(printed)
    assert set(names) & shell.keys() == {"PYTHONCOERCECLOCALE", "TZ"}
    assert (zone, written) == ("UTC", "é".encode().hex())
    assert home not in ("/nowhere", os.environ["HOME"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("chosen_by_tests", "worker", "threads"), [(True, True, "1"), (True, False, "2"), (False, True, "7")]
)
def test_parallel_workers_have_one_thread_each(chosen_by_tests: bool, worker: bool, threads: str) -> None:
    """A worker inherits the environment that tests/conftest.py left to the process that started it."""
    env = {name: value for name, value in os.environ.items() if name != "PYTEST_XDIST_WORKER"}
    env |= {"PYTHONPATH": str(ROOT), "PUNA_NUM_THREADS": "7"}
    env.pop("TESTS_CHOSE_THREADS", None)
    if chosen_by_tests:
        env["TESTS_CHOSE_THREADS"] = "1"
    if worker:
        env["PYTEST_XDIST_WORKER"] = "gw0"
    command = [sys.executable, "-c", "import os, tests.conftest; print(os.environ['PUNA_NUM_THREADS'])"]
    printed = subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout
    assert printed.strip() == threads


@pytest.mark.parametrize(("count", "kept"), [(1, "0"), (2, "03"), (3, "024"), (7, "0123456"), (9, "0123456")])
def test_chosen_cases_are_spread_over_those_of_their_test(count: int, kept: str) -> None:
    matrix = [f"a.py::test_matrix[{number}]" for number in range(7)]
    found = spread_cases(["a.py::test_alone", *matrix, "b.py::test_matrix[7]"], count)
    expected = [f"a.py::test_matrix[{number}]" for number in kept]
    assert found == ["a.py::test_alone", *expected, "b.py::test_matrix[7]"]

"""Shared test data, and an environment that does not depend on who started the tests."""

from __future__ import annotations

import atexit
import gc
import locale
import os
import random
import signal
import sys
import tempfile
import time
import zlib
from collections.abc import Generator, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings

from tests.model_process.sitecustomize import note_unseeded_draws
from tests.processors import missing_levels

#: Settings that choose what is tested; all others are removed, since they would change results.
_CHOICES = (
    "PUNA_OPS", "PUNA_CPU", "PUNA_GPU_DEVICE", "PUNA_NUM_THREADS", "PUNA_TEST_DATA", "PUNA_TEST_KERNEL",
    "PUNA_DRAWS", "PUNA_PORTABLE",
)  # fmt: skip

#: Prefixes of other variables that our libraries or the clients read.
_PREFIXES = (
    "PUNA_", "OLLAMA_", "OPENAI_", "ANTHROPIC_", "HF_", "HUGGING_FACE_", "SSL_CERT_", "XDG_", "LC_",
    "UVICORN_", "RAY_",
)  # fmt: skip
#: Removed so that terminals opened by tests have a known kind and size, and started processes write UTF-8 and
#: keep their bytecode: hundreds are started, and each would compile everything it imports.
_SHELL_VARIABLES = (
    "COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "PY_COLORS",
    "GITHUB_ACTIONS", "LANGUAGE", "EDITOR", "VISUAL", "PAGER", "PYTHONDONTWRITEBYTECODE", "PYTHONIOENCODING",
    "PYTHONUTF8", "PYTHONWARNINGS", "WEB_CONCURRENCY", "FORWARDED_ALLOW_IPS",
)  # fmt: skip

for name in list(os.environ):
    # Requests to the tests' own servers must not go through a proxy.
    foreign = name.startswith(_PREFIXES) or name in _SHELL_VARIABLES or name.lower().endswith("_proxy")
    if foreign and name not in _CHOICES:
        del os.environ[name]
# Keep tests from reading or writing the developer's own files.
_home = tempfile.TemporaryDirectory(prefix="home-")
atexit.register(_home.cleanup)
os.environ |= {
    "HOME": _home.name,
    "TERM": "xterm-256color",
    "LANG": "C.UTF-8",
    "TZ": "UTC",
    "HF_HUB_OFFLINE": "1",
}
locale.setlocale(locale.LC_ALL, "")
time.tzset()
sys.dont_write_bytecode = False
# Shells make background jobs ignore Ctrl-C, and every process started from here would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Parallel workers get one core each; tests about threads set their own number. A worker inherits what was set
# here in the process that started it.
if "PUNA_NUM_THREADS" not in os.environ or "TESTS_CHOSE_THREADS" in os.environ:
    os.environ["PUNA_NUM_THREADS"] = "1" if "PYTEST_XDIST_WORKER" in os.environ else "2"
    os.environ["TESTS_CHOSE_THREADS"] = "1"
# Tensors are tiny: a second torch thread would only wait for the first.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Triton decides when a kernel is defined whether it will be compiled or interpreted.
if os.environ.get("PUNA_GPU_DEVICE", "cpu") == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"

# Model processes import sitecustomize.py from this folder when they start.
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(Path(__file__).parent / "model_process"), *filter(None, [os.environ.get("PYTHONPATH")])]
)
_unseeded = tempfile.NamedTemporaryFile(prefix="unseeded-", buffering=0)  # noqa: SIM115
os.environ["TESTS_UNSEEDED"] = _unseeded.name
note_unseeded_draws(_unseeded.name)

# No deadlines: a busy machine must not fail a test.
settings.register_profile("puna", deadline=None, derandomize=True)
settings.register_profile("random", deadline=None)
settings.register_profile("fast", deadline=None, derandomize=True, max_examples=20)
settings.load_profile("puna")


def find_test_data() -> Path | None:
    """Return the folder of downloaded test data (`PUNA_TEST_DATA`, or `../shared/data`), or None if there is
    none.
    """
    given = os.environ.get("PUNA_TEST_DATA")
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    for folder in (Path(given) if given else None, beside):
        if folder is not None and folder.is_dir():
            return folder
    return None


@pytest.fixture(scope="session")
def test_data() -> Path:
    folder = find_test_data()
    if folder is None:
        pytest.skip("no test data: set PUNA_TEST_DATA to a folder holding vocab/ and templates/")
    return folder


@pytest.fixture(scope="session", autouse=True)
def _short_prompts_in_one_pass() -> Iterator[None]:
    """Compute feed-forward networks for the short prompts of tests as for long ones."""
    with pytest.MonkeyPatch.context() as patch:
        if find_spec("puna._native") is not None:
            from puna.ops.cpu import CPU

            patch.setattr(CPU, "feed_forward_from", 20)
        yield


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cases", type=int, help="how many cases of each test to run, spread over all of them")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect tests marked `thorough` or `clients` unless requested by name, and most cases by `--cases`."""
    excluded = [name for name in ("thorough", "clients") if name not in config.option.markexpr]
    kept = [item.nodeid for item in items if not any(map(item.get_closest_marker, excluded))]
    chosen = set(spread_cases(kept, config.option.cases) if config.option.cases else kept)
    if left_out := [item for item in items if item.nodeid not in chosen]:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item.nodeid in chosen]


def spread_cases(names: Sequence[str], count: int) -> list[str]:
    """Return up to `count` cases of each test, at equal distances and beginning with its first."""
    cases: dict[str, list[str]] = {}
    for name in names:
        cases.setdefault(name.partition("[")[0], []).append(name)
    few = {test: min(count, len(found)) for test, found in cases.items()}
    return [
        found[number * len(found) // few[test]]
        for test, found in cases.items()
        for number in range(few[test])
    ]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect tests without garbage collection, which would look through all of them again and again, and
    exempt everything that lives as long as the process from it: tests and all their imports.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def _seed(name: str) -> None:
    """Seed all random generators from `name`, so that they repeat on every run and differ between names."""
    seed = zlib.crc32(name.encode())
    random.seed(seed)
    np.random.seed(seed)
    if torch := sys.modules.get("torch"):
        torch.default_generator.manual_seed(seed)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    _seed(item.nodeid)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> Generator[None, object, object]:
    """Give shared fixtures the same random numbers whichever test requests them first."""
    if fixturedef.scope == "function":
        return (yield)
    _seed(fixturedef.argname)
    try:
        return (yield)
    finally:
        _seed(os.environ["PYTEST_CURRENT_TEST"].rpartition(" ")[0])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """Fail tests that receive sampled answers, unless they are marked `samples`."""
    try:
        return (yield)
    finally:
        if draws := os.fstat(_unseeded.fileno()).st_size:
            os.truncate(_unseeded.fileno(), 0)
        if draws and not item.get_closest_marker("samples"):
            pytest.fail("an answer was sampled: give `seed` or temperature 0, or mark the test `samples`")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Report once, rather than per test, which kernels this machine cannot run."""
    if missing := missing_levels():
        terminalreporter.write_line(f"Not tested, for lack of instructions: {', '.join(missing)} kernels")

"""What every test may use: the shared test data, and a process that does not depend on who started it."""

from __future__ import annotations

import os
import random
import signal
import sys
import tempfile
import zlib
from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings

from tests.model_process.sitecustomize import note_unseeded_draws
from tests.processors import missing_levels

#: Settings that choose what is tested; any other would change what tests see.
_CHOICES = ("PUNA_OPS", "PUNA_CPU", "PUNA_NUM_THREADS", "PUNA_TEST_DATA", "PUNA_DRAWS")

for name in [name for name in os.environ if name.startswith(("PUNA_", "OLLAMA_"))]:
    if name not in _CHOICES:
        del os.environ[name]
# Requests to servers of the tests' own must not take a way round.
for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
    del os.environ[name]
# Terminals that tests open are of a known kind and size, whatever the tests are started from.
for name in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "CLICOLOR", "CLICOLOR_FORCE"):
    os.environ.pop(name, None)
os.environ["TERM"] = "xterm-256color"
os.environ["HF_HUB_OFFLINE"] = "1"
# Hundreds of processes are started from here, and each would compile all it imports.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# In the background a shell has Ctrl-C ignored, and all processes started from here would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Workers side by side have a core each; tests about threads set their number themselves.
os.environ.setdefault("PUNA_NUM_THREADS", "1" if "PYTEST_XDIST_WORKER" in os.environ else "2")
# Tiny tensors: a second thread of torch's own would only wait for the first.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Model processes import it when they start.
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(Path(__file__).parent / "model_process"), *filter(None, [os.environ.get("PYTHONPATH")])]
)
_unseeded = tempfile.NamedTemporaryFile(prefix="unseeded-", buffering=0)  # noqa: SIM115
os.environ["TESTS_UNSEEDED"] = _unseeded.name
note_unseeded_draws(_unseeded.name)

# A busy machine is no failure.
settings.register_profile("puna", deadline=None, derandomize=True)
settings.register_profile("random", deadline=None)
settings.load_profile("puna")


def find_test_data() -> Path | None:
    """The folder of downloaded test data (`PUNA_TEST_DATA`, or `../shared/data`), if it is there."""
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


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out tests marked `thorough` or `clients` unless they are asked for by that name."""
    unasked = [name for name in ("thorough", "clients") if name not in config.option.markexpr]
    left_out = [item for item in items if any(map(item.get_closest_marker, unasked))]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not any(map(item.get_closest_marker, unasked))]


def _seed(name: str) -> None:
    """Make the next random numbers the same every time, and different for another `name`."""
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
    """Gives shared fixtures the same random numbers whichever test is the first to want them."""
    if fixturedef.scope == "function":
        return (yield)
    _seed(fixturedef.argname)
    try:
        return (yield)
    finally:
        _seed(os.environ["PYTEST_CURRENT_TEST"].rpartition(" ")[0])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """Fails tests that get answers by chance, unless they are marked `samples`."""
    try:
        return (yield)
    finally:
        draws = os.fstat(_unseeded.fileno()).st_size
        os.truncate(_unseeded.fileno(), 0)
        if draws and not item.get_closest_marker("samples"):
            pytest.fail("an answer was sampled: give `seed` or temperature 0, or mark the test `samples`")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says once, not at each test, which kernels this machine cannot run."""
    if missing := missing_levels():
        terminalreporter.write_line(f"Not tested, for lack of the instructions: {', '.join(missing)} kernels")

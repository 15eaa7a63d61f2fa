"""What every test may use: the shared test data, and a process that does not depend on who started it."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import settings

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

# A busy machine is no failure.
settings.register_profile("puna", deadline=None)
settings.load_profile("puna")


def find_test_data() -> Path | None:
    """The folder of downloaded test data (`PUNA_TEST_DATA`, or `../shared/data`), if it is there."""
    given = os.environ.get("PUNA_TEST_DATA", "PUNA_DRAWS")
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


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says once, not at each test, which kernels this machine cannot run."""
    if missing := missing_levels():
        terminalreporter.write_line(f"Not tested, for lack of the instructions: {', '.join(missing)} kernels")

"""Results of the clients' programs, and the columns in which they were right."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

from tests.clients.clients import JAVASCRIPT, Client

HERE = Path(__file__).parent
PYTHON = HERE.parents[1] / ".venv-clients" / "bin" / "python"
PACKAGES = HERE / "javascript" / "node_modules"

#: Columns that work, by client, as found by the tests; bench/clients.py writes the table from them.
works: dict[str, list[str]] = {}
#: Largest difference of lm-eval's likelihoods from the reference, in nats per token, and the number of texts.
likelihoods: dict[str, float] = {}


def missing(client: Client) -> str | None:
    """Return the reason why `client` cannot be run here, or None if it can."""
    if client in JAVASCRIPT:
        found = shutil.which("node") and (PACKAGES / "ai").is_dir()
        return None if found else "needs node, and its packages: `make test-clients` installs them"
    return None if PYTHON.exists() else "the clients are not installed: `make test-clients` does it"


@cache
def outcome(client: Client, *arguments: str, asked: str = "asked.json") -> dict[str, dict[str, Any]]:
    """Run the program of `client` with `arguments` and return its result for each column.

    `asked` is the file with its questions.
    """
    javascript = client in JAVASCRIPT
    folder = HERE / ("javascript" if javascript else "python")
    runner = "node" if javascript else str(PYTHON)
    done = subprocess.run(
        [runner, str(folder / client.program), *arguments, *filter(None, [client.way])],
        capture_output=True,
        text=True,
        timeout=240,
        env=os.environ | {"NO_PROXY": "*", "PYTHONDONTWRITEBYTECODE": "1", "ASKED": asked},
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


def versions() -> dict[str, dict[str, str]]:
    """Return the versions of all installed packages, by language."""
    script = (
        "import json; from importlib.metadata import distributions as all\n"
        "print(json.dumps({one.name.replace('_', '-'): one.version for one in all()}))"
    )
    python = json.loads(subprocess.run([PYTHON, "-c", script], capture_output=True, check=True).stdout)
    described = [json.loads(file.read_text()) for file in PACKAGES.glob("**/package.json")]
    javascript = {one["name"]: one["version"] for one in described if {"name", "version"} <= set(one)}
    return {"Python": python, "JavaScript": javascript}

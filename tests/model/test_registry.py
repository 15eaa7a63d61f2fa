"""The registry names all architectures and imports one at a time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from puna.model import models
from puna.model.base import TextModel
from puna.model.registry import model_for, supported


@pytest.mark.parametrize("architecture", supported())
def test_every_architecture_has_a_model(architecture: str) -> None:
    assert issubclass(model_for(architecture), TextModel)


def test_every_file_of_a_model_is_in_the_table() -> None:
    (folder,) = models.__path__
    files = {path.stem for path in Path(folder).glob("*.py")} - {"__init__"}
    assert {model_for(name).__module__.rpartition(".")[2] for name in supported()} == files


def test_only_the_requested_model_is_imported() -> None:
    code = (
        "import sys; from puna.model.registry import model_for, supported; supported()\n"
        "loaded = lambda: sorted(name for name in sys.modules if name.startswith('puna.model.models.'))\n"
        "print(loaded()); model_for('qwen3'); print(loaded())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[]", "['puna.model.models.qwen3']"]

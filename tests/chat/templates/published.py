"""Chat templates as they were published: in the test data, or in a checkout of llama.cpp."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.conftest import find_test_data

#: As for the tests of parity.
_LLAMA_CPP = Path(os.environ.get("LLAMA_CPP", ".venv-peers/llama.cpp"))


def published(name: str) -> str:
    """Return the text of the template in the file `name`; skip the test if it is nowhere."""
    data = find_test_data()
    folders = ([data / "templates"] if data else []) + [_LLAMA_CPP / "models" / "templates"]
    for folder in folders:
        if (path := folder / f"{name}.jinja").is_file():
            return path.read_text(encoding="utf-8")
    pytest.skip(f"no template {name}: set PUNA_TEST_DATA to a folder with templates/, or make test-peers")

"""A server for these tests, started by the command line itself."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cli.shell import Shell, end_process
from tests.ports import free_port
from tests.tiny.llama import tiny_llama_gguf


@pytest.fixture(scope="session")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama_gguf(tmp_path_factory.mktemp("models") / "Tiny Llama.F32.gguf")


@pytest.fixture(scope="session")
def shell(tmp_path_factory: pytest.TempPathFactory, tiny_gguf: Path) -> Iterator[Shell]:
    """Return a shell whose server runs and has the model `tiny`."""
    shell = Shell(tmp_path_factory.mktemp("home"), free_port())
    made = shell.run("create", "tiny", "-f", "-", stdin=f"FROM {tiny_gguf}")
    started = re.search(r"process (\d+)", made.stderr)
    try:
        assert made.returncode == 0, made.stderr
        assert started is not None, made.stderr
        yield replace(shell, server=int(started[1]))
    finally:
        if started is not None:
            end_process(int(started[1]))

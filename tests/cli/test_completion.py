"""Shell completion, run by real shells where installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from puna.cli import main
from tests.registry.registries import Published, Registry, reply, serving

COMPLETE = """
COMP_LINE="$1" COMP_POINT=${#1} COMP_WORDBREAKS=$' \\t\\n"><=;|&(:'
_puna_completion
printf '%s\\n' "${COMPREPLY[@]}"
"""


def completed(folder: Path, line: str, host: str = "127.0.0.1:9") -> list[str]:
    """Return bash's completions of the last word of `line`."""
    program = folder / "puna"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m puna "$@"\n')
    program.chmod(0o755)
    script = subprocess.run(
        [program, "completion", "bash"], capture_output=True, text=True, check=True
    ).stdout
    done = subprocess.run(
        ["bash", "--norc", "-c", script + COMPLETE, "bash", line],
        capture_output=True,
        text=True,
        env=os.environ | {"PATH": f"{folder}:{os.environ['PATH']}", "PUNA_HOST": host},
        check=False,
    )
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed (apt install bash)")
def test_bash_completes_commands_and_options(tmp_path: Path) -> None:
    assert completed(tmp_path, "puna sh") == ["show"]
    assert set(completed(tmp_path, "puna doctor --")) >= {"--json", "--store", "--heal"}
    assert completed(tmp_path, "puna completion ") == ["bash", "zsh", "fish"]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed (apt install bash)")
def test_bash_completes_model_names_with_a_colon(tmp_path: Path) -> None:
    def told(handler: BaseHTTPRequestHandler) -> bool:
        reply(
            handler, 200, b'{"models": [{"name": "llama3.2:1b"}, {"name": "llama3.2:3b"}, {"name": "q:4b"}]}'
        )
        return True

    with serving(Registry(Published.of(b""), intercept=told)) as server:
        assert completed(tmp_path, "puna run ll", server.address) == ["llama3.2:1b", "llama3.2:3b"]
        assert completed(tmp_path, "puna run llama3.2:", server.address) == ["1b", "3b"]


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed (apt install fish)")
def test_fish_completes_names(tmp_path: Path) -> None:
    def told(handler: BaseHTTPRequestHandler) -> bool:
        reply(handler, 200, b'{"models": [{"name": "llama3.2:1b"}, {"name": "q:4b"}]}')
        return True

    (tmp_path / "puna").write_text(f'#!/bin/sh\nexec {sys.executable} -m puna "$@"\n')
    (tmp_path / "puna").chmod(0o755)
    with serving(Registry(published=Published.of(b""), intercept=told)) as server:
        path = {
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
            "HOME": str(tmp_path),
            "PUNA_HOST": server.address,
        }
        script = "puna completion fish | source; complete -C 'puna run ll'; complete -C 'puna sh'"
        done = subprocess.run(
            ["fish", "-c", script], capture_output=True, text=True, env=os.environ | path, check=False
        )
    assert [line.split("\t")[0] for line in done.stdout.splitlines()] == ["llama3.2:1b", "show"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script_for_each_shell(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    assert f"_PUNA_COMPLETE=complete_{shell}" in capsys.readouterr().out


def test_another_shell_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "csh"]) == 1
    assert "csh" in capsys.readouterr().err

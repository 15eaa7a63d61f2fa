"""Arguments, help and errors of the command line."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from http.server import BaseHTTPRequestHandler
from importlib import metadata
from pathlib import Path

import pytest

from puna import __version__
from puna.cli import main
from puna.cli.help import PAGES, SECTIONS, VARIABLES
from puna.cli.settings import RunSettings
from puna.hosts import Host
from tests.registry.registries import Published, Registry, reply, serving

COMMANDS = [name for names in SECTIONS.values() for name in names]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["rum"], 'unknown command "rum" for "puna" (did you mean rm or run?)'),
        (["sho"], 'unknown command "sho" for "puna" (did you mean show?)'),
        (["zzz"], 'unknown command "zzz" for "puna"\nUsage: puna [OPTIONS] COMMAND'),
        (["--nope"], "unknown flag: --nope"),
        (["--install-completion"], "unknown flag: --install-completion"),  # `puna completion` instead
        (["run", "m", "--temp", "1"], "unknown flag: --temp (did you mean --temperature?)"),
        (["run", "m", "--num-contex", "1"], "unknown flag: --num-contex (did you mean --num-ctx?)"),
        (["run", "m", "--max-tokens", "1"], "unknown flag: --max-tokens (did you mean --num-predict?)"),
        (["show", "m", "--zzzzz"], "unknown flag: --zzzzz\n"),
        (["show", "./m.gguf"], "./m.gguf is a file, but this command takes the name of a model"),
        (["rm", "demo", "~/m.gguf"], "'puna run ~/m.gguf' runs the file"),
        (["stop", "/m.gguf"], "takes the name of a model"),
        (["cp", "demo", "../m"], "takes the name of a model"),
        (["stop"], "which model? Usage: puna stop MODEL, or puna stop --all"),
        (["stop", "--all", "demo"], "which model?"),
        (["serve", "--port", "70000"], "Invalid value for '--port'"),
        (["show", "m", "--nope"], "unknown flag: --nope"),
        (["show"], "missing argument MODEL\nUsage: puna show [OPTIONS] MODEL\n"),
        (["cp", "a"], "missing argument DESTINATION"),
        (["rm"], "missing argument MODEL..."),
        (["show", "m", "--license", "--system"], "only one of '--license'"),
        (["run", "m", "hi", "--think=x"], 'invalid value for --think: "x"'),
        (["run", "m", "hi", "--top-p", "2"], 'option "top_p" must be between 0 and 1'),
        (["run", "m", "hi", "--temperature", "hot"], "Invalid value for '--temperature'"),
        (["create", ".m"], "invalid model name"),
        (["create", "m", "-f", "/nowhere/Modelfile"], "/nowhere/Modelfile does not exist"),
        (["bench", "m", "--parallel", "1,x"], "--parallel must be a list of positive"),
        (["bench", "m", "--prompt", "0", "--generate", "0"], "model 'm' not found"),
        (["tokenize", "m", "--jsonl", "text"], "--jsonl reads texts from standard input"),
        (
            ["tokenize", "nowhere.gguf", "text"],
            "model 'nowhere.gguf' not found, nor a file of that",
        ),
        (["tokenize", "./nowhere.gguf", "text"], "nowhere.gguf does not exist"),
        (["run", "/nowhere.gguf", "text"], "/nowhere.gguf does not exist"),
    ],
)
def test_errors_go_to_standard_error_with_exit_status_1(
    arguments: list[str],
    error: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PUNA_MODELS", str(tmp_path))
    assert main(arguments) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("Error: ")
    assert error in printed.err


def test_options_of_run_become_its_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[RunSettings, list[str]]] = []
    monkeypatch.setattr("puna.cli.run.run_command", lambda settings, words: seen.append((settings, words)))
    given = (
        "--verbose --system Terse. --format json --think=high --hidethinking --keepalive 5m --nowordwrap "
        "--temperature 0.5 --top-k 3 --top-p 0.9 --seed 7 --num-predict 8 --num-ctx 64 --stop a --stop b "
        "-o min_p=0.1 --no-truncate --dimensions 5 --insecure"
    )
    assert main(["run", "m", "Hello", "you", *given.split()]) == 0
    assert main(["run", "m", "--think", "high"]) == 0  # the level must come after '='
    assert main(["run", "m"]) == 0
    options = {
        "min_p": 0.1, "temperature": 0.5, "top_k": 3, "top_p": 0.9, "seed": 7, "num_predict": 8,
        "num_ctx": 64, "stop": ["a", "b"],
    }  # fmt: skip
    settings = RunSettings(
        "m", options, system="Terse.", format="json", think="high", keep_alive="5m", hide_thinking=True,
        word_wrap=False, verbose=True, truncate=False, dimensions=5, insecure=True,
    )  # fmt: skip
    assert seen == [
        (settings, ["Hello", "you"]),
        (RunSettings("m", think=True), ["high"]),
        (RunSettings("m"), []),
    ]


@pytest.mark.parametrize("command", ["serve", "start"])
def test_start_is_another_name_of_serve(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []

    def run_server(host: Host, **_: str) -> int:
        asked.append(host.client_url)
        return 0

    monkeypatch.setattr("puna.server.serve", run_server)
    assert main([command, "--host", "127.0.0.1", "--port", "9"]) == 0
    assert asked == ["http://127.0.0.1:9"]


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"], ["help"]])
def test_the_main_help_lists_every_command(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 0
    text = capsys.readouterr().out
    assert all(f"\n  {name} " in text for name in COMMANDS)
    assert "Environment Variables:" in text
    assert 'puna run demo "Tell me a story"' in text


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_has_help_with_examples_and_variables(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, "--help"]) == 0
    text = capsys.readouterr().out
    assert f"Usage: puna {command}" in text
    assert all(example in text for _, example in PAGES[command].examples)
    assert all(variable in text for variable in PAGES[command].variables)
    assert main(["help", command]) == 0
    assert capsys.readouterr().out == text


@pytest.mark.parametrize("group", [[], ["cluster"], ["key"]])
def test_help_shows_the_whole_summary_of_each_command(
    group: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*group, "--help"]) == 0
    commands = re.sub(r"(?ms)^Examples:.*|^Usage:.*?\n", "", capsys.readouterr().out)
    assert "..." not in commands


def test_every_variable_is_explained_somewhere() -> None:
    assert {name for page in PAGES.values() for name in page.variables} == set(VARIABLES)


@pytest.mark.parametrize("arguments", [["version"], ["--version"], ["-v"]])
def test_the_version_needs_no_server(
    arguments: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PUNA_HOST", "127.0.0.1:9")
    assert main(arguments) == 0
    printed = capsys.readouterr()
    first, *parts = printed.out.splitlines()
    assert (first, printed.err) == (f"puna version is {__version__}", "")
    assert re.match(r"  python +3\.\d+\.\d+$", parts[0])
    assert re.match(r"  C\+\+ kernels +(compiled|missing)$", parts[1])
    assert f"  numpy              {metadata.version('numpy')}" in parts


@pytest.mark.parametrize(
    ("answer", "warning"),
    [
        ({"version": "0.24.0"}, "the server at {} is not Puna (its version is 0.24.0)"),
        (
            {"version": "0.24.0", "puna": "0.0.1"},
            "the server at {} runs version 0.0.1; restart it to update",
        ),
        ({"version": "0.24.0", "puna": __version__}, ""),
    ],
)
def test_version_warns_about_a_server_of_another_version(
    answer: dict[str, str],
    warning: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def told(handler: BaseHTTPRequestHandler) -> bool:
        reply(handler, 200, json.dumps(answer).encode(), {"content-type": "application/json"})
        return True

    with serving(Registry(Published.of(b""), intercept=told)) as server:
        monkeypatch.setenv("PUNA_HOST", server.address)
        assert main(["version"]) == 0
    expected = f"Warning: {warning.format(f'http://{server.address}')}\n" if warning else ""
    assert capsys.readouterr().err == expected


def test_unknown_variable_is_warned_about(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PUNA_MODEL", "/models")
    assert main(["help"]) == 0
    assert (
        capsys.readouterr().err
        == "Warning: PUNA_MODEL is not a setting of Puna (did you mean PUNA_MODELS?)\n"
    )


def test_characters_the_terminal_cannot_encode_are_escaped() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "puna", "show", "modèle", "--nöpe"],
        env=os.environ | {"PYTHONIOENCODING": "ascii"}, capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.startswith(b"Error: unknown flag: --n\\xf6pe\n")


def test_an_unreachable_remote_server_is_reported_with_a_hint(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PUNA_HOST", "http://127.0.0.1:9/prefix")
    assert main(["list"]) == 1
    assert "could not connect to the server at http://127.0.0.1:9/prefix" in capsys.readouterr().err


def test_ps_without_a_server_shows_an_empty_table(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PUNA_HOST", "127.0.0.1:9")
    assert main(["ps"]) == 0
    printed = capsys.readouterr()
    assert printed.out.split() == [
        "NAME",
        "ID",
        "SIZE",
        "PROCESSOR",
        "ENGINE",
        "CONTEXT",
        "MEMORY",
        "TOKENS/S",
        "UNTIL",
    ]
    assert "No server is running" in printed.err


def test_a_file_that_is_not_gguf_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "page.gguf"
    path.write_text("<html>")
    assert main(["tokenize", str(path), "hello"]) == 1
    assert "Error: " in (error := capsys.readouterr().err)
    assert "page.gguf" in error


def modules_after(code: str) -> set[str]:
    script = f"import sys\n{code}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.slow
def test_the_command_line_never_imports_torch() -> None:
    code = """
import importlib, pkgutil, puna.cli
for module in pkgutil.walk_packages(puna.cli.__path__, "puna.cli."):
    importlib.import_module(module.name)
"""
    loaded = modules_after(code)
    assert "puna.cli.repl.loop" in loaded
    assert "torch" not in loaded


def test_help_imports_no_heavy_library() -> None:
    loaded = modules_after("from puna.cli import main\nmain(['run', '--help'])")
    assert not loaded & {"httpx", "rich", "prompt_toolkit", "numpy", "torch", "puna.server", "puna.store"}


@pytest.mark.slow
def test_commands_and_the_server_import_only_libraries_they_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PUNA_HOST", "127.0.0.1:9")
    code = "from puna.cli import main\nmain(['ps'])"
    assert not modules_after(code) & {"rich", "pygments", "numpy", "uvicorn", "puna.store"}
    loaded = modules_after(code + "\nimport puna.server.serving")
    assert not loaded & {"rich", "pygments", "PIL", "tokenizers", "sentencepiece", "regex", "llguidance"}

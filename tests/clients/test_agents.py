"""Coding agents, started by `puna launch`, read and edit a real file: `make test-clients`."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.clients.expected import TEMPLATE
from tests.e2e.servers import Server, add_model, running
from tests.scripted import randomly_cut, trigger, write_scripted

pytestmark = [pytest.mark.clients, pytest.mark.e2e, pytest.mark.slow, pytest.mark.samples]

ROOT = Path(__file__).parents[2]
#: Each byte of a prompt is a token of the scripted model, and agents' prompts are long.
CONTEXT = 131072
FILE = "fox.txt"
BEFORE, AFTER = "The fox sleeps.\n", "The fox hunts.\n"
OLD, NEW = "sleeps", "hunts"
DONE = "The fox hunts now."
REQUEST = f"Make the fox in {FILE} hunt."


@dataclass(frozen=True)
class Agent:
    """An agent of `puna launch`, its arguments for one request, and the calls that read and edit the file."""

    name: str
    program: str
    arguments: tuple[str, ...]
    calls: tuple[tuple[str, dict[str, Any]], ...]


def calls(read: str, edit: str, path: str, old: str, new: str) -> tuple[tuple[str, dict[str, Any]], ...]:
    """Return a call of each of the tools `read` and `edit`, whose parameters have these names."""
    return (read, {path: "FILE"}), (edit, {path: "FILE", old: OLD, new: NEW})


AGENTS = [
    Agent(
        "claude",
        "claude",
        ("--allowedTools", "Read,Edit", "-p", REQUEST),
        calls("Read", "Edit", "file_path", "old_string", "new_string"),
    ),
    Agent(
        "codex",
        "codex",
        ("exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", REQUEST),
        (
            ("exec_command", {"cmd": "cat FILE"}),
            ("exec_command", {"cmd": f"sed -i s/{OLD}/{NEW}/ FILE"}),
        ),
    ),
    Agent(
        "opencode",
        "opencode",
        ("run", REQUEST),
        calls("read", "edit", "filePath", "oldString", "newString"),
    ),
    Agent(
        "qwen",
        "qwen",
        ("--yolo", "-p", REQUEST),
        calls("read_file", "edit", "file_path", "old_string", "new_string"),
    ),
    Agent(
        "continue",
        "cn",
        ("--auto", "-p", REQUEST),
        (
            ("Read", {"filepath": "FILE"}),
            ("Edit", {"file_path": "FILE", "old_string": OLD, "new_string": NEW}),
        ),
    ),
    Agent(
        "copilot",
        "copilot",
        ("--allow-all-tools", "-p", REQUEST),
        calls("view", "edit", "path", "old_str", "new_str"),
    ),
    Agent(
        "pi",
        "pi",
        ("-p", REQUEST),
        (
            ("read", {"path": "FILE"}),
            ("edit", {"path": "FILE", "edits": [{"oldText": OLD, "newText": NEW}]}),
        ),
    ),
    Agent(
        "cline",
        "cline",
        (REQUEST,),
        (
            ("read_files", {"files": [{"path": "FILE"}]}),
            ("editor", {"path": "FILE", "old_text": OLD, "new_text": NEW}),
        ),
    ),
    Agent(
        "goose",
        "goose",
        ("run", "--no-session", "--text", REQUEST),
        (("shell", {"command": "cat FILE"}), ("edit", {"path": "FILE", "before": OLD, "after": NEW})),
    ),
    Agent("aider", "aider", ("--yes-always", "--no-git", "--message", REQUEST, FILE), ()),
]
#: Aider asks for files in the answer's text instead of calls.
AIDER = f"{FILE}\n```\n{AFTER}```\n"


def folders() -> list[str]:
    """Return the folders of the installed agents' programs."""
    packages = Path(__file__).parent / "agents" / "node_modules"
    return [
        str(packages / ".bin"),
        str(packages / "@aaif" / "goose-binary-linux-x64" / "bin"),
        str(ROOT / ".venv-agents" / "bin"),
    ]


def write_model(path: Path, agent: Agent, file: Path) -> Path:
    """Write a model that makes the agent's calls, one a turn, and then says that it is done.

    The template selects the turn by the number of results, and says nothing of tools without tools.
    """
    texts = [
        "<tool_call>\n" + json.dumps({"name": name, "arguments": arguments}) + "\n</tool_call>"
        for name, arguments in agent.calls
    ]
    texts = [text.replace("FILE", str(file)) for text in texts] or [AIDER]
    turn = (
        "{% set turn = namespace(number=0) %}"
        "{% for m in messages if m.role == 'tool' %}{% set turn.number = turn.number + 1 %}{% endfor %}"
        "{% if tools and turn.number == 0 %}" + trigger(0) + "{% elif tools and turn.number == 1 %}"
        f"{trigger(1)}{{% else %}}{trigger(len(agent.calls))}{{% endif %}}"
    )
    template = TEMPLATE.partition("{% if '<<'")[0] + turn
    return write_scripted(path, randomly_cut([*texts, DONE]), template=template, context=CONTEXT)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    models = tmp_path_factory.mktemp("agents") / "models"
    with running(models, PUNA_CONTEXT_LENGTH=str(CONTEXT)) as started:
        yield started


def end_daemons(home: str) -> None:
    """End the processes that an agent with that home directory has left for its next start."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("HOME") == home:
                process.kill()


@pytest.mark.parametrize("agent", AGENTS, ids=lambda agent: agent.name)
def test_agent_edits_a_file(server: Server, agent: Agent, tmp_path: Path) -> None:
    path = os.pathsep.join([*folders(), os.environ["PATH"]])
    if shutil.which(agent.program, path=path) is None:
        pytest.skip(f"{agent.name} is not installed: `make test-clients` does it, if there is npm")
    project = tmp_path / "project"
    project.mkdir()
    file = project / FILE
    file.write_text(BEFORE)
    add_model(server, agent.name, write_model(tmp_path / "model.gguf", agent, file))
    subprocess.run(["git", "init", "--quiet", project], check=True)
    (tmp_path / "home").mkdir()
    settings = {
        "PUNA_HOST": server.url,
        "PUNA_HOME": str(tmp_path / "puna"),
        "HOME": str(tmp_path / "home"),
        "PWD": str(project),
    }
    try:
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "puna",
                "launch",
                agent.name,
                "--model",
                agent.name,
                "--",
                *agent.arguments,
            ],
            cwd=project,
            env={**os.environ, **settings, "PATH": path},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
    finally:
        end_daemons(settings["HOME"])
    server.unload()
    assert file.read_text() == AFTER, done.stdout + done.stderr
    assert done.returncode == 0, done.stderr
    if agent.calls:
        assert DONE in done.stdout

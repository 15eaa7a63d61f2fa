"""`puna launch`: agents are replaced by programs that record how they were started."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from puna.cli import main
from puna.cli.launch.agents import AGENTS, Agent
from tests import commands
from tests.cli.shell import Shell, end_process
from tests.cli.test_terminal import terminal
from tests.ports import free_port
from tests.registry.registries import Published, Registry, reply, serving
from tests.scripted import randomly_cut, write_scripted

KEY = "puna-very-secret"
TOOLS = ["completion", "tools"]
#: Records arguments, environment, and whether standard input and output are terminals.
RECORDER = f"""#!{sys.executable}
import json, os, sys
record = {{
    "arguments": sys.argv[1:],
    "variables": dict(os.environ),
    "pid": os.getpid(),
    "terminal": [stream.isatty() for stream in (sys.stdin, sys.stdout)],
}}
with open(os.environ["RECORD"], "w") as file:
    json.dump(record, file)
print("the agent runs", flush=True)
if "wait" in sys.argv:
    sys.stdin.readline()
sys.exit(7 if "fail" in sys.argv else 0)
"""


def tag(name: str, context: int, capabilities: list[str] = TOOLS) -> dict[str, Any]:
    return {"name": f"{name}:latest", "capabilities": capabilities, "details": {"context_length": context}}


class Models:
    """The replies of a server about its models."""

    def __init__(self) -> None:
        self.tags = [tag("small", 2048), tag("plain", 262144, ["completion"]), tag("coder", 131072)]
        self.default = 65536
        self.parameters: dict[str, str] = {}
        self.loaded: list[str] = []
        self.load_error = ""

    def answer(self, handler: BaseHTTPRequestHandler) -> bool:
        path = handler.path
        size = int(handler.headers.get("Content-Length") or 0)
        body = json.loads(handler.rfile.read(size) or "{}")
        value: dict[str, Any] = {}
        if path == "/api/version":
            value = {"version": "1", "puna": "1", "context_length": self.default}
        elif path == "/api/tags":
            value = {"models": self.tags}
        elif path == "/api/show":
            value = {"parameters": self.parameters.get(body["model"], "")}
        elif path == "/api/generate":
            self.loaded.append(body["model"])
            value = {"error": self.load_error} if self.load_error else {}
        reply(handler, 400 if "error" in value else 200, json.dumps(value).encode())
        return True


class Place:
    """A home with recording agents, and a server that answers."""

    def __init__(self, folder: Path, host: str) -> None:
        self.home = folder / "home"
        self.record = folder / "record.json"
        self.programs = folder / "bin"
        self.home.mkdir()
        self.programs.mkdir()
        self.host = host
        for agent in AGENTS:
            self.install(agent.program)

    def install(self, program: str, text: str = RECORDER) -> None:
        path = self.programs / program
        path.write_text(text)
        path.chmod(0o755)

    @property
    def env(self) -> dict[str, str]:
        inherited = {
            name: value for name, value in os.environ.items() if not name.startswith(("PUNA_", "OLLAMA_"))
        }
        return inherited | {
            "HOME": str(self.home),
            "PATH": f"{self.programs}:/usr/bin:/bin",
            "PUNA_HOME": str(self.home / ".puna"),
            "PUNA_MODELS": str(self.home / "models"),
            "PUNA_HOST": self.host,
            "RECORD": str(self.record),
        }

    def run(self, *words: str, **settings: str) -> subprocess.CompletedProcess[str]:
        return commands.run("launch", *words, env=self.env | settings)

    def recorded(self) -> dict[str, Any]:
        return dict(json.loads(self.record.read_text()))

    def files(self) -> dict[str, str]:
        """Return the text of all files in the home."""
        return {
            str(path.relative_to(self.home)): path.read_text()
            for path in self.home.rglob("*")
            if path.is_file()
        }


@pytest.fixture
def models() -> Models:
    return Models()


@pytest.fixture
def place(tmp_path: Path, models: Models) -> Iterator[Place]:
    with serving(Registry(Published.of(b""), intercept=models.answer)) as server:
        yield Place(tmp_path, f"http://{server.address}")


def names(agents: tuple[Agent, ...] = AGENTS) -> list[str]:
    return [agent.name for agent in agents]


def shown(value: object) -> str:
    return json.dumps(value)


@pytest.mark.parametrize("agent", AGENTS, ids=lambda agent: agent.name)
def test_agent_gets_server_model_and_key(agent: Agent, place: Place) -> None:
    done = place.run(agent.name, "--yes", "--", "one", "two words", PUNA_API_KEY=KEY)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "the agent runs\n"
    record = place.recorded()
    assert record["arguments"][-2:] == ["one", "two words"]
    settings = shown([record["arguments"], record["variables"], place.files()])
    assert place.host.removeprefix("http://") in settings
    model = "coder" if agent.tools else "plain"
    assert model in settings
    assert f"{agent.title} with {model}" in done.stderr
    given = [name for name, value in record["variables"].items() if value == KEY]
    assert set(given) >= {"PUNA_API_KEY", *agent.setup(_session()).keys}


@pytest.mark.parametrize("agent", AGENTS, ids=lambda agent: agent.name)
def test_key_is_neither_written_nor_printed_nor_an_argument(agent: Agent, place: Place) -> None:
    done = place.run(agent.name, "--yes", PUNA_API_KEY=KEY)
    printed = place.run(agent.name, "--print", PUNA_API_KEY=KEY)
    assert done.returncode == printed.returncode == 0
    everything = [done.stdout, done.stderr, printed.stdout, printed.stderr, place.recorded()["arguments"]]
    assert KEY not in shown([everything, place.files()])


@pytest.mark.parametrize("agent", AGENTS, ids=lambda agent: agent.name)
def test_printed_commands_start_the_agent_the_same_way(agent: Agent, place: Place) -> None:
    before = place.files()
    printed = place.run(agent.name, "--print", "--", "it's", PUNA_API_KEY=KEY)
    assert printed.returncode == 0, printed.stderr
    assert place.files() == before, "--print changed a file"
    assert not place.record.exists(), "--print started the agent"
    env = place.env | {"PUNA_API_KEY": KEY}
    subprocess.run(["sh", "-c", printed.stdout], env=env, check=True, capture_output=True)
    by_hand = place.recorded()
    assert place.run(agent.name, "--yes", "--", "it's", PUNA_API_KEY=KEY).returncode == 0
    by_puna = place.recorded()
    assert by_hand["arguments"] == by_puna["arguments"]
    for name in ("_", "PWD", "OLDPWD", "SHLVL"):
        by_hand["variables"].pop(name, None)
        by_puna["variables"].pop(name, None)
    assert by_hand["variables"] == by_puna["variables"]


def test_agents_without_a_key_get_a_placeholder(place: Place) -> None:
    assert place.run("claude").returncode == 0
    variables = place.recorded()["variables"]
    assert variables["ANTHROPIC_AUTH_TOKEN"] == "none"
    assert variables["ANTHROPIC_API_KEY"] == ""


def test_exit_status_is_the_agents(place: Place) -> None:
    assert place.run("codex", "--", "fail").returncode == 7


def test_goose_starts_a_session_unless_told_otherwise(place: Place) -> None:
    assert place.run("goose").returncode == 0
    assert place.recorded()["arguments"] == ["session"]
    assert place.run("goose", "--", "run", "-t", "hi").returncode == 0
    assert place.recorded()["arguments"] == ["run", "-t", "hi"]


def test_list_shows_programs_and_how_to_install_the_others(place: Place) -> None:
    (place.programs / "aider").unlink()
    done = place.run()
    assert [line.split()[0] for line in done.stdout.splitlines()[1:]] == names()
    assert str(place.programs / "claude") in done.stdout
    assert "not installed: python -m pip install aider-install" in done.stdout


def test_missing_program_is_an_error_that_says_how_to_install_it(place: Place) -> None:
    (place.programs / "codex").unlink()
    done = place.run("codex")
    assert done.returncode == 1
    assert "Codex is not installed" in done.stderr
    assert "npm install -g @openai/codex" in done.stderr


def test_program_is_found_where_its_installer_puts_it(place: Place) -> None:
    folder = place.home / ".local" / "bin"
    folder.mkdir(parents=True)
    (place.programs / "claude").rename(folder / "claude")
    assert place.run("claude").returncode == 0
    assert place.record.exists()


def test_program_that_cannot_run_is_an_error(place: Place) -> None:
    place.install("codex", "#!/nonexistent/interpreter\n")
    done = place.run("codex")
    assert done.returncode == 1
    assert "cannot start" in done.stderr


def test_unknown_agent_is_an_error_with_the_nearest_name(place: Place) -> None:
    done = place.run("cladue")
    assert done.returncode == 1
    assert "unknown agent 'cladue' (did you mean \"claude\"?)" in done.stderr


def test_aliases_are_known(place: Place) -> None:
    assert place.run("copilot-cli").returncode == 0
    assert place.recorded()["variables"]["COPILOT_MODEL"] == "coder"


# --- models ---


def test_newest_suitable_model_is_chosen(place: Place, models: Models) -> None:
    models.tags.insert(0, tag("newer", 40960))
    done = place.run("claude", "--print")
    assert (
        "Claude Code with newer (calls tools, 40960 tokens of context, the newest of 2 that suit)"
        in done.stderr
    )
    assert "export CLAUDE_CODE_MAX_CONTEXT_TOKENS=40960" in done.stdout


def test_no_suitable_model_is_an_error_that_says_why(place: Place, models: Models) -> None:
    models.tags.pop()
    done = place.run("claude")
    assert done.returncode == 1
    assert not place.record.exists()
    assert "needs a model that calls tools, with 32768 tokens of context, and there is none" in done.stderr
    assert "'small' has 2048 tokens of context; 'plain' cannot call tools" in done.stderr
    assert "puna pull" in done.stderr


def test_server_that_gives_too_little_context_is_an_error_with_the_remedy(
    place: Place, models: Models
) -> None:
    models.default = 4096
    done = place.run("claude")
    assert done.returncode == 1
    assert "'coder' has 4096 tokens of context" in done.stderr
    assert "puna serve --stop" in done.stderr


def test_named_model_that_the_server_gives_too_little_is_an_error(place: Place, models: Models) -> None:
    models.default = 4096
    done = place.run("claude", "--model", "coder")
    assert done.returncode == 1
    assert (
        "'coder' has 4096 tokens of context here; Claude Code needs 32768. The model has more" in done.stderr
    )
    assert not place.record.exists()


def test_models_own_context_counts_before_the_servers(place: Place, models: Models) -> None:
    models.default = 4096
    models.parameters["coder"] = "num_ctx                        50000\nseed                           1"
    done = place.run("claude", "--print")
    assert "export CLAUDE_CODE_MAX_CONTEXT_TOKENS=50000" in done.stdout


def test_server_of_ollama_leaves_the_model_its_own_context(place: Place, models: Models) -> None:
    models.default = 0
    done = place.run("claude", "--print")
    assert "export CLAUDE_CODE_MAX_CONTEXT_TOKENS=131072" in done.stdout


def test_named_model_must_exist_and_call_tools(place: Place) -> None:
    done = place.run("claude", "--model", "nosuch")
    assert done.returncode == 1
    assert "there is no model 'nosuch' that chats (there are: small, plain, coder)" in done.stderr
    done = place.run("claude", "--model", "plain")
    assert done.returncode == 1
    assert "model 'plain' cannot call tools, which Claude Code needs" in done.stderr
    assert place.run("aider", "--model", "plain").returncode == 0


def test_named_model_with_a_short_context_is_used_with_a_warning(place: Place) -> None:
    done = place.run("claude", "--model", "small:latest")
    assert done.returncode == 0
    assert "'small' has 2048 tokens of context here; Claude Code needs 32768" in done.stderr
    assert place.recorded()["variables"]["ANTHROPIC_MODEL"] == "small"


def test_model_is_loaded_before_its_agent_starts(place: Place, models: Models) -> None:
    assert place.run("claude", "--print").returncode == 0
    assert models.loaded == []
    assert place.run("claude").returncode == 0
    assert models.loaded == ["coder"]
    place.record.unlink()
    models.load_error = "it needs 9 GB of memory; num_ctx 8192 would fit"
    done = place.run("claude")
    assert done.returncode == 1
    assert "num_ctx 8192 would fit" in done.stderr
    assert not place.record.exists()


# --- settings that are the user's ---

DROID = """{
  // my own
  "theme": "dark",
  "customModels": [ // more to come
    { "id": "custom:mine", "model": "mine", "apiKey": "x" },
  ],
}
"""


def settings_of_droid(place: Place, text: str | None = DROID) -> Path:
    path = place.home / ".factory" / "settings.json"
    path.parent.mkdir()
    if text is not None:
        path.write_text(text)
        path.chmod(0o600)
    return path


def test_users_settings_keep_everything_else_and_are_copied(place: Place) -> None:
    path = settings_of_droid(place)
    done = place.run("droid", "--yes")
    assert done.returncode == 0, done.stderr
    text = path.read_text()
    kept = [line for line in DROID.splitlines() if line not in text.splitlines()]
    assert kept == [], "a line of the user's was changed"
    assert '"apiKey": "${PUNA_API_KEY}"' in text
    assert '+      "model": "coder"' in done.stderr
    (copy,) = path.parent.glob("settings.json.before-puna-*")
    assert copy.read_text() == DROID
    assert path.stat().st_mode & 0o777 == 0o600
    assert place.run("droid", "--yes").returncode == 0, "again"
    assert path.read_text() == text
    assert len(list(path.parent.iterdir())) == 2, "an unchanged file was written"


def test_what_an_agent_remembers_beside_our_settings_stays(place: Place) -> None:
    assert place.run("crush").returncode == 0
    path = Path(place.recorded()["variables"]["CRUSH_GLOBAL_DATA"]) / "crush.json"
    written = json.loads(path.read_text())
    assert written["models"]["large"]["model"] == "coder"
    path.write_text(json.dumps({**written, "recent": ["coder"], "models": {"large": {"model": "other"}}}))
    assert place.run("crush").returncode == 0
    assert json.loads(path.read_text()) == {**written, "recent": ["coder"]}


def test_settings_are_not_changed_without_consent(place: Place) -> None:
    path = settings_of_droid(place)
    done = place.run("droid")
    assert done.returncode == 1
    assert "--yes makes the change without asking" in done.stderr
    assert path.read_text() == DROID
    assert not place.record.exists()


def test_settings_that_cannot_be_read_are_an_error(place: Place) -> None:
    path = settings_of_droid(place, '{"customModels": [}')
    done = place.run("droid", "--yes")
    assert done.returncode == 1
    assert f"cannot add settings to {path} (line 1, column 19: there is no value)" in done.stderr
    path.write_text('{"customModels": {}}')
    assert "customModels is not an array" in place.run("droid", "--yes").stderr
    assert path.read_text() == '{"customModels": {}}'


def test_linked_settings_stay_a_link(place: Place) -> None:
    path = settings_of_droid(place, None)
    real = place.home / "dotfiles.json"
    real.write_text("{}")
    path.symlink_to(real)
    assert place.run("droid", "--yes").returncode == 0
    assert path.is_symlink()
    assert "customModels" in real.read_text()


@pytest.mark.e2e
@pytest.mark.parametrize(("answer", "status"), [("y\r", 0), ("\r", 1), ("\x03", 130)])
def test_terminal_asks_before_settings_change(place: Place, answer: str, status: int) -> None:
    path = settings_of_droid(place)
    with terminal(_shell(place), "launch", "droid") as screen:
        screen.wait_for("Change this file? [y/N] ")
        screen.type(answer)
        assert screen.leave() == status
    assert (path.read_text() != DROID) == (status == 0)
    assert place.record.exists() == (status == 0)


@pytest.mark.e2e
def test_agent_replaces_the_process_and_has_its_terminal(place: Place) -> None:
    with terminal(_shell(place), "launch", "codex", "--", "wait") as screen:
        screen.wait_for("the agent runs")
        record = place.recorded()
        assert record["pid"] == screen.process.pid
        assert record["terminal"] == [True, True]
        screen.type("\x03")
        assert screen.leave() not in (0, 7)


# --- servers ---


def test_print_without_a_server_needs_a_model_and_starts_none(place: Place) -> None:
    place.host = f"127.0.0.1:{free_port()}"
    done = place.run("claude", "--print")
    assert done.returncode == 1
    assert "could not connect" in done.stderr
    done = place.run("claude", "--print", "--model", "coder")
    assert done.returncode == 0
    assert "export ANTHROPIC_MODEL=coder" in done.stdout
    assert "context is not known" in done.stderr
    assert "MAX_CONTEXT" not in done.stdout


@pytest.mark.e2e
@pytest.mark.slow
def test_server_is_started_with_a_context_that_is_long_enough(place: Place, tmp_path: Path) -> None:
    shell = replace(_shell(place), port=free_port())
    place.host = f"127.0.0.1:{shell.port}"
    template = (
        "{% for m in messages %}{{ m.content }}{% endfor %}{% if tools %}{{ tools }}<tool_call>{% endif %}"
    )
    model = write_scripted(tmp_path / "m.gguf", randomly_cut(["Hello."]), template=template, context=131072)
    started = place.run("aider", "--model", "demo")
    server = int(started.stderr.partition("process ")[2].partition(",")[0])
    try:
        assert started.returncode == 0, started.stderr
        made = commands.run("create", "coder", "-f", "-", env=place.env, stdin=f"FROM {model}")
        assert made.returncode == 0, made.stderr
        done = place.run("claude")
        assert done.returncode == 0, done.stderr
        assert "Claude Code with coder (calls tools, 65536 tokens of context)" in done.stderr
        assert place.recorded()["variables"]["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] == "65536"
        assert "PUNA_CONTEXT_LENGTH" not in place.recorded()["variables"]
    finally:
        end_process(server)


@pytest.mark.parametrize("name", ["..", "../../x", "/etc/x", "a/b:c", ""])
def test_files_of_a_model_stay_in_our_folder(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PUNA_HOME", str(tmp_path))
    path = replace(_session(), model=name).file("x.json")
    assert path.resolve().parents[1] == tmp_path / "launch"


def test_documented_table_is_that_of_the_agents() -> None:
    page = (Path(__file__).parents[2] / "docs" / "agents-launch.md").read_text()
    rows = [line.split(" | ")[:3] for line in page.splitlines() if line.startswith("| `")]
    assert rows == [[f"| `{agent.name}`", agent.title, agent.api] for agent in AGENTS]
    contexts = {context: [a.title for a in AGENTS if a.context == context] for context in (8192, 16384)}
    assert contexts == {8192: ["Aider", "Pi"], 16384: ["Codex", "OpenCode", "Goose", "Continue"]}
    assert (
        "8192 tokens for Aider and Pi, 16384 for Codex, OpenCode, Goose and Continue, 32768 for the" in page
    )


def test_completion_knows_the_agents(capsys: pytest.CaptureFixture[str]) -> None:
    from puna.cli.arguments import complete_agent

    assert complete_agent("co") == ["codex", "continue", "copilot"]
    assert main(["launch", "--help"]) == 0
    assert "puna launch claude" in capsys.readouterr().out


def _session() -> Any:
    from puna.cli.launch.agents import Session

    return Session("http://127.0.0.1:11434", "coder", 65536, frozenset(TOOLS))


def _shell(place: Place) -> Shell:
    """Return a shell in the environment of `place`."""

    class Here(Shell):
        @property
        def env(self) -> dict[str, str]:
            return place.env

    return Here(place.home, 0)

"""`puna run --mcp` and `/mcp`: tools of MCP servers, shown and confirmed, with a real server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cli.shell import Shell
from tests.cli.test_terminal import READY, terminal
from tests.library.test_tools import ANSWER, TEMPLATE, call
from tests.mcp.servers import command, over_http
from tests.scripted import randomly_cut, trigger, write_scripted

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

SCRIPTS = [
    call("look_up", word="fig"),
    ANSWER,
    call("wait", seconds=300),
    call("good"),
    call("nosuch"),
    call("environment", name="STRANGER_KEY\u009b"),
]


@dataclass(frozen=True)
class Calling(Shell):
    """A shell with a file of MCP servers, and the model `caller`."""

    config: str = ""

    @property
    def env(self) -> dict[str, str]:
        return super().env | {"PUNA_MCP_CONFIG": self.config}


@pytest.fixture(scope="module")
def caller(shell: Shell, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Calling]:
    """Each start of `started` takes a second; `stranger` is the same server, which runs all the time."""
    folder = tmp_path_factory.mktemp("mcp")
    model = write_scripted(folder / "caller.gguf", randomly_cut(SCRIPTS), template=TEMPLATE)
    shell.out("create", "caller", "-f", "-", stdin=f"FROM {model}")
    started = command("stranger")
    started["env"] |= {"STRANGER_KEY": "hunter22"}
    with over_http() as url:
        servers = {
            "stranger": {"url": url},
            "trusted": {"url": url, "allow": ["*"]},
            "started": started,
            "bad": command("hostile", "names"),
            "flood": command("hostile", "notifications"),
            "gone": {"command": "/no/such/program"},
        }
        (folder / "mcp.json").write_text(json.dumps({"mcpServers": servers}))
        yield Calling(shell.home, shell.port, shell.server, str(folder / "mcp.json"))


def ask(script: int) -> tuple[str, ...]:
    return ("run", "caller", "--temperature", "0", trigger(script))


def test_allowed_calls_run_and_only_the_answer_is_on_standard_output(caller: Calling) -> None:
    done = caller.run(*ask(0), "--mcp", "stranger", "--mcp-allow", "look_up")
    assert (done.returncode, done.stdout) == (0, f"{ANSWER}\n\n")
    assert 'Call: stranger/look_up {"word": "fig"}\n  fig means <<1>>\n' in done.stderr
    assert caller.run(*ask(0), "--mcp", "trusted").stdout == f"{ANSWER}\n\n"
    for name in ("stranger/look_up", "stranger/*"):
        assert caller.run(*ask(0), "--mcp", "stranger", "--mcp-allow", name).stdout == f"{ANSWER}\n\n"


def test_without_a_terminal_nothing_runs_that_is_not_allowed(caller: Calling) -> None:
    done = caller.run(*ask(0), "--mcp", "stranger", "--mcp-allow", "trusted/look_up")
    assert (
        "Warning: stranger/look_up is not allowed; allow it with --mcp-allow stranger/look_up" in done.stderr
    )
    assert "means" not in done.stderr
    assert "Warning: stopped after 25 rounds of tool calls" in done.stderr


def test_without_servers_a_call_is_shown_as_before(caller: Calling) -> None:
    assert "Model called a non-existent function" not in caller.run(*ask(0)).stdout
    assert 'look_up{"word": "fig"}' in caller.run(*ask(0)).stdout


def test_servers_that_fail_are_named(caller: Calling) -> None:
    unknown = caller.run(*ask(0), "--mcp", "strange")
    assert (unknown.returncode, unknown.stdout) == (1, "")
    assert "no MCP server 'strange'" in unknown.stderr
    assert '(did you mean "stranger"?)' in unknown.stderr
    gone = caller.run(*ask(0), "--mcp", "gone")
    assert "Error: MCP server 'gone': 'program' cannot be started" in gone.stderr


def test_tools_that_cannot_be_offered_are_warned_about(caller: Calling) -> None:
    done = caller.run(*ask(3), "--mcp", "bad", "--mcp-allow", "good")
    assert "Warning: MCP server 'bad', tool 'a b': its name may only have" in done.stderr
    assert "\x1b" not in done.stderr
    assert "Call: bad/good {}\n  well\n" in done.stderr


def test_a_model_that_calls_what_is_not_there_is_told(caller: Calling) -> None:
    done = caller.run(*ask(4), "--mcp", "stranger")
    assert "Call: nosuch {}\n  There is no such tool." in done.stderr


def test_each_call_is_confirmed_in_a_chat(caller: Calling) -> None:
    with terminal(caller, "run", "caller", "--temperature", "0", "--mcp", "stranger") as screen:
        screen.wait_for(READY)
        screen.type(f"{trigger(0)}\r")
        screen.wait_for('Call: stranger/look_up {"word": "fig"}')
        screen.wait_for("Allow stranger/look_up? [y]es, [n]o, [a]lways: ")
        screen.type("y\r")
        screen.wait_for("fig means <<1>>")
        screen.wait_for(ANSWER)
        screen.wait_for(READY)
        screen.type(f"{trigger(0)}\r")
        screen.wait_for("[a]lways: ")
        screen.type("a\r")
        screen.wait_for(ANSWER)
        screen.wait_for(READY)
        screen.type(f"{trigger(0)}\r")
        shown = screen.wait_for(ANSWER)
        assert "Allow" not in shown
        screen.wait_for(READY)
        screen.type("/bye\r")
        assert screen.leave() == 0


def test_a_refused_call_is_an_answer_and_ctrl_c_ends_the_turn(caller: Calling) -> None:
    with terminal(caller, "run", "caller", "--temperature", "0", "--mcp", "stranger") as screen:
        screen.wait_for(READY)
        screen.type(f"{trigger(2)}\r")
        screen.wait_for("[a]lways: ")
        screen.type("n\r")
        screen.wait_for("error: the user refused this call")
        screen.wait_for("[a]lways: ")  # the scripted model calls again
        screen.type("\x03")
        screen.wait_for(READY)
        screen.type(f"{trigger(2)}\r")
        screen.wait_for("[a]lways: ")
        screen.type("y\r")
        screen.wait_for("waiting for stranger/wait")
        screen.type("\x03")
        screen.wait_for("the call was cancelled")
        screen.wait_for(READY)
        screen.type(f"{trigger(1)}\r")  # the conversation goes on
        screen.wait_for(ANSWER)
        screen.type("\x04")


def test_control_characters_of_a_call_are_made_visible(caller: Calling) -> None:
    with terminal(caller, "run", "caller", "--temperature", "0", "--mcp", "trusted") as screen:
        screen.wait_for(READY)
        screen.type(f"{trigger(5)}\r")
        assert "\x9b" not in screen.wait_for("(not set)")


def test_a_server_that_floods_fails_its_call_and_the_chat_goes_on(caller: Calling) -> None:
    with terminal(caller, "run", "caller", "--temperature", "0", "--mcp", "flood") as screen:
        screen.wait_for(READY)
        screen.type(f"{trigger(3)}\r")
        screen.wait_for("[a]lways: ")
        screen.type("y\r")
        screen.wait_for("'flood', tool 'good'")
        screen.wait_for("more than 10000 messages at once")
        screen.wait_for("There is no such tool.")  # without a trigger, the model calls look_up
        screen.wait_for(READY)
        screen.type(f"{trigger(1)}\r")
        screen.wait_for(ANSWER)
        screen.type("\x04")


def test_servers_are_connected_and_disconnected_by_commands(caller: Calling) -> None:
    with terminal(caller, "run", "caller", "--temperature", "0") as screen:
        screen.wait_for(READY)
        screen.type("/mcp\r")
        screen.wait_for("Not connected: stranger, trusted, started, bad, flood, gone")
        screen.wait_for(READY)
        screen.type("/mcp gone\r")
        screen.wait_for("error: MCP server 'gone'")
        screen.wait_for(READY)
        screen.type("/mcp started\r")
        screen.wait_for("Connected 'started'")
        screen.wait_for(READY)
        screen.type("/mcp trusted\r")
        screen.wait_for("Connected 'trusted'")
        screen.wait_for(READY)
        screen.type("/mcp\r")
        screen.wait_for("started (python")
        screen.wait_for("started_look_up")
        screen.wait_for("trusted_look_up  (allowed)")
        screen.wait_for(READY)
        screen.type("/mcp off trusted\r")
        screen.wait_for("Disconnected 'trusted'")
        screen.wait_for(READY)
        screen.type(f"{trigger(0)}\r")
        screen.wait_for("Allow started/look_up?")
        screen.type("y\r")
        screen.wait_for(ANSWER)
        screen.wait_for(READY)
        screen.type("/save kept\r")
        screen.wait_for("Created new model 'kept'")
        screen.type("\x04")
    saved = caller.out("show", "kept", "--modelfile")
    assert ANSWER in saved
    assert "hunter22" not in saved
    caller.out("rm", "kept")


def test_secrets_are_in_no_output(caller: Calling, tmp_path: Path) -> None:
    done = caller.run(*ask(0), "--mcp", "started", "--mcp-allow", "started/*", PUNA_DEBUG="1")
    assert done.stdout == f"{ANSWER}\n\n"
    logs = "".join(path.read_text() for path in caller.home.glob("logs/*.log"))
    assert "hunter22" not in done.stdout + done.stderr + logs

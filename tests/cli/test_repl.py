"""The interactive prompt with a real server: keys in, screen out."""

from __future__ import annotations

import copy
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from puna.cli.client import Client
from puna.cli.repl.commands import run_command
from puna.cli.repl.loop import LineHistory, converse
from puna.cli.repl.session import Session
from puna.cli.settings import RunSettings
from puna.errors import RequestError
from puna.hosts import parse_host
from tests.cli.shell import Shell
from tests.model.test_load import rewritten

pytestmark = pytest.mark.e2e


@dataclass
class Talk:
    """A function that types lines, one message each, and returns standard output."""

    shell: Shell
    capsys: pytest.CaptureFixture[str]
    errors: str = ""  # standard error

    def __call__(self, *lines: str, model: str = "tiny", leave: str = "\x04") -> str:
        settings = RunSettings(model=model, options={"temperature": 0.0, "num_predict": 8})
        with (
            create_pipe_input() as keys,
            create_app_session(input=keys, output=DummyOutput()),
            Client(parse_host(self.shell.env["PUNA_HOST"])) as client,
        ):
            keys.send_text("".join(line + "\r" for line in lines) + leave)
            converse(client, settings)
        shown = self.capsys.readouterr()
        self.errors = shown.err
        return shown.out


@pytest.fixture
def talk(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Talk:
    monkeypatch.setenv("PUNA_HOME", str(tmp_path))
    monkeypatch.delenv("PUNA_NOHISTORY", raising=False)
    monkeypatch.delenv("OLLAMA_NOHISTORY", raising=False)
    return Talk(shell, capsys)


@pytest.mark.parametrize("leave", ["/bye\r", "/exit\r", "/byebye\r", "\x04"])
def test_every_way_to_leave_works(talk: Talk, leave: str) -> None:
    assert talk(leave=leave).strip() == ""


def test_a_message_is_answered(talk: Talk, shell: Shell) -> None:
    alone = shell.out("run", "tiny", "hello", "--temperature", "0", "--num-predict", "8")
    assert talk("hello") == alone + "\n"


def test_the_conversation_is_sent_and_clear_drops_it(talk: Talk) -> None:
    once = talk("hello")[:-1]
    twice = talk("hello", "hello")[:-1]
    assert twice.startswith(once)
    assert twice != once * 2, "the second answer ignores the first"
    assert talk("hello", "/clear", "hello")[:-1] == once + "Cleared session context\n" + once


def test_messages_may_span_several_lines(talk: Talk) -> None:
    assert talk('"""hello', 'world"""') == talk("hello\x1b\rworld")
    assert talk('"""hello"""') == talk("hello")


def test_set_and_show_confirm_or_explain(talk: Talk) -> None:
    output = talk(
        "/set parameter seed 42",
        '/set parameter stop "a b" c',
        "/set parameter top_p 7",
        "/set parameter heat 7",
        "/set system Be brief.",
        "/show system",
        "/show parameters",
        "/show license",
        "/set verbose",
        "/set quiet",
        "/set wordwrap",
        "/set nowordwrap",
        "/set format json",
        "/set noformat",
        "/set format xml",
        "/set think high",
        "/set nothink",
    )
    assert output.splitlines() == [
        "Set parameter 'seed' to '42'",
        "Set parameter 'stop' to 'a b, c'",
        'Couldn\'t set parameter: "option "top_p" must be between 0 and 1, not 7.0"',
        "Couldn't set parameter: \"unknown parameter 'heat'\"",
        "Set system message.",
        "Be brief.",
        "Model defined parameters:",
        "  none",
        "",
        "User defined parameters:",
        "  temperature                    0.0",
        "  num_predict                    8",
        "  seed                           42",
        "  stop                           'a b', 'c'",
        "",
        "No license was specified for this model.",
        "Set 'verbose' mode.",
        "Set 'quiet' mode.",
        "Set 'wordwrap' mode.",
        "Set 'nowordwrap' mode.",
        "Set format to 'json' mode.",
        "Disabled format.",
        "Invalid or missing format. For 'json' mode use '/set format json'",
        "Couldn't set think: model 'tiny' does not support thinking",
        "Set 'nothink' mode.",
        "",
    ]


@pytest.mark.parametrize(
    ("part", "missing"),
    [("license", "license"), ("system", "system message"), ("template", "prompt template")],
)
def test_show_names_the_parts_a_model_lacks(
    part: str, missing: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with Client(parse_host("127.0.0.1:9")) as client:
        session = Session(client, RunSettings("m"))
        assert run_command(session, f"/show {part}", LineHistory(Path("none")))
    assert capsys.readouterr().out == f"No {missing} was specified for this model.\n"


def test_settings_apply_to_the_requests_that_follow(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []

    def stream(_: Client, path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        asked.append(copy.deepcopy(body))
        yield {"message": {"role": "assistant", "content": "Hi"}, "done": True, "total_duration": 10**9}

    monkeypatch.setattr(Client, "stream", stream)
    monkeypatch.setattr(Session, "can_think", True)
    talk(
        "one",
        "/set format json", "/set think high", "/set parameter top_k 3", "/set system A", "/set system B",
        "/set verbose", "two",
        "/set noformat", "/set nothink", "/set quiet", "/set system C", "three",
        "/load tiny", "four",
    )  # fmt: skip
    assert [(body.get("format"), body.get("think"), body["options"].get("top_k")) for body in asked] == [
        (None, None, None), ("json", "high", 3), (None, False, 3), (None, False, 3),
    ]  # fmt: skip
    said = [[f"{message['role']}: {message['content']}" for message in body["messages"]] for body in asked]
    turns = [["user: one", "assistant: Hi"], ["system: B", "user: two", "assistant: Hi"], ["system: C"]]
    assert said[0] == ["user: one"]
    assert said[1] == [*turns[0], "system: B", "user: two"], "a system message replaces one just before it"
    assert said[2] == [*turns[0], *turns[1], *turns[2], "user: three"]
    assert said[3] == ["system: C", "user: four"], "/load clears messages and keeps settings"
    assert talk.errors.count("total duration:       1s") == 1


def test_show_prints_info_and_modelfile(talk: Talk) -> None:
    assert "    architecture        llama\n" in talk("/show info")
    assert re.search(r"^FROM /.*sha256-[0-9a-f]{64}$", talk("/show modelfile"), re.MULTILINE)


def test_a_system_message_changes_the_answer_and_survives_clear(talk: Talk) -> None:
    plain = talk("hello")
    told = talk("/set system once upon a time", "hello").partition("\n")[2]
    assert told != plain
    cleared = talk("/set system once upon a time", "hello", "/clear", "hello")
    assert cleared.endswith("Cleared session context\n" + told)


def test_load_and_save_switch_and_store_models(talk: Talk, shell: Shell) -> None:
    output = talk(
        "/set system Be brief.", "hello", "/save saved", "/save not/a/good/name/at-all", "/load saved",
        "/load nix", "/load tinny", "/load", "/save a b", "/show system",
    )  # fmt: skip
    lines = output.splitlines()
    assert "Created new model 'saved'" in lines
    assert "error: The model name 'not/a/good/name/at-all' is invalid" in lines
    assert "Couldn't find model 'nix'" in lines
    assert "Couldn't find model 'tinny' (did you mean \"tiny\"?)" in lines
    assert "Usage:\n  /load <modelname>\n" in output
    assert "Usage:\n  /save <modelname>\n" in output
    assert output.endswith("Be brief.\n\n")
    modelfile = shell.out("show", "saved", "--modelfile")
    assert "SYSTEM Be brief." in modelfile
    assert "MESSAGE user hello" in modelfile
    assert "PARAMETER num_predict 8" in modelfile
    assert talk(model="saved").startswith(">>> hello\n"), "the saved messages are not shown at the start"
    shell.out("rm", "saved")


def test_an_embedding_model_cannot_chat(talk: Talk, shell: Shell, tiny_gguf: Path, tmp_path: Path) -> None:
    made = rewritten(tiny_gguf, tmp_path / "embed.gguf", **{"llama.pooling_type": 1})
    shell.out("create", "embed", "-f", "-", stdin=f"FROM {made}")
    with pytest.raises(RequestError, match="embedding models require input text"):
        talk(model="embed")
    output = talk("/load embed", "/show info")
    assert "error: embedding models require input text" in output
    assert "completion" in output, "the previous model is gone"
    shell.out("rm", "embed")


def test_list_filters_models_and_unknown_commands_are_named(talk: Talk) -> None:
    output = talk("/list", "/nonsense at all")
    assert output.startswith("NAME ")
    assert "tiny:latest" in output
    assert talk("/list nobody's") == "NAME    ID    SIZE    MODIFIED\n\n"
    assert "tiny:latest" in talk("/list TI")
    assert "Unknown command '/nonsense'. Type /? for help\n" in output


def test_help_goes_to_standard_error(talk: Talk) -> None:
    assert talk("/?", "/help set", "/? shortcuts", "/set", "/show", "/set parameter").strip() == ""
    assert talk.errors.count("Available Commands:") == 4
    assert "/show template" in talk.errors
    assert "/set nowordwrap" in talk.errors
    assert "Ctrl + d" in talk.errors
    assert "/set parameter top_p <float>" in talk.errors


def test_ctrl_c_clears_the_line_or_explains_how_to_leave(talk: Talk) -> None:
    assert talk("\x03/set nowordwrap").startswith("\nUse Ctrl + d or /bye to exit.\n")
    assert talk("hel\x03/set nowordwrap") == "Set 'nowordwrap' mode.\n\n"


def test_a_refused_message_does_not_end_the_chat(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Session, "can_think", True)
        refused = talk("/set think", "hello", "/set nothink", "/clear", "hello")
    assert "does not support thinking" in talk.errors
    assert refused.endswith("Cleared session context\n" + talk("hello"))


def test_models_without_thinking_are_not_asked_to_think(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = talk("hello")
    assert talk("/set think", "hello").endswith("does not support thinking\n" + plain)
    assert talk.errors == ""
    # Nor if the previous model could think.
    first = [True]
    monkeypatch.setattr(Session, "can_think", property(lambda _: first[0]))
    load = Session.switch

    def switch(session: Session, model: str) -> None:
        first[0] = False
        load(session, model)

    monkeypatch.setattr(Session, "switch", switch)
    assert talk("/set think", "/load tiny", "hello").endswith(plain)
    assert "does not support thinking and answers without it" in talk.errors


def test_lines_are_saved_unless_history_is_off(talk: Talk, tmp_path: Path) -> None:
    talk("/set wordwrap", "/set nohistory", "/set verbose", "/set history", "/set quiet")
    kept = re.findall(r"^\+(.*)$", (tmp_path / "history").read_text(), re.MULTILINE)
    assert kept == ["/set wordwrap", "/set nohistory", "/set quiet"]
    assert (tmp_path / "history").stat().st_mode & 0o777 == 0o600
    # The up arrow recalls the newest line.
    assert talk("\x1b[A") == "Set 'quiet' mode.\n\n"


def test_history_can_be_disabled_from_the_start(
    talk: Talk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OLLAMA_NOHISTORY", "1")
    talk("/set quiet")
    assert not (tmp_path / "history").exists()


class InterruptedScreen(io.StringIO):
    """A screen that triggers Ctrl-C after a few characters."""

    def write(self, text: str) -> int:
        written = super().write(text)
        if len(self.getvalue()) > 5 and text.strip():
            raise KeyboardInterrupt
        return written


def test_an_interrupted_answer_stays_in_the_conversation(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = InterruptedScreen()
    settings = RunSettings(model="tiny", options={"num_predict": 100_000, "temperature": 0.0})
    with Client(parse_host(shell.env["PUNA_HOST"])) as client:
        session = Session(client, settings)
        session.open()
        with monkeypatch.context() as patch:
            patch.setattr("sys.stdout", screen)
            session.ask("hello")
    assert [message["role"] for message in session.messages] == ["user", "assistant"]
    said = session.messages[1]["content"]
    assert 5 < len(said) < 50
    assert screen.getvalue() == said + "\n\n"

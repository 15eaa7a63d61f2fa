"""The program in a pseudo-terminal, as at a real terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests import commands
from tests.cli.endless import EndlessServer, endless_server
from tests.cli.screen import screen_lines
from tests.cli.shell import Shell, end_process
from tests.convert.checkpoints import saved
from tests.held import HeldRunners, wait_until_stopped
from tests.model.models.parity import original
from tests.ports import free_port
from tests.tiny.llama import TinyLlama
from tests.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.e2e

COLUMNS = 60
READY = "(/? for help)"  # end of the placeholder in the empty line


class Terminal:
    """The user's side of a pseudo-terminal."""

    def __init__(self, shell: Shell, arguments: tuple[str, ...], stderr: int | None = None) -> None:
        self._end, program_end = pty.openpty()
        fcntl.ioctl(program_end, termios.TIOCSWINSZ, struct.pack("HHHH", 40, COLUMNS, 0, 0))
        self.program_end = program_end
        self.process = commands.start(
            *arguments,
            # Told where the cursor is, the editor draws its empty line again, which looks like the next one.
            env=shell.env | {"TERM": "xterm-256color", "PROMPT_TOOLKIT_NO_CPR": "1"},
            streams=(program_end, program_end, program_end if stderr is None else stderr),
            at_terminal=True,
        )
        self.shown = ""

    def type(self, keys: str) -> None:
        os.write(self._end, keys.encode())

    def wait_for(self, text: str, timeout_s: float = PATIENCE_S) -> str:
        """Return the output before `text`, which must appear."""
        deadline = time.monotonic() + timeout_s
        while text not in self.shown:
            # Checked before reading, so that output that is already there counts.
            late = time.monotonic() > deadline
            if not select.select([self._end], [], [], 0.1)[0]:
                if late:
                    raise AssertionError(
                        f"{text!r} did not come, only {self.shown[-2000:]!r}; {self._where()}"
                    )
            else:
                self.shown += os.read(self._end, 65536).decode("utf-8", "replace")
        before, _, self.shown = self.shown.partition(text)
        return before

    def _where(self) -> str:
        """Return the exit status, or a traceback of where the program hangs, which ends it."""
        if self.process.poll() is not None:
            return f"it ended with status {self.process.returncode}"
        self.process.send_signal(signal.SIGABRT)
        found = b""
        while select.select([self._end], [], [], 2.0)[0]:
            found += os.read(self._end, 65536)
        return "it hangs in " + found.decode("utf-8", "replace")

    def read_all(self) -> str:
        """Return the output until the program ends, which must succeed."""
        while self.process.poll() is None or select.select([self._end], [], [], 0)[0]:
            if select.select([self._end], [], [], 0.1)[0]:
                self.shown += os.read(self._end, 65536).decode("utf-8", "replace")
        assert self.process.returncode == 0, self.shown
        return self.shown

    def leave(self) -> int:
        return self.process.wait(timeout=PATIENCE_S)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._end)
        os.close(self.program_end)


@contextmanager
def terminal(shell: Shell, *arguments: str, stderr: int | None = None) -> Iterator[Terminal]:
    opened = Terminal(shell, arguments, stderr)
    try:
        yield opened
    finally:
        opened.close()


def test_chat_works_in_a_terminal(shell: Shell) -> None:
    with terminal(shell, "run", "tiny", "--temperature", "0", "--num-predict", "5") as screen:
        screen.wait_for(">>> ")
        screen.wait_for(READY)
        screen.type("hello\r")
        screen.wait_for(READY)
        screen.type("\x03")
        screen.wait_for("Use Ctrl + d or /bye to exit.")
        screen.wait_for(READY)
        screen.type('"""a\r')
        screen.wait_for("...")
        screen.type('b"""\r')
        screen.wait_for(READY)
        screen.type("\x04")
        assert screen.leave() == 0
        assert termios.tcgetattr(screen.program_end)[3] & termios.ECHO, "typing stays visible afterwards"


@pytest.fixture
def endless(shell: Shell) -> Iterator[tuple[EndlessServer, Shell]]:
    with endless_server() as server:
        yield server, Shell(shell.home, server.server_port)


@pytest.mark.parametrize("keys", ["\x03", "\x03\x03"])
def test_ctrl_c_ends_the_answer_but_not_the_chat(endless: tuple[EndlessServer, Shell], keys: str) -> None:
    server, shell = endless
    with terminal(shell, "run", "tiny") as screen:
        screen.wait_for(READY)
        screen.type("hello\r")
        screen.wait_for("word word word")  # the answer has begun
        screen.type(keys)
        assert server.abandoned.acquire(timeout=PATIENCE_S), "the server keeps working"
        screen.wait_for(READY)
        screen.type("/set parameter num_predict 3\r")
        screen.wait_for("Set parameter 'num_predict' to '3'")
        screen.wait_for(READY)
        screen.type("hello again\r")
        screen.wait_for("word word word \r\n\r\n")
        screen.wait_for(READY)
        screen.type("/bye\r")
        assert screen.leave() == 0
        assert termios.tcgetattr(screen.program_end)[3] & termios.ECHO, "typing stays visible afterwards"


def test_ctrl_c_ends_a_history_search_and_enter_takes_the_match(
    endless: tuple[EndlessServer, Shell], tmp_path: Path
) -> None:
    shell = Shell(tmp_path, endless[1].port)
    with terminal(shell, "run", "tiny") as screen:
        screen.wait_for(READY)
        screen.type("/set parameter num_predict 3\r")
        screen.wait_for("Set parameter 'num_predict' to '3'")
        screen.wait_for(READY)
        screen.type("\x12")
        screen.wait_for("I-search backward")
        screen.type("\x03/set quiet\r")
        screen.wait_for("Set 'quiet' mode.")
        screen.wait_for(READY)
        screen.type("\x12param")
        screen.wait_for("I-search backward")
        screen.type("\r")
        screen.type("\r")
        screen.wait_for("Set parameter 'num_predict' to '3'")
        screen.wait_for(READY)
        screen.type("hello\r")
        screen.wait_for("word word word \r\n\r\n")
        screen.wait_for(READY)
        screen.type("/by\t\r")
        assert screen.leave() == 0


def test_ctrl_c_before_the_first_word_withdraws_the_message(endless: tuple[EndlessServer, Shell]) -> None:
    server, shell = endless
    with terminal(shell, "run", "tiny") as screen:
        screen.wait_for(READY)
        server.loaded.clear()
        screen.type("hello\r")
        screen.wait_for("loading tiny")
        screen.type("\x03")
        assert server.abandoned.acquire(timeout=PATIENCE_S), "the server keeps working"
        screen.wait_for(READY)
        screen.type("\x04")
        assert screen.leave() == 0


def test_text_typed_while_the_model_loads_is_shown_once(endless: tuple[EndlessServer, Shell]) -> None:
    server, shell = endless
    server.loaded.clear()
    with terminal(shell, "run", "tiny", "--num-predict", "2") as screen:
        screen.wait_for("loading tiny")
        screen.type('"""first line\rsecond line"""\r')
        server.loaded.set()
        assert "first" not in screen.wait_for(">>> ")
        screen.wait_for("second line")
        screen.wait_for("word word")
        screen.wait_for(READY)
        screen.type("\x04")
        assert screen.leave() == 0


def test_chat_continues_when_its_server_restarts(tiny_gguf: Path, tmp_path: Path) -> None:
    shell = Shell(tmp_path, free_port())
    shell.out("create", "tiny", "-f", "-", stdin=f"FROM {tiny_gguf}")

    def saved(ends: tuple[str, ...] = ()) -> list[str]:
        """Return the saved conversation; the server is stopped before each line of `ends`."""
        with terminal(
            shell, "run", "tiny", "--temperature", "0", "--num-predict", "5", "--verbose"
        ) as screen:
            screen.wait_for(READY)
            for line, then in (("one", "eval rate"), ("two", "eval rate"), ("/save saved", "Created new")):
                if line in ends:
                    shell.out("serve", "--stop")
                screen.type(f"{line}\r")
                screen.wait_for(then)
                screen.wait_for(READY)
            screen.type("\x04")
            assert screen.leave() == 0
        return re.findall("^MESSAGE.*", shell.out("show", "saved", "--modelfile"), re.MULTILINE)

    try:
        undisturbed = saved()
        assert [line.split()[1] for line in undisturbed] == ["user", "assistant", "user", "assistant"]
        assert saved(ends=("two", "/save saved")) == undisturbed
    finally:
        shell.run("serve", "--stop")


@pytest.mark.parametrize(("words", "status"), [((), 130), (("hello",), 0)])
def test_ctrl_c_while_the_model_loads_ends_the_program(
    endless: tuple[EndlessServer, Shell], words: tuple[str, ...], status: int
) -> None:
    server, shell = endless
    server.loaded.clear()
    with terminal(shell, "run", "tiny", *words) as screen:
        screen.wait_for("loading tiny")
        screen.type("\x03")
        assert server.abandoned.acquire(timeout=PATIENCE_S), "the server keeps working"
        screen.wait_for("\x1b[?25h")  # the cursor, which the spinner hides
        assert screen.leave() == status


def test_prompt_progress_is_shown_and_erased(endless: tuple[EndlessServer, Shell]) -> None:
    server, shell = endless
    server.read.clear()
    with terminal(shell, "run", "tiny", "hello", "--num-predict", "2") as screen:
        screen.wait_for("reading the prompt")
        screen.wait_for("42%")
        server.read.set()
        rest = screen.read_all()
    assert rest.rpartition("\x1b[2K")[2].endswith("word word \r\n\r\n")
    assert "reading" not in rest.rpartition("\x1b[2K")[2]


def test_the_loading_spinner_is_shown_and_erased(tiny_gguf: Path, tmp_path: Path) -> None:
    shell = Shell(tmp_path, free_port())
    held = HeldRunners(tmp_path)
    made = shell.run("create", "tiny", "-f", "-", stdin=f"FROM {tiny_gguf}", **held.settings)
    started = re.search(r"process (\d+)", made.stderr)
    assert started is not None, made.stderr
    shell = replace(shell, server=int(started[1]))
    try:
        with (
            held.stopping(),
            terminal(shell, "run", "tiny", "hello", "--temperature", "0", "--num-predict", "8") as screen,
        ):
            wait_until(lambda: len(shell.runners()) == 1, "the model's process")
            (runner,) = shell.runners()
            wait_until_stopped(runner)
            screen.wait_for("loading tiny")
            screen.wait_for("%")
            runner.resume()
            rest = screen.read_all()
    finally:
        end_process(shell.server)
    answer = rest.rpartition("\x1b[2K")[2]  # after the spinner's line is erased
    assert answer.endswith("\r\n\r\n")
    assert "loading" not in answer
    assert len(answer) > 6


@pytest.mark.parametrize(("answer", "written"), [("y", True), ("n", False), ("", False), ("\x03", False)])
def test_quantize_overwrites_a_file_only_after_a_yes(
    shell: Shell, tiny_gguf: Path, tmp_path: Path, answer: str, written: bool
) -> None:
    target = tmp_path / "small.gguf"
    target.write_bytes(b"precious")
    with terminal(shell, "quantize", str(tiny_gguf), str(target), "--type", "q8_0") as screen:
        screen.wait_for("Overwrite it? [y/N]:")
        screen.type(answer + "\r")
        assert (screen.leave() == 0) is written
    assert (target.read_bytes() == b"precious") is not written


def test_convert_overwrites_a_file_only_after_a_yes(shell: Shell, tmp_path: Path) -> None:
    folder, target = saved(tmp_path / "Tiny", original(TinyLlama())), tmp_path / "whole.gguf"
    for answer, begins in (("n", b"precious"), ("y", b"GGUF")):
        target.write_bytes(b"precious")
        with terminal(shell, "convert", str(folder), str(target)) as screen:
            screen.wait_for("Overwrite it? [y/N]:")
            screen.type(answer + "\r")
            assert screen.leave() == (0 if answer == "y" else 1)
        assert target.read_bytes().startswith(begins)


def test_words_are_wrapped_only_in_a_terminal(shell: Shell) -> None:
    question = ("run", "tiny", "world", "--temperature", "0", "--num-predict", "120")
    piped = shell.out(*question)
    assert max(map(len, piped.splitlines())) > COLUMNS, "the output is too short to wrap"
    with open(os.devnull, "w") as nothing, terminal(shell, *question, stderr=nothing.fileno()) as opened:
        output = opened.read_all().replace("\r\n", "\n")
    lines = screen_lines(output)
    assert max(map(len, lines)) <= COLUMNS - 5
    assert re.sub(r"[^!-~]", "", "".join(lines)) == re.sub(r"[^!-~]", "", piped)


def test_results_are_plain_text_even_in_a_terminal(shell: Shell) -> None:
    with terminal(shell, "show", "tiny") as opened:
        assert "\x1b" not in opened.read_all()

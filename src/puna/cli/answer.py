"""Answers on the terminal: spinner, word wrap, warnings and timings."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TextIO

from puna.cli import progress, terminal
from puna.cli.client import Client
from puna.errors import PunaError
from puna.hosts import Host


class WordWrap:
    """Word wrap for a terminal: no word is split at the right edge.

    Text is shown as soon as it arrives, so the current word may turn out too long for its line; it is then
    erased and written again on the next one. Fenced code blocks are not wrapped, so that code can be copied.
    """

    def __init__(self, columns: Callable[[], int]) -> None:
        """`columns` returns the current maximum line width; terminals may be resized."""
        self._columns = columns
        self._column = 0  # cells written on this line
        self._word = ""  # the unfinished word at the end of it
        self._word_cells = 0
        self._line = ""  # the logical line so far, for recognising fences
        self._fenced = False

    def feed(self, text: str) -> str:
        """Return the output for the next piece of text, including cursor movements."""
        return "".join(map(self._put, text))

    def _put(self, character: str) -> str:
        if character == "\n":
            if self._line.lstrip().startswith("```"):
                self._fenced = not self._fenced
            self._line = ""
            return self._next_line()
        self._line += character
        if self._fenced or self._line.lstrip().startswith("```"):
            return character
        cells = _cells(character)
        if character in " \t":
            return self._put_space(character, cells)
        if cells == 2:
            return self._put_wide(character)
        return self._put_narrow(character, cells)

    def _put_space(self, character: str, cells: int) -> str:
        if self._column + cells > self._columns():
            return self._next_line()  # the line break replaces a space at the edge
        self._word, self._word_cells = "", 0
        self._column += cells
        return character

    def _put_wide(self, character: str) -> str:
        """Put a character of a script without spaces, which may break before any character."""
        fits = self._column == 0 or self._column + 2 <= self._columns()
        line_break = "" if fits else self._next_line()
        self._word, self._word_cells = "", 0
        self._column += 2
        return line_break + character

    def _put_narrow(self, character: str, cells: int) -> str:
        if self._column + cells <= self._columns() or self._column == 0:
            self._word += character
            self._word_cells += cells
            self._column += cells
            return character
        if self._word_cells == self._column:  # the word fills the line, so it has to be split
            line_break, word = self._next_line(), character
        else:
            word = self._word + character
            erase = f"\x1b[{self._word_cells}D\x1b[K" if self._word_cells else ""
            line_break = erase + self._next_line()
        self._word = word
        self._word_cells = self._column = sum(map(_cells, word))
        return line_break + word

    def _next_line(self) -> str:
        self._column = self._word_cells = 0
        self._word = ""
        return "\n"


@cache
def _cells(character: str) -> int:
    """Return the columns a character takes up on a terminal: 0, 1 or 2; a tab counts as 8."""
    if character == "\t":
        return 8
    if character.isascii():
        return 1
    from wcwidth import wcwidth

    return max(wcwidth(character), 0)


_DELAY_S = 0.15  # keeps quick answers from flickering
_POLL_S = 0.2


class Waiting:
    """A spinner on standard error, with a progress bar while the model loads and while it reads the prompt.

    A thread polls the server for the progress of loading; the prompt's progress is part of the stream.
    Nothing is shown unless standard error is a terminal. Call `stop` before writing anything else; further
    calls do nothing.
    """

    def __init__(self, host: Host, model: str) -> None:
        self._host = host
        self._model = model
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._status: Any = None
        self._reading = False  # the model is loaded and reads the prompt

    def __enter__(self) -> Waiting:
        if terminal.stderr_is_terminal():
            threading.Thread(target=self._run, name="waiting", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._stopped.set()
        with self._lock:
            if self._status is not None:
                self._status.stop()
                self._status = None

    def show_progress(self, item: Mapping[str, Any]) -> None:
        """Show how much of the prompt has been read, if `item` of the stream says so."""
        if (progress := item.get("prompt_progress")) is None:
            return
        with self._lock:
            self._reading = True
            self._show("reading the prompt", progress["processed"] / max(progress["total"], 1))

    def _run(self) -> None:
        if self._stopped.wait(_DELAY_S):
            return
        console = terminal.stderr_console()
        with self._lock:
            if self._stopped.is_set():
                return
            self._status = console.status("", spinner=terminal.spinner_name())
            self._status.start()
        with Client(self._host) as client:
            while not self._stopped.wait(_POLL_S):
                progress = load_progress(client, self._model)
                with self._lock:
                    if self._reading:
                        return
                    self._show(f"loading {self._model}", progress)

    def _show(self, what: str, progress: float | None) -> None:
        if self._status is not None:
            self._status.update("" if progress is None else self._bar(what, progress))

    def _bar(self, what: str, progress: float) -> Any:
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        row = Table.grid(padding=(0, 1))
        bar = ProgressBar(total=1.0, completed=progress, width=30)
        row.add_row(Text(what), bar, Text(f"{progress:.0%}", style="progress.percentage"))
        return row


def load_progress(client: Client, model: str) -> float | None:
    """Return the loaded fraction of `model`, from 0 to 1; None when it is not being loaded."""
    try:
        running = client.get("/api/ps").get("models") or ()
    except PunaError:
        return None
    for entry in running:
        if _same(entry.get("name", ""), model) and entry.get("loading") is not None:
            return float(entry["loading"])
    return None


def _same(name: str, model: str) -> bool:
    """Whether the server's `name` (always with a tag) is the user's `model`."""
    return name.lower().removesuffix(":latest") == model.lower().removesuffix(":latest")


#: Columns kept free at the right edge.
_MARGIN = 5
_GREY = "\x1b[38;5;245m"
_PLAIN = "\x1b[0m"


class AnswerPrinter:
    """Printer of the messages of `/api/generate` or `/api/chat`, written to `out` as they arrive."""

    def __init__(
        self,
        *,
        word_wrap: bool = True,
        hide_thinking: bool = False,
        has_tools: bool = False,
        out: TextIO | None = None,
    ) -> None:
        """Print an answer to `out`; with `has_tools`, calls are kept in `calls` instead."""
        self._out = out or sys.stdout
        self._hide_thinking = hide_thinking
        self._styles = terminal.shows_styles(self._out)
        self._thinking = False
        self._is_terminal = self._out.isatty()
        # Files and pipes get the text unchanged: added line breaks would corrupt it.
        wraps = word_wrap and self._is_terminal
        self._wrap = WordWrap(lambda: max(terminal.width() - _MARGIN, 1)) if wraps else None
        self.content = ""  # the answer so far, without the thinking
        self.thinking = ""
        self._has_tools = has_tools
        self.calls: list[Mapping[str, Any]] = []

    def feed(self, item: Mapping[str, Any]) -> None:
        """Print one message of the stream."""
        message: Mapping[str, Any] = item.get("message") or {}
        thinking = message.get("thinking") or item.get("thinking") or ""
        content = message.get("content") or item.get("response") or ""
        if thinking:
            self.thinking += thinking
            self._show_thinking(thinking)
        if content:
            self._end_thinking()
            self.content += content
            self._write(content)
        for call in message.get("tool_calls") or item.get("tool_calls") or ():
            self._end_thinking()
            if self._has_tools:
                self.calls.append(call)
            else:
                self._write(_tool_call_text(call))
        self._out.flush()

    def close(self, ending: str = "\n\n") -> None:
        """End the answer. Must be called exactly once, even after an interruption."""
        self._end_thinking()
        if not self.calls or self.content or self.thinking:
            self._out.write(ending)
        self._out.flush()

    def _show_thinking(self, text: str) -> None:
        if self._hide_thinking:
            return
        if not self._thinking:
            self._thinking = True
            self._out.write((_GREY if self._styles else "") + "Thinking...\n")
        self._write(text)

    def _end_thinking(self) -> None:
        if not self._thinking:
            return
        self._thinking = False
        before = "" if self.thinking.endswith("\n") else "\n"
        self._write(f"{before}...done thinking.")
        if self._styles:
            self._out.write(_PLAIN)
        self._write("\n\n")

    def _write(self, text: str) -> None:
        if self._is_terminal:
            text = terminal.printable(text)
        self._out.write(self._wrap.feed(text) if self._wrap else text)


def _tool_call_text(call: Mapping[str, Any]) -> str:
    import json

    function: Mapping[str, Any] = call.get("function") or {}
    arguments = json.dumps(function.get("arguments") or {}, ensure_ascii=False)
    name = function.get("name", "")
    return f"  Model called a non-existent function '{name}()' with arguments: {arguments}\n"


def timings(final: Mapping[str, Any]) -> str:
    """Return the output of `--verbose`, from the last message, without zero or missing measurements.

    The rate of the prompt is that of the tokens which did not come from the cache.
    """

    def rate(count: int, duration: str) -> str:
        nanoseconds = final.get(duration) or 0
        return f"{count / nanoseconds * 1e9:.2f} tokens/s" if nanoseconds else ""

    def time(key: str) -> str:
        return progress.duration(final[key]) if final.get(key) else ""

    def count(key: str) -> str:
        return f"{final[key]} token(s)" if final.get(key) else ""

    evaluated = final.get("prompt_eval_count", 0) - final.get("cached", 0)
    rows = [
        ("total duration:", time("total_duration")),
        ("load duration:", time("load_duration")),
        ("prompt eval count:", count("prompt_eval_count")),
        ("prompt cached:", count("cached")),
        ("prompt eval duration:", time("prompt_eval_duration")),
        ("prompt eval rate:", rate(evaluated, "prompt_eval_duration")),
        ("eval count:", count("eval_count")),
        ("eval duration:", time("eval_duration")),
        ("eval rate:", rate(final.get("eval_count", 0), "eval_duration")),
    ]
    return "".join(f"{label:<22}{value}\n" for label, value in rows if value)


def losses(final: Mapping[str, Any]) -> list[str]:
    """Return warnings about tokens that did not fit the context, so that none is dropped silently."""
    warnings = []
    if truncated := final.get("truncated"):
        warnings.append(
            f"the conversation did not fit the context: its first {truncated} token(s) were dropped "
            "(increase num_ctx to keep more)"
        )
    if shifted := final.get("shifted"):
        warnings.append(
            f"the context filled up during the answer: the oldest {shifted} token(s) were dropped "
            "(increase num_ctx to keep more)"
        )
    return warnings

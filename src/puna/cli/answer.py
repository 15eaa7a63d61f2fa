"""Print an answer as it streams in, and the warnings and timings that follow it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, TextIO

from puna.cli import humanize, terminal
from puna.cli.wrap import WordWrap

#: A model's text must not control the terminal: control characters become visible symbols.
_VISIBLE = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"}
_VISIBLE |= dict.fromkeys(range(127, 160), 65533)

#: Columns kept free at the right edge.
_MARGIN = 5
_GREY = "\x1b[38;5;245m"
_PLAIN = "\x1b[0m"


class AnswerPrinter:
    """Writes the text of `/api/generate` or `/api/chat` messages to `out` as it arrives."""

    def __init__(
        self, *, word_wrap: bool = True, hide_thinking: bool = False, out: TextIO | None = None
    ) -> None:
        self._out = out or sys.stdout
        self._hide_thinking = hide_thinking
        self._styles = terminal.shows_styles(self._out)
        self._thinking = False
        self._is_terminal = self._out.isatty()
        # Files and pipes get the text unchanged: line breaks the model did not write would corrupt it.
        wraps = word_wrap and self._is_terminal
        self._wrap = WordWrap(lambda: max(terminal.width() - _MARGIN, 1)) if wraps else None
        self.content = ""  # the answer so far, without the thinking
        self.thinking = ""

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
            self._write(_tool_call_text(call))
        self._out.flush()

    def close(self, ending: str = "\n\n") -> None:
        """End the answer. Call it exactly once, even after an interruption."""
        self._end_thinking()
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
            text = text.translate(_VISIBLE)
        self._out.write(self._wrap.feed(text) if self._wrap else text)


def _tool_call_text(call: Mapping[str, Any]) -> str:
    import json

    function: Mapping[str, Any] = call.get("function") or {}
    arguments = json.dumps(function.get("arguments") or {}, ensure_ascii=False)
    name = function.get("name", "")
    return f"  Model called a non-existent function '{name}()' with arguments: {arguments}\n"


def timings(final: Mapping[str, Any]) -> str:
    """The output of `--verbose`, from the last message; zero or missing measurements are left out."""

    def rate(count: str, duration: str) -> str:
        nanoseconds = final.get(duration) or 0
        return f"{final.get(count, 0) / nanoseconds * 1e9:.2f} tokens/s" if nanoseconds else ""

    def time(key: str) -> str:
        return humanize.duration(final[key]) if final.get(key) else ""

    def count(key: str) -> str:
        return f"{final[key]} token(s)" if final.get(key) else ""

    rows = [
        ("total duration:", time("total_duration")),
        ("load duration:", time("load_duration")),
        ("prompt eval count:", count("prompt_eval_count")),
        ("prompt eval duration:", time("prompt_eval_duration")),
        ("prompt eval rate:", rate("prompt_eval_count", "prompt_eval_duration")),
        ("eval count:", count("eval_count")),
        ("eval duration:", time("eval_duration")),
        ("eval rate:", rate("eval_count", "eval_duration")),
    ]
    return "".join(f"{label:<22}{value}\n" for label, value in rows if value)


def losses(final: Mapping[str, Any]) -> list[str]:
    """Warnings about tokens that did not fit the context: nothing is dropped silently."""
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

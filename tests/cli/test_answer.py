"""Printing answers, and the timings and warnings after them."""

from __future__ import annotations

import io

import pytest

from puna.cli.answer import AnswerPrinter, losses, timings


def test_timings_are_printed_as_specified() -> None:
    final = {
        "total_duration": 1_230_000_000,
        "load_duration": 12_300_000,
        "prompt_eval_count": 26,
        "prompt_eval_duration": 130_000_000,
        "eval_count": 298,
        "eval_duration": 4_200_000_000,
    }
    assert timings(final).splitlines() == [
        "total duration:       1.23s",
        "load duration:        12.3ms",
        "prompt eval count:    26 token(s)",
        "prompt eval duration: 130ms",
        "prompt eval rate:     200.00 tokens/s",
        "eval count:           298 token(s)",
        "eval duration:        4.2s",
        "eval rate:            70.95 tokens/s",
    ]


def test_cached_tokens_are_shown_and_do_not_count_as_evaluated() -> None:
    final = {"prompt_eval_count": 4000, "cached": 3900, "prompt_eval_duration": 500_000_000}
    assert timings(final).splitlines() == [
        "prompt eval count:    4000 token(s)",
        "prompt cached:        3900 token(s)",
        "prompt eval duration: 500ms",
        "prompt eval rate:     200.00 tokens/s",
    ]


def test_missing_measurements_are_left_out() -> None:
    assert timings({"total_duration": 1_000_000_000, "eval_count": 0}) == "total duration:       1s\n"


def printed(*items: dict[str, object], hide_thinking: bool = False) -> str:
    out = io.StringIO()
    printer = AnswerPrinter(hide_thinking=hide_thinking, out=out)
    for item in items:
        printer.feed(item)
    printer.close()
    return out.getvalue()


def test_an_answer_ends_with_two_newlines() -> None:
    assert printed({"response": "Hel"}, {"response": "lo"}, {"response": "", "done": True}) == "Hello\n\n"
    assert printed({"message": {"role": "assistant", "content": "Hi"}}) == "Hi\n\n"


def test_thinking_is_printed_between_markers() -> None:
    items = [{"thinking": "Hm", "response": ""}, {"thinking": "m.", "response": ""}, {"response": "Yes."}]
    assert printed(*items) == "Thinking...\nHmm.\n...done thinking.\n\nYes.\n\n"


def test_thinking_can_be_hidden() -> None:
    items = [{"message": {"thinking": "Hm", "content": ""}}, {"message": {"content": "Yes."}}]
    assert printed(*items, hide_thinking=True) == "Yes.\n\n"


def test_interrupted_thinking_is_closed() -> None:
    assert printed({"thinking": "Hm\n"}).startswith("Thinking...\nHm\n...done thinking.\n\n")


def test_a_tool_call_is_printed() -> None:
    call = {"function": {"name": "f", "arguments": {"city": "Paris"}}}
    assert printed({"message": {"content": "", "tool_calls": [call]}}) == (
        '  Model called a non-existent function \'f()\' with arguments: {"city": "Paris"}\n\n\n'
    )


def test_a_long_line_goes_to_a_file_unwrapped() -> None:
    text = "word " * 100
    assert printed({"response": text}) == text + "\n\n"


class TerminalText(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_an_answer_cannot_control_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    out = TerminalText()
    AnswerPrinter(out=out).feed({"response": "a\x1b[2Jb\tc\n\x07\x9b\r"})
    assert out.getvalue() == "a␛[2Jb\tc\n␇\ufffd␍"
    assert printed({"response": "a\x1b[2J"}) == "a\x1b[2J\n\n", "files get what the model wrote"


def test_dropped_tokens_are_reported() -> None:
    assert losses({"done": True}) == []
    truncated, shifted = losses({"truncated": 12, "shifted": 34})
    assert "first 12 token(s)" in truncated
    assert "oldest 34 token(s)" in shifted

"""Completion of a line with Tab: commands, their arguments, models, and paths in messages."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator

from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document

from puna.cli.repl import help as texts
from puna.config import path_of
from puna.options import THINK_LEVELS

Names = Callable[[], Iterable[str]]

#: The last word of a line; a backslash keeps a space within it, as in what terminals write for dropped files.
_LAST_WORD = re.compile(r"(?:\\.|[^\s\\])*$")


def _words(pattern: str, text: str) -> tuple[str, ...]:
    """The words that follow `pattern` in the lines of a help text, once each."""
    return tuple(dict.fromkeys(re.findall(rf"^  {pattern}([a-z_]+)", text, re.MULTILINE)))


#: What may follow the words of a command.
_ARGUMENTS: dict[tuple[str, ...], tuple[str, ...]] = {
    (): tuple(f"/{name}" for name in ("exit", "help", *_words("/", texts.COMMANDS))),
    ("/set",): _words("/set ", texts.SET),
    ("/set", "parameter"): _words("/set parameter ", texts.PARAMETERS),
    ("/set", "format"): ("json",),
    ("/set", "think"): THINK_LEVELS,
    ("/show",): _words("/show ", texts.SHOW),
    ("/help",): tuple(texts.TOPICS),
    ("/?",): tuple(texts.TOPICS),
}
#: Commands that take the name of a model.
_TAKE_MODELS = (("/load",), ("/list",))


class LineCompleter(Completer):
    """Completes the word before the cursor; `models` returns the names of models."""

    def __init__(self, models: Names) -> None:
        self._models = models

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:
        line = document.text_before_cursor
        for word, whole in completions(line, self._models):
            yield Completion(whole, start_position=-len(word))


def completions(line: str, models: Names) -> Iterator[tuple[str, str]]:
    """What the last word of `line` may become, each with that word."""
    found = _LAST_WORD.search(line)
    word = found[0] if found else ""
    before = tuple(line[: len(line) - len(word)].split())
    if before in _TAKE_MODELS:
        choices: Iterable[str] = models()
    else:
        choices = _ARGUMENTS.get(before, ()) if line.startswith("/") else ()
    matching = sorted(choice for choice in choices if choice.startswith(word))
    if not matching and (not before or not before[0].startswith("/")):
        matching = sorted(_paths(word))
    yield from ((word, choice) for choice in matching)


def _paths(word: str) -> Iterator[str]:
    """The files and folders whose path begins with `word`, spaces escaped. An empty word has none."""
    if not word:
        return
    folder = word[: word.rfind("/") + 1]
    start = _unescaped(word[len(folder) :])
    try:
        entries = list(os.scandir(path_of(_unescaped(folder) or ".")))
    except OSError:
        return
    for entry in entries:
        if entry.name.startswith(start) and (start.startswith(".") or not entry.name.startswith(".")):
            yield folder + _escaped(entry.name) + ("/" if entry.is_dir() else "")


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text)


def _escaped(name: str) -> str:
    return re.sub(r"""([\s\\"'])""", r"\\\1", name)

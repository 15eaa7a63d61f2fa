"""The line editor: prompt, keys, history."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app
from prompt_toolkit.completion import Completer
from prompt_toolkit.filters import is_searching
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.history import FileHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.shortcuts import CompleteStyle
from prompt_toolkit.styles import Style

from puna import config
from puna.cli import terminal
from puna.cli.repl.text import is_complete

_MAX_ENTRIES = 1000
_PLACEHOLDER = "Send a message (/? for help)"


class LineHistory(FileHistory):
    """Typed lines, saved in a file that only its owner can read. Saves nothing unless `enabled`."""

    def __init__(self, path: Path, enabled: bool = True) -> None:
        super().__init__(str(path))
        self.enabled = enabled
        self._path = path

    def load_history_strings(self) -> Iterable[str]:
        """The newest entries, newest first."""
        try:
            entries = list(super().load_history_strings())
        except OSError:
            return []
        if len(entries) > _MAX_ENTRIES:
            entries = entries[: _MAX_ENTRIES // 2]
            self._rewrite(entries)
        return entries

    def append_string(self, string: str) -> None:
        if self.enabled:
            super().append_string(string)

    def store_string(self, string: str) -> None:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.touch(mode=0o600, exist_ok=True)
            super().store_string(string)
        except OSError:
            return  # an unwritable history must not end the chat

    def _rewrite(self, entries: list[str]) -> None:
        try:
            self._path.write_bytes(b"")
        except OSError:
            return
        for entry in reversed(entries):
            self.store_string(entry)


def history_from_env() -> LineHistory:
    """The history in Puna's own folder, disabled if `PUNA_NOHISTORY` is set."""
    return LineHistory(config.home() / "history", enabled=not config.env_bool("NOHISTORY"))


class LineEditor:
    """Reads one message at a time from the terminal."""

    def __init__(self, history: LineHistory, completer: Completer | None = None) -> None:
        if editor := config.env("EDITOR"):
            os.environ["VISUAL"] = editor  # where prompt_toolkit looks first
        self._session: PromptSession[str] = PromptSession(
            message=">>> ",
            prompt_continuation="... ",
            placeholder=_placeholder,
            style=Style.from_dict({"placeholder": "#808080"}),
            history=history,
            completer=completer,
            complete_while_typing=False,
            complete_style=CompleteStyle.READLINE_LIKE,  # a menu would keep lines free below the prompt
            multiline=True,  # so that our own Enter key decides whether the message is complete
            key_bindings=_keys(),
            enable_open_in_editor=True,
            enable_suspend=True,
        )

    def read(self) -> str:
        """The next message. Raises EOFError for Ctrl-D, and KeyboardInterrupt for Ctrl-C on an empty line."""
        # Ctrl-C is a key here; the handler of the signal stays the chat's own.
        return terminal.typed(self._session.prompt(handle_sigint=False))


def _placeholder() -> StyleAndTextTuples:
    """Shown while the empty line is being edited; nothing afterwards, so it does not stay on the screen."""
    return [] if get_app().is_done else [("class:placeholder", _PLACEHOLDER)]


def _keys() -> KeyBindings:
    keys = KeyBindings()
    # A search of the history has keys of its own: Enter takes the match, Ctrl-C leaves.
    typing = ~is_searching

    @keys.add("enter", filter=typing)
    def _(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if is_complete(buffer.text):
            buffer.validate_and_handle()
        else:
            buffer.newline()

    @keys.add("escape", "enter", filter=typing)
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.newline()

    @keys.add("c-g", filter=typing)
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.open_in_editor()

    @keys.add("c-c", filter=typing)
    def _(event: KeyPressEvent) -> None:
        if event.current_buffer.text:
            event.current_buffer.reset()
        else:
            event.app.exit(exception=KeyboardInterrupt, style="class:aborting")

    return keys

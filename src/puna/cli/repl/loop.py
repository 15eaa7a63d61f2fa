"""The chat loop: read a message with the line editor, answer it, repeat."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.filters import is_searching
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.history import FileHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.shortcuts import CompleteStyle
from prompt_toolkit.styles import Style

from puna import config
from puna.cli import terminal
from puna.cli.client import Client
from puna.cli.interrupt import ctrl_c_ends_requests
from puna.cli.repl.commands import COMMANDS, PARAMETERS, SET, SHOW, TOPICS, is_command, run_command
from puna.cli.repl.session import Session
from puna.cli.server_process import ensure_server
from puna.cli.settings import RunSettings
from puna.config import path_of
from puna.errors import ConnectionFailedError, ServerError
from puna.options import THINK_LEVELS

Names = Callable[[], Iterable[str]]

#: The last word of a line, with escaped spaces, as in paths that terminals write for dropped files.
_LAST_WORD = re.compile(r"(?:\\.|[^\s\\])*$")


def _words(pattern: str, text: str) -> tuple[str, ...]:
    """Return the words that follow `pattern` in the lines of a help text, once each."""
    return tuple(dict.fromkeys(re.findall(rf"^  {pattern}([a-z_]+)", text, re.MULTILINE)))


#: Words that may follow those of a command.
_ARGUMENTS: dict[tuple[str, ...], tuple[str, ...]] = {
    (): tuple(f"/{name}" for name in ("exit", "help", *_words("/", COMMANDS))),
    ("/set",): _words("/set ", SET),
    ("/set", "parameter"): _words("/set parameter ", PARAMETERS),
    ("/set", "format"): ("json",),
    ("/set", "think"): THINK_LEVELS,
    ("/show",): _words("/show ", SHOW),
    ("/help",): tuple(TOPICS),
    ("/?",): tuple(TOPICS),
}
#: Commands that take the name of a model.
_TAKE_MODELS = (("/load",), ("/list",))


class LineCompleter(Completer):
    """Completer of the word before the cursor; `models` returns model names."""

    def __init__(self, models: Names) -> None:
        self._models = models

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:
        line = document.text_before_cursor
        for word, whole in completions(line, self._models):
            yield Completion(whole, start_position=-len(word))


def completions(line: str, models: Names) -> Iterator[tuple[str, str]]:
    """Yield the last word of `line` with each of its completions."""
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
    """Yield paths of files and folders that start with `word`, spaces escaped; none for an empty word."""
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


QUOTE = '"""'
_SET_SYSTEM = "/set system "


def is_complete(text: str) -> bool:
    '''Whether Enter sends `text`: not while a """ is open, until a line ends in """.'''
    body = _quoted_part(text)
    return body is None or _closed(body)


def unquoted(text: str) -> str:
    '''Strip the enclosing """ from `text` or, for `/set system`, from its value.'''
    body = _quoted_part(text)
    if body is None:
        return text
    start = text.lstrip()
    command = _SET_SYSTEM if start.startswith(_SET_SYSTEM) else ""
    inner = body[len(QUOTE) :]
    if _closed(body):
        inner = inner.rstrip()[: -len(QUOTE)]
    return command + inner.strip("\n")


def _quoted_part(text: str) -> str | None:
    text = text.lstrip()
    if text.startswith(_SET_SYSTEM):
        text = text.removeprefix(_SET_SYSTEM).lstrip()
    return text if text.startswith(QUOTE) else None


def _closed(body: str) -> bool:
    return body[len(QUOTE) :].rstrip().endswith(QUOTE)


_MAX_ENTRIES = 1000
_PLACEHOLDER = "Send a message (/? for help)"


class LineHistory(FileHistory):
    """Typed lines, saved in a file that only its owner can read, if `enabled`."""

    def __init__(self, path: Path, enabled: bool = True) -> None:
        super().__init__(str(path))
        self.enabled = enabled
        self._path = path

    def load_history_strings(self) -> Iterable[str]:
        """Return the newest entries, newest first."""
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
    """Return the history in Puna's own folder, disabled if `PUNA_NOHISTORY` is set."""
    return LineHistory(config.home() / "history", enabled=not config.env_bool("NOHISTORY"))


class LineEditor:
    """Editor that reads one message at a time from the terminal."""

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
            multiline=True,  # our own Enter key decides whether the message is complete
            key_bindings=_keys(),
            enable_open_in_editor=True,
            enable_suspend=True,
        )

    def read(self) -> str:
        """Read a message. Raises EOFError for Ctrl-D, and KeyboardInterrupt for Ctrl-C on an empty line."""
        # Ctrl-C is a key here; the chat keeps its own signal handler.
        return terminal.typed(self._session.prompt(handle_sigint=False))


def _placeholder() -> StyleAndTextTuples:
    """Return a hint while an empty line is edited; nothing afterwards, so that none stays on screen."""
    return [] if get_app().is_done else [("class:placeholder", _PLACEHOLDER)]


def _keys() -> KeyBindings:
    keys = KeyBindings()
    # Searching the history has keys of its own: Enter takes the match, Ctrl-C leaves.
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


def converse(client: Client, settings: RunSettings) -> None:
    """Run the interactive prompt until the user leaves.

    If the server goes away, it is started again and the chat continues. Raises PunaError when the model
    cannot be loaded at the start, and KeyboardInterrupt for Ctrl-C while it loads.
    """
    session = Session(client, settings)
    with ctrl_c_ends_requests(session), closing(session):
        _converse(session)


def _converse(session: Session) -> None:
    # Keys typed before the first prompt appear in it.
    with terminal.silent_keys():
        for server in session.settings.mcp:
            session.connect(server)
        session.open()
        _print_examples(session)
        history = history_from_env()
        editor = LineEditor(history, LineCompleter(session.client.model_names))
    while True:
        try:
            if not _exchange(session, editor, history):
                return
        except (ServerError, ConnectionFailedError) as error:
            terminal.note(f"Error: {error}")
        except KeyboardInterrupt:
            print()


def _exchange(session: Session, editor: LineEditor, history: LineHistory) -> bool:
    """Handle one message or command. Return False if it ends the chat."""
    try:
        text = unquoted(editor.read())
    except KeyboardInterrupt:
        print("\nUse Ctrl + d or /bye to exit.")
        return True
    except EOFError:
        print()
        return False
    try:
        return _perform(session, text, history)
    except ConnectionFailedError:
        ensure_server(session.client)
        return _perform(session, text, history)


def _perform(session: Session, text: str, history: LineHistory) -> bool:
    if is_command(text):
        return run_command(session, text.strip(), history)
    if text.strip():
        session.ask(text)
    return True


def _print_examples(session: Session) -> None:
    """Print the messages stored with the model, as if they had just been exchanged."""
    for message in session.shown.get("messages") or ():
        if message.get("role") == "user":
            print(f">>> {message.get('content', '')}")
        elif message.get("role") == "assistant":
            print(f"{message.get('content', '')}\n")

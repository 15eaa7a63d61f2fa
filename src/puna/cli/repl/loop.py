"""The chat loop: read a message, answer it, repeat."""

from __future__ import annotations

from puna.cli import terminal
from puna.cli.client import Client
from puna.cli.interrupt import ctrl_c_ends_requests
from puna.cli.repl.commands import is_command, run_command
from puna.cli.repl.completion import LineCompleter
from puna.cli.repl.prompt import LineEditor, LineHistory, history_from_env
from puna.cli.repl.session import Session
from puna.cli.repl.text import unquoted
from puna.cli.server_process import ensure_server
from puna.cli.settings import RunSettings
from puna.errors import ConnectionFailedError, ServerError


def converse(client: Client, settings: RunSettings) -> None:
    """Run the interactive prompt until the user leaves.

    A server that has gone is started again, and the chat goes on. Raises PunaError when the model cannot be
    loaded at first, and KeyboardInterrupt for Ctrl-C while it loads.
    """
    with ctrl_c_ends_requests(client):
        _converse(Session(client, settings))


def _converse(session: Session) -> None:
    # What is typed before the first prompt is shown there.
    with terminal.silent_keys():
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
    """Handle one message or command. Returns False if it was the last."""
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

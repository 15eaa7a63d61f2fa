"""`puna run`: the choice of the model, and of a chat or one prompt."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

from puna.cli import terminal
from puna.cli.client import Client
from puna.cli.create import check_model, converted_folder, model_from_file, model_of_folder
from puna.cli.interrupt import ctrl_c_ends_requests
from puna.cli.manage import existing_file, is_model_file
from puna.cli.oneshot import read_prompt, run_once
from puna.cli.repl.session import Session
from puna.cli.server_process import connect
from puna.cli.settings import RunSettings
from puna.cli.transfers import pull_missing
from puna.config import path_of


def run_command(settings: RunSettings, words: Sequence[str]) -> None:
    """Answer the prompt in `words` and standard input; chat if there is none and this is a terminal."""
    parts = None
    if is_model_file(settings.model) and path_of(settings.model).is_dir():
        parts = converted_folder(path_of(settings.model))
    elif is_model_file(settings.model):
        # Refuse a file that cannot be run before reading standard input and starting a server.
        check_model(existing_file(settings.model))
    chat = not words and terminal.is_interactive()
    prompt = "" if chat else read_prompt(words)
    with terminal.silent_keys():
        client = connect()
        if chat:
            from puna.cli.repl.loop import converse
    with client:
        if parts is not None:
            settings.model = model_of_folder(client, parts)
        elif is_model_file(settings.model):
            settings.model = model_from_file(client, settings.model)
        else:
            pull_missing(client, settings.model, insecure=settings.insecure)
        if chat:
            converse(client, settings)
        elif settings.mcp:
            _run_with_tools(client, settings, prompt)
        else:
            run_once(client, settings, prompt)


def _run_with_tools(client: Client, settings: RunSettings, prompt: str) -> None:
    """Answer one prompt with the tools of MCP servers."""
    session = Session(client, settings)
    with ctrl_c_ends_requests(session), closing(session):
        for server in settings.mcp:
            session.connect(server)
        session.open()
        if prompt:
            session.ask(prompt)

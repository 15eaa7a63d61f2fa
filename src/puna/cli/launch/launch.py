"""`puna launch`: find the agent, the server and a model; show what changes; become the agent."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from typing import NoReturn

from puna import config
from puna.cli import terminal
from puna.cli.client import Client
from puna.cli.interrupt import ctrl_c_ends_requests
from puna.cli.launch.agents import AGENTS, BY_NAME, Agent, Session, Setup
from puna.cli.launch.choosing import STARTED_CONTEXT, AgentModel, Choice, agent_models, choose, shortage
from puna.cli.launch.files import Change, plan
from puna.cli.server_process import connect
from puna.errors import ConnectionFailedError, RequestError
from puna.unknown import did_you_mean

#: Sent where an agent insists on a key and the user has none.
_NO_KEY = "none"


def launch(name: str, model: str | None, arguments: Sequence[str], *, prints: bool, yes: bool) -> None:
    """Replace this process by the agent `name`; with `prints`, only print how it would be started.

    Raises RequestError if the agent is unknown or not installed, no model suits it, or the user declines a
    change of settings; and ConnectionFailedError if no server answers and none can be started.
    """
    agent = BY_NAME.get(name)
    if agent is None:
        raise RequestError(
            f"unknown agent '{name}'{did_you_mean(name, list(BY_NAME))}; 'puna launch' lists all"
        )
    program = agent.find()
    if program is None and not prints:
        raise RequestError(
            f"{agent.title} is not installed: there is no program '{agent.program}'; install it with\n"
            f"  {agent.install}"
        )
    session = _session(agent, model, prints=prints)
    setup = agent.setup(session)
    changes = plan(setup.files)
    command = [program or agent.program, *setup.arguments, *(arguments or agent.default)]
    if prints:
        _print(setup, changes, [agent.program, *command[1:]])
        return
    _make(changes, agent, yes=yes)
    _become(command, setup)


def print_agents() -> None:
    """Print the agents, and how those that are not installed are."""
    from puna.cli.manage import table

    rows = [(agent.name, agent.title, agent.find() or f"not installed: {agent.install}") for agent in AGENTS]
    print(table(("NAME", "AGENT", "PROGRAM"), rows))


def _session(agent: Agent, model: str | None, *, prints: bool) -> Session:
    try:
        with terminal.silent_keys():
            client = connect(start=not prints, settings={"CONTEXT_LENGTH": str(STARTED_CONTEXT)})
    except ConnectionFailedError:
        if not prints or model is None:
            raise
        from puna.hosts import host_from_env

        terminal.warn("no server answers, so the model's context is not known")
        return Session(host_from_env().client_url, model)
    with client, ctrl_c_ends_requests(client):
        choice = choose(agent, agent_models(client), model)
        _tell(agent, choice)
        if not prints:
            _load(client, choice.model)
    return _of(client, choice.model)


def _load(client: Client, model: AgentModel) -> None:
    """Load the model. Raises its error, such as too little memory, which an agent would only show in part."""
    with terminal.silent_keys(), terminal.spinner(f"loading {model.name}"):
        client.post("/api/generate", {"model": model.name})


def _of(client: Client, model: AgentModel) -> Session:
    return Session(client.host.client_url, model.name, model.context, model.capabilities)


def _tell(agent: Agent, choice: Choice) -> None:
    terminal.note(f"{agent.title} with {choice.model.name} ({choice.reason})")
    if sentence := shortage(agent, choice.model):
        terminal.warn(sentence)


def _key() -> tuple[str, str]:
    """Return the variable of the user's API key and the key; both are empty if there is none."""
    return config.find("API_KEY")


def _print(setup: Setup, changes: Sequence[Change], command: Sequence[str]) -> None:
    """Print shell commands that do the same, with the key as the variable that holds it.

    Changes of files are comments before them.
    """
    variable, _ = _key()
    for change in changes:
        print("".join(f"# {line}\n" for line in change.diff().splitlines()), end="")
    for name, value in setup.variables.items():
        print(f"export {name}={shlex.quote(value)}")
    for name in setup.keys:
        if name != variable:
            print(f'export {name}="${variable}"' if variable else f"export {name}={_NO_KEY}")
    print(shlex.join(command))


def _make(changes: Sequence[Change], agent: Agent, *, yes: bool) -> None:
    """Write files; the user's own only after showing what changes, and asking unless `yes`."""
    users = [change for change in changes if change.is_users]
    for change in users:
        terminal.note(change.diff().rstrip("\n"))
    if users and not yes:
        if not terminal.is_interactive():
            raise RequestError(
                f"{agent.title} needs these settings; --yes makes the change without asking, "
                "--print only shows it"
            )
        _ask("Change this file? [y/N] ", agent)
    for change in changes:
        copy = change.write()
        if change.is_users:
            terminal.note(f"Changed {change.file.path}" + (f"; it was copied to {copy}" if copy else ""))


def _ask(question: str, agent: Agent) -> None:
    print(question, end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise RequestError(f"nothing was changed, and {agent.title} was not started")


def _become(command: Sequence[str], setup: Setup) -> NoReturn:
    """Replace this process, so that the terminal, signals and the exit status are the agent's own."""
    _, key = _key()
    keys = dict.fromkeys(setup.keys, key or _NO_KEY)
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execve(command[0], list(command), {**os.environ, **setup.variables, **keys})
    except OSError as error:
        raise RequestError(f"cannot start {command[0]}: {error.strerror}") from error

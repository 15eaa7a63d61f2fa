"""Arguments shared by several commands."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer


def complete_model(incomplete: str) -> list[str]:
    """Return model names for shell completion; none when no server is running."""
    from puna.cli.client import Client

    with Client() as client:
        return [name for name in client.model_names() if name.startswith(incomplete)]


def complete_agent(incomplete: str) -> list[str]:
    """Return the names of agents for shell completion."""
    from puna.cli.launch.agents import AGENTS

    return [agent.name for agent in AGENTS if agent.name.startswith(incomplete)]


AgentName = Annotated[
    str | None,
    typer.Argument(
        metavar="[AGENT]",
        help="Name of the agent; without one, list the agents.",
        autocompletion=complete_agent,
    ),
]
Model = Annotated[str, typer.Argument(metavar="MODEL", help="Model name.", autocompletion=complete_model)]
OptionalModel = Annotated[
    str | None, typer.Argument(metavar="[MODEL]", help="Model name.", autocompletion=complete_model)
]
Models = Annotated[
    list[str], typer.Argument(metavar="MODEL...", help="Model names.", autocompletion=complete_model)
]
Source = Annotated[str, typer.Argument(metavar="SOURCE", help="Model name.", autocompletion=complete_model)]
ModelOrFile = Annotated[
    str,
    typer.Argument(
        metavar="MODEL", help="Model name, or path of a GGUF file.", autocompletion=complete_model
    ),
]
Think = Annotated[
    str | None,
    typer.Option(
        metavar="[=LEVEL]",
        help="Think before answering. LEVEL is true (if omitted), false, high, medium, low or max.",
    ),
]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="Allow a registry without TLS or with a self-signed certificate.")
]
Force = Annotated[bool, typer.Option("--force", help="Overwrite existing files without asking.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Prefix = Annotated[
    str, typer.Argument(metavar="[PREFIX]", help="Show only models whose name starts with this.")
]


class Topic(StrEnum):
    """Subject of `puna debug`."""

    CACHE = "cache"
    MEMORY = "memory"

"""The arguments that several commands take."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer


def complete_model(incomplete: str) -> list[str]:
    """Model names for shell completion; none when no server is running."""
    from puna.cli.client import Client

    with Client() as client:
        return [name for name in client.model_names() if name.startswith(incomplete)]


Model = Annotated[
    str, typer.Argument(metavar="MODEL", help="Name of a model.", autocompletion=complete_model)
]
OptionalModel = Annotated[
    str | None, typer.Argument(metavar="[MODEL]", help="Name of a model.", autocompletion=complete_model)
]
Models = Annotated[
    list[str], typer.Argument(metavar="MODEL...", help="Names of models.", autocompletion=complete_model)
]
Source = Annotated[
    str, typer.Argument(metavar="SOURCE", help="Name of a model.", autocompletion=complete_model)
]
ModelOrFile = Annotated[
    str,
    typer.Argument(
        metavar="MODEL", help="Name of a model, or path to a GGUF file.", autocompletion=complete_model
    ),
]
Think = Annotated[
    str | None,
    typer.Option(
        metavar="[=LEVEL]",
        help="Think first. The level, after '=': true (if left out), false, high, medium, low or max.",
    ),
]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="Allow a registry without TLS, or with a certificate of its own.")
]
Force = Annotated[bool, typer.Option("--force", help="Write over files that exist, without asking.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Prefix = Annotated[str, typer.Argument(metavar="[PREFIX]", help="Only names that start with this.")]


class Topic(StrEnum):
    """What `puna debug` can show."""

    CACHE = "cache"
    MEMORY = "memory"

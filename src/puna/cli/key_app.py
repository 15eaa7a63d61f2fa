"""`puna key` and its subcommands."""

from __future__ import annotations

from typing import Annotated

import typer

from puna.cli import arguments as take
from puna.cli.help import PunaCommand, PunaGroup

app = typer.Typer(cls=PunaGroup, help="Make and revoke API keys for clients of the server.")


@app.command(cls=PunaCommand)
def new(
    name: Annotated[
        str, typer.Option(metavar="NAME", help="Name of the key (default: the start of its hash).")
    ] = "",
    scope: Annotated[
        str, typer.Option(metavar="SCOPE[,SCOPE]", help="What the key allows: read, generate, manage.")
    ] = "read,generate,manage",
    rate: Annotated[
        str, typer.Option(metavar="N/min", help="Maximum number of requests a minute (default: unlimited).")
    ] = "",
    concurrency: Annotated[
        int, typer.Option(metavar="N", help="Maximum number of concurrent requests (0: unlimited).", min=0)
    ] = 0,
) -> None:
    """Make a key and print it."""
    from puna.cli.keys import make_key

    make_key(name, scope, rate, concurrency)


@app.command("list", cls=PunaCommand)
def list_keys(json: take.Json = False) -> None:
    """List the keys by name; their secrets are not stored."""
    from puna.cli.keys import print_keys

    print_keys(as_json=json)


@app.command(cls=PunaCommand)
def revoke(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Names of keys.")],
) -> None:
    """Revoke keys, so that the server refuses them from now on."""
    from puna.cli.keys import revoke_keys

    revoke_keys(names)

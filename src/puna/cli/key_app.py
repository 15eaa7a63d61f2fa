"""`puna key` and its commands."""

from __future__ import annotations

from typing import Annotated

import typer

from puna.cli import arguments as take
from puna.cli.help import PunaCommand, PunaGroup

app = typer.Typer(cls=PunaGroup, help="Make and revoke the keys that clients of the server need.")


@app.command(cls=PunaCommand)
def new(
    name: Annotated[
        str, typer.Option(metavar="NAME", help="What to call it (default: the beginning of its hash).")
    ] = "",
    scope: Annotated[
        str, typer.Option(metavar="SCOPE[,SCOPE]", help="What it is for: read, generate, manage.")
    ] = "read,generate,manage",
    rate: Annotated[
        str, typer.Option(metavar="N/min", help="Maximum number of requests a minute (default: any).")
    ] = "",
    concurrency: Annotated[
        int, typer.Option(metavar="N", help="Maximum number of requests at once (default: any).", min=0)
    ] = 0,
) -> None:
    """Make a key and print it."""
    from puna.cli.keys import make_key

    make_key(name, scope, rate, concurrency)


@app.command("list", cls=PunaCommand)
def list_keys(json: take.Json = False) -> None:
    """List the keys, which are not shown again themselves."""
    from puna.cli.keys import print_keys

    print_keys(as_json=json)


@app.command(cls=PunaCommand)
def revoke(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Names of keys.")],
) -> None:
    """Revoke keys: the server refuses them from now on."""
    from puna.cli.keys import revoke_keys

    revoke_keys(names)

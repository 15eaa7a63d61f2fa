"""`puna cluster` and its subcommands."""

from __future__ import annotations

from typing import Annotated

import typer

from puna.cli import arguments as take
from puna.cli.help import PunaCommand, PunaGroup

app = typer.Typer(cls=PunaGroup, help="Look after a cluster (see 'puna serve --cluster').")


@app.command(cls=PunaCommand)
def init(
    addresses: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ADDRESS...]", help="Addresses of all nodes, for the certificate."),
    ] = None,
) -> None:
    """Make the token and the certificates of a cluster.

    To add a node, run it again with all addresses.
    """
    from puna.cli.cluster import make_credentials

    make_credentials(addresses or [])


@app.command(cls=PunaCommand)
def status(
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Show it again every second.")] = False,
    json: take.Json = False,
) -> None:
    """Show the nodes, and the replicas of models with what they do and remember."""
    from puna.cli.cluster import print_status

    print_status(watch=watch, as_json=json)


@app.command(cls=PunaCommand)
def drain(
    node: Annotated[str, typer.Argument(metavar="NODE", help="Name, address or id of the node.")],
    undo: Annotated[bool, typer.Option("--undo", help="Give it work again.")] = False,
) -> None:
    """Give a node no new work.

    The command ends once the node's running answers have ended and its prompts are saved.
    """
    from puna.cli.cluster import drain_node

    drain_node(node, undo=undo)

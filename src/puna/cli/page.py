"""The server's page in the user's browser."""

from __future__ import annotations

import webbrowser

from puna.cli import terminal
from puna.cli.client import Client
from puna.cli.server_process import ensure_server
from puna.errors import UnavailableError
from puna.hosts import host_from_env


def open_page(*, print_only: bool) -> None:
    """Open the page of the server at PUNA_HOST, or print its address and do nothing else.

    Raises ConnectionFailedError if no server answers there, and UnavailableError if it has no page.
    """
    host = host_from_env()
    if print_only:
        print(host.client_url)
        return
    with Client(host) as client:
        ensure_server(client, start=False)
        if not client.has_page():
            raise UnavailableError(
                f"the server at {host.client_url} has no page: a checkout builds it with 'make page', and "
                "PUNA_PAGE=off leaves it out"
            )
    if webbrowser.open(host.client_url + "/"):
        terminal.note(f"Opened {host.client_url} in the browser.")
    else:
        terminal.note(f"There is no browser here: open {host.client_url} in one.")

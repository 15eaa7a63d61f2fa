"""The HTTP server: Ollama's, OpenAI's and Anthropic's APIs over runner processes.

Importing this package is cheap; `serve` imports the web framework.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from puna.hosts import Host

if TYPE_CHECKING:
    from puna.cluster.settings import ClusterSettings

__all__ = ["serve"]


def serve(
    host: Host | str | None = None,
    *,
    models: Path | None = None,
    tls_cert: str = "",
    tls_key: str = "",
    root_path: str = "",
    mcp: bool = False,
    cluster: ClusterSettings | None = None,
) -> int:
    """Serve until SIGINT or SIGTERM, and return the exit status (0, or 1 if the address cannot be bound).

    `host` has the syntax of `PUNA_HOST`, which is the default. `models` is the directory of the store
    (default: `PUNA_MODELS`). `tls_cert` and `tls_key` are the PEM files of a certificate chain and its key
    (default: `PUNA_TLS_CERT` and `PUNA_TLS_KEY`; without them, connections are not encrypted). `root_path` is
    the path below which a proxy shows the server (default: `PUNA_ROOT_PATH`). With `mcp`, the page may
    call tools of MCP servers (default: `PUNA_MCP`). With `cluster`, models run on
    the nodes of a cluster, of which this is the head. Prints
    `Listening on 127.0.0.1:11434 (version ...)` and the page's address once clients can connect, or one line
    on standard error if the address cannot be bound.
    """
    from puna.server.serving import serve as run

    return run(
        host,
        models=models,
        tls_cert=tls_cert,
        tls_key=tls_key,
        root_path=root_path,
        mcp=mcp,
        cluster=cluster,
    )

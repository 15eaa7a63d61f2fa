"""`puna run MODEL TEXT` with an embedding model: prints the embedding of the text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from puna.cli import terminal
from puna.cli.client import Client
from puna.cli.interrupt import ctrl_c_ends_requests
from puna.cli.settings import RunSettings
from puna.cli.waiting import Waiting
from puna.errors import RequestError


def embeds(shown: Mapping[str, Any]) -> bool:
    """Whether `shown`, a reply of `/api/show`, describes an embedding model."""
    return "embedding" in (shown.get("capabilities") or ())


def no_text(model: str) -> RequestError:
    """The error when there is no text to embed."""
    return RequestError(f'embedding models require input text. Usage: puna run {model} "your text here"')


def print_embedding(client: Client, settings: RunSettings, text: str) -> None:
    """Print the embedding of `text` as a JSON array; nothing after Ctrl-C, which is not an error."""
    if not text:
        raise no_text(settings.model)
    body = settings.request() | {"input": text, "truncate": settings.truncate}
    if settings.dimensions is not None:
        body["dimensions"] = settings.dimensions
    try:
        with ctrl_c_ends_requests(client), Waiting(client.host, settings.model):
            reply = client.post("/api/embed", body)
    except KeyboardInterrupt:
        return
    print(json.dumps(reply["embeddings"][0]))
    if truncated := reply.get("truncated"):
        terminal.warn(
            f"the text did not fit the context: its last {truncated} token(s) were dropped "
            "(increase num_ctx to keep more)"
        )

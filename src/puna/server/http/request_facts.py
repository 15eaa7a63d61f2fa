"""What is known of the request being served, gathered by who learns it, for the log."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass


@dataclass
class RequestFacts:
    """Durations are in seconds; None means unknown."""

    id: str
    user_agent: str = ""
    model: str = ""
    outcome: str = ""  # of a generation or an embedding, as in the metrics
    error: str = ""
    ignored: str = ""  # fields and options that changed nothing, a sentence for each
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    generated_tokens: int | None = None
    load_s: float | None = None  # from the request's arrival until its model was there
    first_token_s: float | None = None  # from the request's arrival


#: Set while a request is served, and in the tasks started for it.
current: ContextVar[RequestFacts | None] = ContextVar("request", default=None)


def facts() -> RequestFacts:
    """Those of the current request; outside of a request, an object that is thrown away."""
    return current.get() or RequestFacts(id="")

"""The log-probabilities reported in answers."""

from __future__ import annotations

from openai.types import CompletionChoice


def scores(choice: CompletionChoice) -> list[float | None]:
    """Return each token's log-probability in `choice`; None for a first token, which nothing precedes."""
    assert choice.logprobs is not None
    assert choice.logprobs.token_logprobs is not None
    return list(choice.logprobs.token_logprobs)

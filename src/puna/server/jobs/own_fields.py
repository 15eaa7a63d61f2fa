"""What request bodies of both APIs have in common."""

from __future__ import annotations

from typing import Any

from puna.engine.events import Generate, Priority
from puna.server.http.decoding import Body


class OwnFields(Body):
    """Puna's own fields of any generation, beside those of either API."""

    cache_prompt: bool = True
    priority: Priority = "interactive"
    ignore_eos: bool = False  # as in vLLM and llama.cpp

    def request(self, **more: Any) -> Generate:
        """The request with these fields and `more`. Its prompt and options need its model to be known."""
        return Generate(
            cache_prompt=self.cache_prompt, priority=self.priority, ignore_eos=self.ignore_eos, **more
        )


def texts_or_tokens(given: Any) -> list[str | list[int]] | None:
    """What OpenAI's API takes for a prompt or an input, as a list: a text, token ids, or several of one kind.

    None for anything else, an empty list among it.
    """
    if isinstance(given, str) or _are_ints(given):
        return [given]
    if not isinstance(given, list) or not given:
        return None
    one_kind = all(isinstance(one, str) for one in given) or all(_are_ints(one) for one in given)
    return list(given) if one_kind else None


def _are_ints(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(item) is int for item in value)

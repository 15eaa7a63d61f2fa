"""Checks of requests that every generating endpoint makes, in the order clients know."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from puna.errors import RequestError, UnavailableError

_LEVELS = ("high", "medium", "low", "max")


def check_top_logprobs(count: int) -> None:
    if not 0 <= count <= 20:
        raise RequestError("top_logprobs must be between 0 and 20")


def think_level(value: Any) -> bool | str | None:
    """A request's `think`: None when absent, a switch, or a level."""
    if value is None or isinstance(value, bool):
        return value
    if not isinstance(value, str):
        raise RequestError(
            'think must be a boolean or string ("high", "medium", "low", "max", true, or false)'
        )
    if value not in _LEVELS:
        raise RequestError(
            f'invalid think value: "{value}" (must be "high", "medium", "low", "max", true, or false)'
        )
    return value


def check_format(value: Any) -> None:
    """`format` and `response_format`: nothing but their absence is possible yet."""
    if value not in (None, ""):
        raise UnavailableError("structured output (format) is not available yet in this version")


def check_images(images: Collection[Any], name: str) -> None:
    if images:
        raise RequestError(f'"{name}" does not support images (vision) in this version of Puna')


def check_answers(name: str, has: Collection[str], endpoint: str) -> None:
    """Raises RequestError for an embedding model. A damaged one has no capabilities; loading it says why."""
    if "embedding" in has:
        raise RequestError(f'"{name}" does not support {endpoint}')


def check_capabilities(name: str, has: Collection[str], wanted: Collection[str]) -> None:
    """Raises RequestError naming each capability of `wanted` that the model lacks."""
    missing = [capability for capability in wanted if capability not in has]
    if missing:
        raise RequestError("\n".join(f'"{name}" does not support {capability}' for capability in missing))

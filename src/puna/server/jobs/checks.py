"""Checks of requests that every generating endpoint makes, in the order clients know."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from typing import Any

from puna.errors import RequestError, TemplateError
from puna.options import THINK_LEVELS
from puna.server.http.bodies import MAX_INPUTS
from puna.vision.limits import image_limits

_THINK_VALUES = ", ".join(f'"{level}"' for level in THINK_LEVELS) + ", true, or false"


def check_top_logprobs(count: int, name: str = "top_logprobs") -> None:
    if not 0 <= count <= 20:
        raise RequestError(f"{name} must be between 0 and 20")


def check_think(value: Any) -> bool | str | None:
    """A request's `think`, which is returned: None when absent, a switch, or a level."""
    if value is None or isinstance(value, bool):
        return value
    if not isinstance(value, str):
        raise RequestError(f"think must be a boolean or string ({_THINK_VALUES})")
    if value not in THINK_LEVELS:
        raise RequestError(f'invalid think value: "{value}" (must be {_THINK_VALUES})')
    return value


def check_images(images: Collection[Any], name: str, has: Collection[str]) -> None:
    """Raises RequestError for images that the model cannot see, and ImageError for too many."""
    if not images:
        return
    if "vision" not in has:
        raise RequestError(f'"{name}" does not support images (vision)')
    image_limits().check_count(len(images))


def check_inputs(count: int) -> None:
    if count > MAX_INPUTS:
        raise RequestError(f"at most {MAX_INPUTS:,} texts can be embedded at once, not {count:,}")


@contextlib.contextmanager
def template_errors(*, came: bool) -> Iterator[None]:
    """What is wrong with a template that `came` with a request is an error of the request."""
    try:
        yield
    except TemplateError as error:
        if came:
            raise RequestError(str(error)) from error
        raise


def check_answers(name: str, has: Collection[str], endpoint: str) -> None:
    """Raises RequestError for a model that embeds or ranks texts.

    A damaged one has no capabilities; loading it says why.
    """
    if "embedding" in has or "rerank" in has:
        raise RequestError(f'"{name}" does not support {endpoint}')

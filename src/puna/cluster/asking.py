"""Calls of Ray's actors whose errors are Puna's."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

from puna.errors import PunaError, RunnerError


class NodeLostError(RunnerError):
    """A node, or a process of the cluster on it, is gone or does not answer."""


async def ask(reply: Awaitable[Any], node: str, timeout_s: float) -> Any:
    """Return the result of an actor's method. Raises its PunaError, or `NodeLostError`."""
    from ray.exceptions import RayError, RayTaskError

    try:
        return await asyncio.wait_for(_awaited(reply), timeout_s)
    except RayTaskError as error:
        cause = error.cause
        if isinstance(cause, PunaError):
            raise cause from None
        raise RunnerError(f"node {node}: {type(cause).__name__}: {cause}") from error
    except RayError as error:
        raise NodeLostError(f"node {node} is lost: {type(error).__name__}") from error
    except TimeoutError:
        raise NodeLostError(f"node {node} did not answer within {timeout_s:g} s") from None


async def _awaited(reply: Awaitable[Any]) -> Any:
    return await reply

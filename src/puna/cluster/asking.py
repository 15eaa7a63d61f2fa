"""Ray's actors: placed on a node, and called with errors that are Puna's."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from functools import cache
from typing import Any

from puna.errors import PunaError, RunnerError


class NodeLostError(RunnerError):
    """A node, or a process of the cluster on it, is gone or does not answer."""


def actor_on(node_id: str, kind: type, **options: Any) -> Any:
    """Start an actor of a class on a node, by Ray's id of it; `options` are Ray's."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    strategy = NodeAffinitySchedulingStrategy(node_id, soft=False)
    return _remote(kind).options(num_cpus=0, scheduling_strategy=strategy, **options).remote()


@cache
def _remote(kind: type) -> Any:
    """Return Ray's form of a class, which Ray keeps for good: one for all actors."""
    import ray

    return ray.remote(kind)


async def ask(reply: Awaitable[Any], node: str, timeout_s: float) -> Any:
    """Return the result of an actor's method. Raises its PunaError, or `NodeLostError`."""
    from ray.exceptions import RayError, RayTaskError

    try:
        async with asyncio.timeout(timeout_s):
            return await reply
    except RayTaskError as error:
        cause = error.cause
        if isinstance(cause, PunaError):
            raise cause from None
        raise RunnerError(f"node {node}: {type(cause).__name__}: {cause}") from error
    except RayError as error:
        raise NodeLostError(f"node {node} is lost: {type(error).__name__}") from error
    except TimeoutError:
        raise NodeLostError(f"node {node} did not answer within {timeout_s:g} s") from None

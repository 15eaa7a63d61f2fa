"""Vectors of texts, for the embedding endpoints of both APIs."""

from __future__ import annotations

import contextlib
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec.structs

from puna.errors import ModelNotFoundError
from puna.prompt.author import Author
from puna.protocol import Embed, Embedded
from puna.server.jobs.backend import Backend, Order, warnings
from puna.server.jobs.parsing import parsing
from puna.store import StoredModel


@dataclass(frozen=True)
class Vectors:
    """Vectors in the order of their texts; durations in nanoseconds, from the arrival of the request."""

    vectors: Sequence[Embedded] = ()
    total_duration: int = 0
    load_duration: int = 0
    warnings: Sequence[str] = ()

    @property
    def tokens(self) -> int:
        return sum(vector.prompt_eval_count for vector in self.vectors)


def find(backend: Backend, name: str) -> StoredModel:
    """The model a request names, with the errors that clients of these endpoints know."""
    if not name.strip():
        raise ModelNotFoundError("model '' not found")
    try:
        return backend.find(name)
    except ModelNotFoundError as error:
        raise ModelNotFoundError(f'model "{name}" not found, try pulling it first') from error


async def embed(backend: Backend, order: Order, request: Embed) -> Vectors:
    """Vectors of the inputs of `request`; without any, the model is loaded and that is all."""
    if not request.inputs:
        return Vectors(warnings=await backend.load(order))
    inputs = request.inputs
    if request.query is None and order.model.template:
        author = Author.of(order.model)
        inputs = await parsing(lambda: author.framed(request.inputs))
    with (
        backend.metrics.observation(order.model.name, order.arrived_ns) as observation,
        backend.requests.running(order.model.name, order.arrived_ns) as running,
    ):
        async with contextlib.AsyncExitStack() as held:
            with running.waiting():
                runner = await held.enter_async_context(backend.runner(order))
            observation.loaded()
            running.loaded()
            loaded_ns = time.perf_counter_ns()
            num_ctx = backend.num_ctx(order)
            wanted = msgspec.structs.replace(request, inputs=inputs, num_ctx=num_ctx, client=order.client)
            with running.waiting():
                vectors = await runner.embed(wanted)
            observation.embedded(vectors)
    return Vectors(
        vectors,
        total_duration=time.perf_counter_ns() - order.arrived_ns,
        load_duration=max(loaded_ns - order.arrived_ns, 1),
        warnings=warnings(order, runner),
    )


def floats(vector: bytes) -> tuple[float, ...]:
    """The values of little-endian float32."""
    return struct.unpack(f"<{len(vector) // 4}f", vector)

"""The memory a model would take, forecast by a process of its own: files of models are strangers' files."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE
from typing import Final

import msgspec

from puna.errors import ModelError, RequestError
from puna.store import Store, StoredModel

#: How long a forecast may take, and how many are made at the same time.
_PATIENCE_S: Final = 30.0
_slots = asyncio.Semaphore(2)


class MemoryRow(msgspec.Struct, frozen=True):
    """Bytes of a layer, or of what precedes or follows all layers."""

    name: str
    device: str
    weights: int
    cache: int


class MemoryNeed(msgspec.Struct, frozen=True):
    """Bytes needed for `parallel` sequences of `context` tokens, and those that the machine has left."""

    context: int
    parallel: int
    rows: list[MemoryRow]
    total: int
    available: int
    fits: bool


class _Table(msgspec.Struct):
    context: int
    parallel: int
    parts: list[MemoryRow]
    totals: dict[str, int]
    available: int


async def memory_need(store: Store, model: StoredModel, num_ctx: str, parallel: str) -> MemoryNeed:
    """Return the memory that `model` would take; empty arguments stand for the server's settings.

    Raises RequestError for arguments that are not numbers, and ModelError for a file that cannot be run.
    """
    options = []
    for name, text in (("num_ctx", num_ctx), ("parallel", parallel)):
        if text:
            if not (text.isascii() and text.isdigit() and 0 < int(text[:10]) < 2**31):
                raise RequestError(f"{name} must be a positive number, not {text:.40}")
            options += [f"--{name.replace('_', '-')}", text]
    command = [sys.executable, "-m", "puna", "debug", "memory", model.name, "--json", *options]
    environment = {**os.environ, "PUNA_MODELS": str(store.root)}
    async with _slots:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=DEVNULL, stdout=PIPE, stderr=PIPE, env=environment, start_new_session=True
        )
        try:
            async with asyncio.timeout(_PATIENCE_S):
                output, errors = await process.communicate()
        except TimeoutError:
            raise ModelError(
                f"the memory of {model.name} could not be told within {_PATIENCE_S:g} s"
            ) from None
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await asyncio.shield(process.wait())
    if process.returncode:
        lines = errors.decode(errors="replace").strip().splitlines()
        raise ModelError(lines[-1].removeprefix("Error: ") if lines else f"{model.name} cannot be read")
    return _need(msgspec.json.decode(output, type=_Table))


def _need(table: _Table) -> MemoryNeed:
    total = next(iter(table.totals.values()))  # the first device is this machine's memory
    return MemoryNeed(
        table.context, table.parallel, table.parts, total, table.available, total <= table.available
    )

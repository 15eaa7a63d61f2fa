"""`puna debug memory`: how much memory each part of a model needs, without loading it."""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from puna.cli import humanize, tables
from puna.cli.local_models import model_path, projector_path
from puna.errors import RequestError
from puna.machine import available_memory

if TYPE_CHECKING:
    from puna.model.memory import MemoryTable


def print_memory(model: str | None, num_ctx: int | None, parallel: int | None, *, as_json: bool) -> None:
    """Print the memory `model` needs if loaded by a server with this environment, as text or JSON."""
    if model is None:
        raise RequestError("which model? Usage: puna debug memory MODEL")
    from puna.gguf import open_gguf
    from puna.kvcache.types import KVTypes
    from puna.model.memory import forecast_for
    from puna.options import Options, drafts_itself, engine_from_env
    from puna.server.settings import DEFAULT_PARALLEL, Settings

    settings = Settings.from_env()
    path = model_path(model)
    with contextlib.ExitStack() as opened:
        file = opened.enter_context(open_gguf(path))
        projector = projector_path(model, path)
        beside = opened.enter_context(open_gguf(projector)) if projector else None
        types = KVTypes.parse(settings.kv_cache_type)
        heads = drafts_itself(settings.speculate)
        forecast = forecast_for(
            file, types, projector=beside, engine=engine_from_env(), prediction_heads=heads
        )
    table = forecast.table(
        context=num_ctx or settings.context_length,
        parallel=parallel or settings.parallel or DEFAULT_PARALLEL,
        batch=Options().num_batch,
    )
    if as_json:
        totals = {device: table.on(device) for device in table.devices}
        print(json.dumps({**asdict(table), "totals": totals, "available": available_memory()}))
    else:
        print(describe(table, available_memory()))


def describe(table: MemoryTable, available: int) -> str:
    """The table as text, followed by the total of each device and the available memory."""
    rows = [
        (part.name, part.device, humanize.size(part.weights), humanize.size(part.cache))
        for part in table.parts
    ]
    ends = [
        f"Activations for {table.batch} tokens: {humanize.size(table.activations)}",
        f"Bookkeeping: {humanize.size(table.bookkeeping)}",
        f"Tokenizer: {humanize.size(table.tokenizer)}",
        f"Process: {humanize.size(table.process)}",
        *(f"Total on {device}: {humanize.size(table.on(device))}" for device in table.devices),
        f"Available: {humanize.size(available)}",
    ]
    head = f"Context of {table.context} tokens for each of {table.parallel} parallel requests"
    return "\n".join([head, "", tables.table(("PART", "DEVICE", "WEIGHTS", "CACHE"), rows), "", *ends])

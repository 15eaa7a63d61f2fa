"""The sizes of a model's parts, as an agent reads them from the model's files."""

from __future__ import annotations

from pathlib import Path

from puna.cluster.split_plan import ModelSizes
from puna.errors import UnsupportedModelError
from puna.gguf import open_gguf
from puna.kvcache.types import KVTypes
from puna.model.adapters.adapters import adapter_bytes
from puna.model.load import forecast_for
from puna.model.memory import UNSTATED_CONTEXT, Forecast
from puna.model.stages import places_to_cut
from puna.options import drafts_itself
from puna.protocol import Load


def model_sizes(load: Load) -> ModelSizes:
    """Return the sizes of a model for the use it is loaded for. Raises PunaError if it cannot be split."""
    types = KVTypes.parse(load.kv_cache_type)
    with open_gguf(load.path) as file:
        forecast = forecast_for(
            file, types, engine=load.engine, prediction_heads=drafts_itself(load.speculate) and not load.draft
        )
        if not isinstance(forecast, Forecast):
            raise UnsupportedModelError(f"{file.path.name} cannot be split: llama.cpp runs it")
        if reason := forecast.architecture.undivided:
            raise UnsupportedModelError(f"{file.architecture} cannot be split: {reason}")
        context = load.num_ctx or min(forecast.trained_context or UNSTATED_CONTEXT, UNSTATED_CONTEXT)
        table = forecast.table(context=context, parallel=load.parallel, batch=load.num_batch)
    count = forecast.options.block_count
    own = [table.layer(number) for number in range(count)]
    changes = sum(adapter_bytes(Path(adapter.path)) for adapter in load.adapters)  # each stage reads all
    each = table.activations + table.bookkeeping + table.process
    inner = sum(part.weights + part.cache for part in own)
    beside = sum(Path(path).stat().st_size for path in (load.draft, load.projector) if path)
    return ModelSizes(
        weights=tuple(part.weights for part in own),
        caches=tuple(part.cache for part in own),
        first=table.total - each - inner + beside,
        each=each + changes,
        places=tuple(places_to_cut([layer.remembers for layer in forecast.options.layers[:count]])),
    )

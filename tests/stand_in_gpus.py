"""GPUs of any memory for tests: torch's CPU device, as `PUNA_GPU_DEVICE=cpu` has it."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from puna import ops
from puna.gguf import open_gguf
from puna.model.load import LoadSettings
from puna.model.memory import Forecast
from puna.ops import Backend, gpu


def use_gpus(monkeypatch: pytest.MonkeyPatch, *memory: int) -> list[Backend]:
    """Give the machine GPUs with so many free bytes each, for one test; return their backends."""
    monkeypatch.delenv("PUNA_OPS", raising=False)
    monkeypatch.setenv("PUNA_GPU_DEVICE", "cpu")
    monkeypatch.setenv("PUNA_GPU_MEMORY_GB", ",".join(repr(size / 1e9) for size in memory))
    # Both remember the GPUs of this process.
    monkeypatch.setattr(gpu, "gpu_backends", cache(gpu.gpu_backends.__wrapped__))
    monkeypatch.setattr(ops, "_gpus_or_reason", cache(ops._gpus_or_reason.__wrapped__))
    return gpu.gpu_backends()


def memory_for(path: Path, layers: int, settings: LoadSettings, *, first: bool = True) -> int:
    """Return the bytes of a GPU on which the first (or other) `layers` layers of a model fit, and no more."""
    with open_gguf(path) as file:
        forecast = Forecast(file, ops=gpu.gpu_backends()[0])
        table = forecast.table(
            context=settings.context, parallel=settings.parallel, batch=settings.batch_size
        )
    inner = [table.layer(number) for number in range(forecast.options.block_count)]
    others = [part for part in table.parts if part not in inner]
    begin = 0 if first else len(inner) - layers
    held = inner[begin : begin + layers] + (others if first else [])
    used = table.activations + sum(part.weights + part.cache for part in held)
    return round(used * 32 / 31) + 100  # a part stays free

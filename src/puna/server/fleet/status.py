"""The state of loaded models, which their runners report on request."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from puna.errors import RunnerError
from puna.protocol import Pong
from puna.server.fleet.resident import ResidentModel, Runner

#: A runner that does not answer within this time is shown without its report.
_PATIENCE_S = 1.0


@dataclass(frozen=True)
class ModelStatus:
    """A loaded model, the state its runner reported, and its memory."""

    model: ResidentModel
    runner: Runner
    pong: Pong | None
    memory_bytes: int

    @property
    def promised_bytes(self) -> int:
        """Bytes by which the model's caches may still grow; 0 if its runner did not answer."""
        return max(self.runner.info.cache_bytes - self.pong.cache_bytes, 0) if self.pong is not None else 0


async def look(models: Sequence[ResidentModel]) -> list[ModelStatus]:
    """Return the status of those of `models` that are loaded; their runners are asked concurrently."""
    looks = await asyncio.gather(*(_look(model) for model in models))
    return [one for one in looks if one is not None]


async def _look(model: ResidentModel) -> ModelStatus | None:
    runner = model.runner
    if runner is None:
        return None
    try:
        pong = await runner.ping(_PATIENCE_S)
    except RunnerError:
        pong = None
    return ModelStatus(model, runner, pong, runner.memory_bytes)


def own_fields(look: ModelStatus) -> dict[str, Any]:
    """Return a model's fields in `/api/ps` beyond Ollama's, without those its runner did not report."""
    tally, info, pong = look.runner.tally, look.runner.info, look.pong
    memory = {"process": look.memory_bytes, "weights": info.weight_bytes, "cache_limit": info.cache_bytes}
    fields: dict[str, Any] = {
        "responding": pong is not None,
        "parallel": info.parallel,
        "engine": info.engine,
        "kernels": info.kernels,
        "memory": memory,
        "tokens": {
            "prompt": tally.prompt_tokens,
            "cached": tally.cached_tokens,
            "generated": tally.generated_tokens,
        },
        "tokens_per_second": round(tally.tokens_per_second, 2),
        "load_duration": int(look.model.load_s * 1e9),
    }
    if info.warnings:
        fields["warnings"] = info.warnings
    if pong is not None:
        memory["cache"] = pong.cache_bytes
        fields |= {"requests_running": pong.running, "requests_waiting": pong.active - pong.running}
    return fields


def families(looks: Sequence[ModelStatus], waiting_for_load: dict[str, int]) -> Iterator[Metric]:
    """Yield the metrics that are states, not sums. `waiting_for_load` counts requests by model."""
    models = GaugeMetricFamily("puna_loaded_models", "Models in memory")
    models.add_metric([], len(looks))
    running = _gauge("puna_requests_running", "Requests being computed", "model")
    waiting = _gauge("puna_requests_waiting", "Requests waiting for a load or a slot", "model", "what")
    memory = _gauge("puna_memory_bytes", "Memory of loaded models", "model", "what")
    speed = _gauge(
        "puna_tokens_per_second",
        "Tokens per second of all requests over the last 10 s of generating",
        "model",
    )
    step = _gauge("puna_step_age_seconds", "Duration of the current step so far", "model")
    cells = _gauge("puna_cache_cells", "Cells of the caches", "model", "cache", "state")
    evicted = CounterMetricFamily(
        "puna_cache_evicted_cells",
        "Cells of finished requests that were evicted for others, since the model was loaded",
        labels=["model"],
    )
    of_stage = ["model", "stage"]
    tokens = CounterMetricFamily(
        "puna_stage_tokens", "Tokens computed by a stage of a model", labels=of_stage
    )
    computing = CounterMetricFamily("puna_stage_seconds", "Time for which a stage computed", labels=of_stage)
    received = CounterMetricFamily("puna_stage_bytes", "Bytes that a stage received", labels=of_stage)
    for name, count in waiting_for_load.items():
        waiting.add_metric([name, "load"], count)
    for look in looks:
        name, pong = look.model.model.name, look.pong
        speed.add_metric([name], look.runner.tally.tokens_per_second)
        memory.add_metric([name, "process"], look.memory_bytes)
        memory.add_metric([name, "weights"], look.runner.info.weight_bytes)
        if pong is None:
            continue
        memory.add_metric([name, "cache"], pong.cache_bytes)
        running.add_metric([name], pong.running)
        waiting.add_metric([name, "slot"], pong.active - pong.running)
        step.add_metric([name], pong.step_age_s)
        evicted.add_metric([name], pong.evicted)
        for counts in pong.cells:
            cells.add_metric([name, counts.kind, "capacity"], counts.capacity)
            cells.add_metric([name, counts.kind, "used"], counts.used)
            cells.add_metric([name, counts.kind, "shared"], counts.shared)
        for number, cost in enumerate(pong.stages, 1):
            labels = [name, str(number)]
            tokens.add_metric(labels, cost.rows)
            computing.add_metric(labels, cost.compute_us / 1e6)
            received.add_metric(labels, cost.received_bytes)
    yield from (models, running, waiting, memory, speed, step, cells, evicted, tokens, computing, received)


def _gauge(name: str, meaning: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, meaning, labels=labels)

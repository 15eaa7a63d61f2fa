"""The tables of `list` and `ps`, from the server's replies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from puna.cli import humanize

_GAP = "    "


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Left-aligned columns, four spaces apart, without borders."""
    lines = [header, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    padded = (_GAP.join(map(str.ljust, line, widths)) for line in lines)
    return "\n".join(line.rstrip() for line in padded)


def model_table(models: Sequence[Mapping[str, Any]], now: datetime) -> str:
    """The table of `list`, from the models of `/api/tags`."""
    rows = [
        (
            model["name"],
            short_id(model),
            "-" if model.get("remote_model") else humanize.size(model["size"]),
            humanize.ago(humanize.parse_time(model["modified_at"]), now),
        )
        for model in models
    ]
    return table(("NAME", "ID", "SIZE", "MODIFIED"), rows)


def running_table(models: Sequence[Mapping[str, Any]], now: datetime) -> str:
    """The table of `ps`, from the models of `/api/ps`."""
    rows = [
        (
            model["name"],
            short_id(model),
            humanize.size(model["size"]),
            processor(model["size"], model.get("size_vram", 0)),
            model.get("engine") or "-",
            str(model.get("context_length", 0)),
            memory(model),
            speed(model),
            until(humanize.parse_time(model["expires_at"]), now),
        )
        for model in models
    ]
    return table(
        ("NAME", "ID", "SIZE", "PROCESSOR", "ENGINE", "CONTEXT", "MEMORY", "TOKENS/S", "UNTIL"), rows
    )


def short_id(model: Mapping[str, Any]) -> str:
    digest: str = model.get("digest") or ""
    return digest.removeprefix("sha256:")[:12]


def processor(size_bytes: int, vram_bytes: int) -> str:
    """Where a model is loaded, by fraction of its bytes."""
    if size_bytes <= 0:
        return "Unknown"
    if vram_bytes <= 0:
        return "100% CPU"
    if vram_bytes >= size_bytes:
        return "100% GPU"
    cpu = int((size_bytes - vram_bytes) / size_bytes * 100 + 0.5)
    return f"{cpu}%/{100 - cpu}% CPU/GPU"


def memory(model: Mapping[str, Any]) -> str:
    """Current memory of the model's process; `-` if unknown (Ollama's server does not report it)."""
    size_bytes = model.get("memory", {}).get("process", 0)
    return humanize.size(size_bytes) if size_bytes else "-"


def speed(model: Mapping[str, Any]) -> str:
    """Tokens per second over all of the model's requests when it last generated; `-` if unknown."""
    tokens_per_second: float = model.get("tokens_per_second", 0.0)
    return f"{tokens_per_second:.1f}" if tokens_per_second else "-"


def until(expires_at: datetime, now: datetime) -> str:
    """When a model will be unloaded; once expired it is only waiting for its last requests."""
    return "Stopping..." if expires_at < now else humanize.ago(expires_at, now)

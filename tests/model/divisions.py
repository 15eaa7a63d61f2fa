"""Models divided among given devices."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from puna.model.load import LoadedModel, load_model
from puna.model.placement import DeviceStage
from puna.ops import Backend


def divided(path: Path, cuts: Sequence[int], devices: Sequence[Backend], **options: Any) -> LoadedModel:
    """Load a model whose stages on `devices` end before layers `cuts`, and the last with the model."""
    count = load_model(path).model.options.block_count  # type: ignore[attr-defined]
    stages = [
        DeviceStage(ops, begin, end)
        for ops, begin, end in zip(devices, (0, *cuts), (*cuts, count), strict=True)
    ]
    return load_model(path, stages=stages, **options)

"""Tensors of files about rotation, which checkpoints have as settings."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from puna.convert.config import Config
from puna.convert.family import Assumption
from puna.convert.numbers import Values


def llama3_factors(config: Config) -> Mapping[str, Values]:
    """What Llama 3.1 divides each frequency by: slow ones all, fast ones not, those between in part."""
    rope = config.rope
    if str(rope.get("rope_type", "")).lower() != "llama3":
        return {}
    size = config.head_size
    wavelengths = 2 * np.pi * float(rope.get("rope_theta", 10000.0)) ** (np.arange(0, size, 2) / size)
    factor, context = (
        float(rope.get("factor", 8.0)),
        float(rope.get("original_max_position_embeddings", 8192)),
    )
    low, high = float(rope.get("low_freq_factor", 1.0)), float(rope.get("high_freq_factor", 4.0))
    with np.errstate(divide="ignore", invalid="ignore"):  # nothing is between where the two are the same
        share = (context / wavelengths - low) / (high - low)
        between = 1 / ((1 - share) / factor + share)
    factors = np.select(
        [wavelengths < context / high, wavelengths > context / low], [np.ones_like(share), factor], between
    )
    return {"rope_freqs.weight": factors.astype(np.float32)}


def long_rope_factors(config: Config) -> Mapping[str, Values]:
    """LongRoPE's two tables of factors, for texts up to the original context and beyond."""
    rope = config.rope
    return {
        f"rope_factors_{name}.weight": np.array(rope[f"{name}_factor"], np.float32)
        for name in ("long", "short")
        if rope.get("long_factor") and rope.get("short_factor")
    }


def long_rope_attention(config: Config) -> float | None:
    """What cosines and sines are multiplied by, where there are two tables of factors."""
    if not config.rope.get("long_factor"):
        return None
    if (own := config.rope.get("attention_factor")) is not None:
        return float(own)
    original = original_context(config)
    scale = config.count("max_position_embeddings") / original
    return math.sqrt(1 + math.log(scale) / math.log(original)) if scale > 1 else 1.0


#: The factor of LongRoPE, which follows from the two contexts.
LONG_ROPE: Final[Mapping[str, Assumption]] = {
    "rope_parameters.factor": lambda config: (
        config.count("max_position_embeddings") / original_context(config)
        if "long_factor" in config.rope
        else config.rope.get("factor")
    ),
}


def original_context(config: Config) -> int:
    """How many positions a model was trained with before it was extended."""
    given: Any = config.rope.get("original_max_position_embeddings")
    return int(given or config.count("max_position_embeddings"))

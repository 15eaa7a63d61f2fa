"""Apertus of the Swiss AI Initiative: norms of queries and keys, and the activation xIELU without gates.

Project Apertus, arXiv:2509.14233.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from puna.errors import ModelError, shown
from puna.model.decoder import Decoder
from puna.model.options import LayerOptions, TextDefaults, TextOptions
from puna.nn.attention import NormedSelfAttention
from puna.nn.feed_forward import XieluFeedForward
from puna.nn.module import blocks, part
from puna.nn.transformer_layer import PreNormLayer

if TYPE_CHECKING:
    from puna.gguf import GGUFFile


#: Larger parameters of an activation would overflow.
_LARGEST = 1e6


@dataclass(frozen=True, kw_only=True)
class ApertusLayerOptions(LayerOptions):
    xielu_positive: float
    xielu_negative: float
    xielu_slope: float


class Layer(PreNormLayer):
    mixer: NormedSelfAttention = part()
    feed_forward: XieluFeedForward = part()  # type: ignore[assignment]


class Apertus(Decoder):
    layers: Sequence[Layer] = blocks("blk")

    @classmethod
    def read_options(cls, file: GGUFFile) -> TextOptions:
        options = TextOptions.read(file, TextDefaults(neox=True, rope_base=12e6))
        count = options.block_count
        positive, negative = _each(file, "xielu.alpha_p", count), _each(file, "xielu.alpha_n", count)
        slopes = _each(file, "xielu.beta", count)

        def own(index: int, layer: LayerOptions) -> LayerOptions:
            return ApertusLayerOptions(
                **vars(layer),
                xielu_positive=_softplus(positive[index]),
                xielu_negative=_softplus(negative[index]) + slopes[index],
                xielu_slope=slopes[index],
            )

        return options.each(own)


def _softplus(x: float) -> float:
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


def _each(file: GGUFFile, key: str, layers: int) -> list[float]:
    """Return a number for each layer; one number applies to all. Raises `ModelError`."""
    given: Any = file.get(key)
    values = [given] * layers if isinstance(given, int | float) else given
    if values is None:
        raise ModelError(f"{file.path}: metadata key '{key}' is missing")
    if isinstance(values, str) or len(values) != layers:
        raise ModelError(f"{file.path}: '{key}' should be {layers} numbers, but is {shown(values)}")
    for each in values:
        if not isinstance(each, int | float) or not abs(each) <= _LARGEST:
            raise ModelError(f"{file.path}: '{key}' should be numbers of a layer each, but has {shown(each)}")
    return [float(each) for each in values]

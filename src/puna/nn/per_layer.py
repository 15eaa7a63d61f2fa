"""Per-layer embeddings: besides what enters the first layer, a token has a vector of its own for every layer.

The tables are large and only a row of them is read for each token: parameters that cost memory but next to no
time (Gemma 3n).
"""

from __future__ import annotations

import math
from typing import Any, Protocol, Self

from puna.nn.layers import Embedding, Linear, RMSNorm, StackedLinear
from puna.nn.module import Module, WeightSource, weight
from puna.ops import Array


class PerLayerOptions(Protocol):
    """What the options of a model say about it."""

    @property
    def hidden_size(self) -> int: ...
    @property
    def block_count(self) -> int: ...
    @property
    def layer_input_size(self) -> int: ...


class _EqualParts(StackedLinear):
    """The shape is the number of linears, the rows of each, and the columns of all."""

    @classmethod
    def from_source(
        cls, source: WeightSource, name: str, shape: tuple[int, ...], options: Any
    ) -> Self | None:
        count, rows, columns = shape
        return super().from_source(source, name, (rows,) * count + (columns,), options)


class LayerInputs(Module):
    """What a token gives each layer: half of it follows from the token, half from its embedding."""

    options: PerLayerOptions
    table: Embedding = weight("per_layer_token_embd", "vocab_size", "layer_inputs_size")
    projection: _EqualParts = weight("per_layer_model_proj", "block_count", "layer_input_size", "hidden_size")
    norm: RMSNorm = weight("per_layer_proj_norm", "layer_input_size")

    def forward(self, tokens: Array, embedded: Array) -> list[Array]:
        """For every layer [rows, layer_input_size], of `tokens` [rows] and `embedded` [rows, hidden]."""
        o, half = self.options, math.sqrt(0.5)
        of_tokens = self.ops.split(self.table(tokens) * (math.sqrt(o.layer_input_size) * half), o.block_count)
        # As small as it was trained to be, for the sake of the norm's epsilon.
        projected = self.projection(embedded * (1 / math.sqrt(o.hidden_size)))
        return [self.norm(each) * half + own for each, own in zip(projected, of_tokens, strict=True)]


class NoLayerInputs(Module):
    """Of models that have none."""

    options: PerLayerOptions

    def forward(self, tokens: Array, embedded: Array) -> list[None]:
        return [None] * self.options.block_count


class LayerInput(Module):
    """How a layer takes in what a token gives it."""

    gate: Linear = weight("inp_gate", "layer_input_size", "hidden_size")
    output: Linear = weight("proj", "hidden_size", "layer_input_size")
    norm: RMSNorm = weight("post_norm", "hidden_size")

    def forward(self, hidden: Array, given: Array) -> Array:
        """What is to be added to `hidden` [rows, hidden], of `given` [rows, layer_input_size]."""
        return self.norm(self.output(self.ops.geglu(self.gate(hidden), given)))

"""Per-layer embeddings (Gemma 3n): a separate vector per token for every layer, besides the usual embedding.

The tables are large but only one row per token is read, so these parameters cost memory and hardly any time.
"""

from __future__ import annotations

import math
from typing import Any, Protocol, Self

from puna.nn.layers import Embedding, Linear, RMSNorm, StackedLinear
from puna.nn.module import Module, WeightSource, weight
from puna.ops import Array


class PerLayerOptions(Protocol):
    """Model options that per-layer embeddings read."""

    @property
    def hidden_size(self) -> int: ...
    @property
    def block_count(self) -> int: ...
    @property
    def layer_input_size(self) -> int: ...


class _EqualParts(StackedLinear):
    """Stacked linears of equal size; the shape is the number of linears, rows of each, columns."""

    @classmethod
    def from_source(
        cls, source: WeightSource, name: str, shape: tuple[int, ...], options: Any
    ) -> Self | None:
        count, rows, columns = shape
        return super().from_source(source, name, (rows,) * count + (columns,), options)


class LayerInputs(Module):
    """Per-layer inputs of tokens: half from a table, half projected from the token's embedding."""

    options: PerLayerOptions
    table: Embedding = weight("per_layer_token_embd", "vocab_size", "layer_inputs_size")
    projection: _EqualParts = weight("per_layer_model_proj", "block_count", "layer_input_size", "hidden_size")
    norm: RMSNorm = weight("per_layer_proj_norm", "layer_input_size")

    def forward(self, tokens: Array, embedded: Array) -> list[Array]:
        """Return one [rows, layer_input_size] per layer for `tokens` [rows], `embedded` [rows, hidden]."""
        o, half = self.options, math.sqrt(0.5)
        of_tokens = self.ops.split(self.table(tokens) * (math.sqrt(o.layer_input_size) * half), o.block_count)
        # Undo the embedding's scale: training did, and the norm's epsilon makes it matter.
        projected = self.projection(embedded * (1 / math.sqrt(o.hidden_size)))
        return [self.norm(each) * half + own for each, own in zip(projected, of_tokens, strict=True)]


class NoLayerInputs(Module):
    """Stand-in for models without per-layer inputs."""

    options: PerLayerOptions

    def forward(self, tokens: Array, embedded: Array) -> list[Array]:
        return []


class LayerInput(Module):
    """Gate through which a layer takes in its per-layer input."""

    gate: Linear = weight("inp_gate", "layer_input_size", "hidden_size")
    output: Linear = weight("proj", "hidden_size", "layer_input_size")
    norm: RMSNorm = weight("post_norm", "hidden_size")

    def forward(self, hidden: Array, given: Array) -> Array:
        """Return the update to add to `hidden` [rows, hidden] from `given` [rows, layer_input_size]."""
        return self.norm(self.output(self.ops.geglu(self.gate(hidden), given)))

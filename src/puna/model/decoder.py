"""Base of decoders: an embedding, layers, a norm, and logits.

Architectures differ in their options, layer by layer, and in the layers they declare. Llama adds nothing to
it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from puna.batch import BatchArrays
from puna.errors import ModelError
from puna.kvcache.cache import Cache, Shift
from puna.model.base import TextModel
from puna.model.options import LayerOptions
from puna.nn.heads import PredictionHead
from puna.nn.layers import Embedding, Linear, RMSNorm
from puna.nn.module import blocks, weight
from puna.nn.transformer_layer import TransformerLayer
from puna.ops import Array, Rope

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: A rotation up to the context of the training, which comes first, and beyond it; None: there is none.
LayerRope = tuple[int, Rope, Rope] | None

#: Lower bound of divisors of frequencies, so that none becomes infinite.
_MIN_FACTOR = 1e-6


class Decoder(TextModel):
    """Decoder; an architecture declares its `layers` as `blocks("blk")`."""

    undivided: ClassVar[str] = ""

    #: Whether prediction heads read hidden states after the norm before their logits.
    heads_read_normed: ClassVar[bool] = True

    token_embedding: Embedding = weight("token_embd", "vocab_size", "hidden_size")
    layers: Sequence[TransformerLayer]
    prediction_heads: Sequence[PredictionHead] = blocks("blk", options="heads", begin="block_count")
    output_norm: RMSNorm = weight("output_norm", "hidden_size")
    output: Linear = weight("output", "output_rows", "hidden_size", tied_to="token_embd")
    rope_factors: Array | None = weight("rope_freqs", "rope_pairs", optional=True)
    short_rope_factors: Array | None = weight("rope_factors_short", "rope_pairs", optional=True)
    long_rope_factors: Array | None = weight("rope_factors_long", "rope_pairs", optional=True)

    def loaded(self) -> None:
        short = self.rope_factors if self.short_rope_factors is None else self.short_rope_factors
        long = short if self.long_rope_factors is None else self.long_rope_factors
        short_factors, long_factors = (
            None if each is None else self.ops.numpy(each) for each in (short, long)
        )
        self.exact_context = self.long_rope_factors is not None
        used = {layer.rope for layer in self.options.layers if layer.rope}
        if any(rope.factored for rope in used):
            _check_factors(short_factors, long_factors)
        built = {
            rope: (
                rope.original_context,
                rope.build(short_factors if rope.factored else None),
                rope.build(long_factors if rope.factored else None),
            )
            for rope in used
        }
        self._ropes: list[LayerRope] = [
            None if layer.rope is None else built[layer.rope] for layer in self.options.layers
        ]
        count = self.options.block_count
        ahead = [layer for layer in self.layers if layer.index >= count]
        self.layers = [layer for layer in self.layers if layer.index < count]
        for head, layer in zip(self.prediction_heads, ahead, strict=True):
            head.share(layer, self.token_embedding, self.output_norm, self.output)

    @classmethod
    def gives_inputs(cls) -> bool:
        """Whether its passes put the inputs of layers into `BatchArrays.kept`."""
        return cls.run is Decoder.run

    def host(self, layer: LayerOptions, rope: LayerRope) -> int:
        """Give caches made from now on one more layer, for a head in another file, and return its number.

        It takes the place of the one before. The model must have no heads of its own.
        """
        count = self.options.block_count
        layers = *self.options.layers[:count], layer
        self.options = replace(self.options, layers=layers, prediction_heads=1)
        self._ropes = [*self._ropes[:count], rope]
        return count

    def layer_ropes(self, context: int) -> list[Rope | None]:
        """Return the rotation of each layer here for sequences of at most `context` positions."""
        return [self._rope(layer.index, context) for layer in self.layers]

    def _rope(self, layer: int, context: int) -> Rope | None:
        if (ropes := self._ropes[layer]) is None:
            return None
        original, short, long = ropes
        return long if context > original else short

    def shift_within(self, context: int) -> Shift | None:
        # Positions after an image do not advance one by one, so such keys cannot be moved.
        if any(layer.rope is not None and layer.rope.sections for layer in self.options.layers):
            return None

        def shift(layer: int, keys: Array, offset: int) -> None:
            rope = self._rope(layer, context)
            if rope is not None:
                positions = self.ops.array(np.full(len(keys), offset, np.int32))
                self.ops.rope_(keys, positions, rope.without_magnitude())

        return shift

    def hidden(self, batch: BatchArrays, cache: Cache) -> Array:
        return self.finish(self.run(self.embed(batch), batch, cache), batch)

    def embed(self, batch: BatchArrays) -> list[Array]:
        """Return the first layer's inputs, float32 [rows, width] each; see `run`."""
        hidden, scale = self.token_embedding(batch.tokens), self.options.embedding_scale
        if scale != 1:
            hidden = hidden * scale
        return [self.with_images(hidden, batch) if batch.payloads else hidden]

    def run(self, carried: list[Array], batch: BatchArrays, cache: Cache) -> list[Array]:
        """Run the layers that are here on `carried`, all that one layer takes from those before it.

        Each array is float32 [rows, width]; hidden states come first. The model's last layer returns only the
        rows `batch.outputs` unless all are kept.
        """
        [hidden], last = carried, self.options.block_count - 1
        for layer, rope in zip(self.layers, self.layer_ropes(cache.context), strict=True):
            if batch.kept is not None:
                batch.kept.put_input(layer.index, hidden)
            # Only sampled rows leave the last layer, unless a head reads others.
            rows = batch.outputs if layer.index == last and not batch.keeps_all else None
            hidden = layer.forward(hidden, batch, cache, rope, rows)
            if batch.payloads:
                hidden = self.after_layer(layer.index, hidden, batch)
        return [hidden]

    def finish(self, carried: list[Array], batch: BatchArrays) -> Array:
        """Return the result of `hidden` from that of the last layer."""
        hidden, normed = carried[0], self.output_norm(carried[0])
        if batch.kept is not None:
            batch.kept.put_input(self.options.block_count, hidden)
            batch.kept.put(normed if self.heads_read_normed else hidden)
        return normed[batch.outputs] if batch.keeps_all and batch.outputs is not None else normed

    def with_images(self, hidden: Array, batch: BatchArrays) -> Array:
        """Replace the rows of `hidden` [rows, hidden] where images stand."""
        parts, end, size = [], 0, self.options.hidden_size
        for row, payload in batch.payloads:
            if row > end:
                parts.append(hidden[end:row])
            parts.append(payload.states[:, :size])
            end = row + len(payload)
        if end < len(hidden):
            parts.append(hidden[end:])
        return self.ops.concatenate(parts)

    def after_layer(self, index: int, hidden: Array, batch: BatchArrays) -> Array:
        """Return `hidden` [rows, hidden] after layer `index`; overridden where images feed several layers."""
        return hidden

    def reads_images(self, begin: int) -> bool:
        """Whether layers from number `begin` on read the states of images."""
        return False

    def logits(self, hidden: Array) -> Array:
        return self._logits(self.output, hidden)

    def look_ahead(self, head: int, hidden: Array, batch: BatchArrays, cache: Cache) -> Array:
        """Return the state for the next prediction head: float32 [outputs, hidden] of rows `batch.outputs`.

        Row t of `hidden` [rows, hidden] is the state from the layers (`BatchArrays.kept`) or the previous
        head for the position before row t of the batch.
        """
        module, index = self.prediction_heads[head], self.options.block_count + head
        found = module.forward(hidden, batch, cache, self._rope(index, cache.context))
        return module.norm(found) if self.heads_read_normed else found

    def head_logits(self, head: int, hidden: Array) -> Array:
        """Return logits float32 [rows, vocab] of states from `look_ahead`."""
        module = self.prediction_heads[head]
        return self._logits(module.output, hidden if self.heads_read_normed else module.norm(hidden))

    def _logits(self, output: Linear, normed: Array) -> Array:
        scale, cap = self.options.logit_scale, self.options.logit_softcap
        logits = output(normed if scale == 1 else normed * scale)
        return self.ops.softcap(logits, cap) if cap else logits


def _check_factors(*tables: NDArray[Any] | None) -> None:
    """Raise `ModelError` if factors, which frequencies are divided by, are too small or NaN."""
    for factors in tables:
        if factors is not None and not (np.abs(factors) >= _MIN_FACTOR).all():
            raise ModelError("the factors in tensor 'rope_freqs' or 'rope_factors' must not be 0 or NaN")

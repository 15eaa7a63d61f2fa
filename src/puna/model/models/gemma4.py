"""Gemma 4: sliding windows and smaller heads in five of six layers, full attention in the sixth.

Reference: `Gemma4ForCausalLM` in Hugging Face transformers. Large models are dense, or have experts beside a
dense network in each layer, and use keys as values in layers with full attention. Small ones have per-layer
embeddings, and their last layers use the keys and values of earlier ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from puna.batch import BatchArrays
from puna.gguf.metadata import block_count, first_of, invalid, positive, required, scalar
from puna.kvcache.cache import Cache
from puna.model.decoder import Decoder
from puna.model.layer_cache import Everything, KeysOf, Window
from puna.model.options import LayerOptions, TextDefaults, TextOptions, read_windows, share_keys
from puna.model.rope import RopeOptions
from puna.nn.attention import AllNormedSelfAttention, BorrowingAttention, KeysAsValues
from puna.nn.experts import MixtureOfExperts
from puna.nn.feed_forward import GeluFeedForward
from puna.nn.layers import Embedding, RMSNorm
from puna.nn.module import Module, WeightSource, blocks, part, weight
from puna.nn.per_layer import LayerInput, LayerInputs, NoLayerInputs
from puna.nn.transformer_layer import SandwichNormLayer
from puna.ops import Array, Weight

if TYPE_CHECKING:
    from puna.gguf import GGUFFile


@dataclass(frozen=True, kw_only=True)
class Gemma4LayerOptions(LayerOptions):
    layer_input_size: int  # size of the per-layer embedding; 0 if there is none
    keys_as_values: bool


@dataclass(frozen=True, kw_only=True)
class Gemma4Options(TextOptions):
    layer_input_size: int  # 0: no per-layer embeddings

    @property
    def layer_inputs_size(self) -> int:
        return self.layer_input_size * self.block_count


class ExpertScales(Embedding):
    """Factor of each expert's share, as a table with one column."""

    @classmethod
    def from_source(
        cls, source: WeightSource, name: str, shape: tuple[int, ...], options: Any
    ) -> Self | None:
        values = source.values(name, shape)
        return None if values is None else cls(source.ops, Weight.from_values(name, values.reshape(-1, 1)))


class RoutedExperts(MixtureOfExperts):
    """Experts with their own norms before and after, and a norm before their router."""

    options: LayerOptions
    activation = "geglu"
    norm: RMSNorm = weight("pre_ffw_norm_2", "hidden_size")
    router_scale: Array = weight("ffn_gate_inp.scale", "hidden_size")
    scales: ExpertScales | None = weight("ffn_down_exps.scale", "expert_count", optional=True)
    post_norm: RMSNorm = weight("post_ffw_norm_2", "hidden_size")

    def loaded(self) -> None:
        super().loaded()
        scale = self.ops.numpy(self.router_scale) / math.sqrt(self.options.hidden_size)
        self.router_norm = RMSNorm(self.ops, self.ops.array(scale), self.options.norm_eps)

    def forward(self, hidden: Array) -> Array:
        chosen, shares = self.ops.route(self.router(self.router_norm(hidden)), self.options.routing)
        if self.scales is not None:
            shares = shares * self.scales(chosen.reshape(-1)).reshape(shares.shape)
        return self.post_norm(self.through(self.norm(hidden), chosen, shares))


class DenseBesideExperts(Module):
    """Dense network and routed experts with a norm after each; `ExpertLayer` adds their outputs."""

    dense: GeluFeedForward = part()
    post_norm: RMSNorm = weight("post_ffw_norm_1", "hidden_size")
    routed: RoutedExperts = part()


def mixer_kind(options: Gemma4LayerOptions) -> type[AllNormedSelfAttention | BorrowingAttention]:
    if isinstance(options.remembers, KeysOf):
        return BorrowingAttention
    return KeysAsValues if options.keys_as_values else AllNormedSelfAttention


class Layer(SandwichNormLayer):
    mixer: AllNormedSelfAttention | BorrowingAttention = part(choose=mixer_kind)  # type: ignore[assignment]
    feed_forward: GeluFeedForward = part()
    scale: Array | None = weight("layer_output_scale", 1, optional=True)

    def loaded(self) -> None:
        self.factor = 1.0 if self.scale is None else float(self.ops.numpy(self.scale)[0])

    def finish(self, hidden: Array, given: Array | None) -> Array:
        """Return the layer's output from the output of its halves and the per-layer input."""
        scaled: Array = hidden * self.factor
        return scaled


class GivenLayer(Layer):
    layer_input: LayerInput = part()

    def finish(self, hidden: Array, given: Array | None) -> Array:
        assert given is not None
        return super().finish(hidden + self.layer_input.forward(hidden, given), given)


class ExpertLayer(Layer):
    feed_forward: DenseBesideExperts = part()  # type: ignore[assignment]

    def token_wise(self, hidden: Array, normed: Array) -> Array:
        both = self.feed_forward
        total: Array = both.post_norm(both.dense.forward(normed)) + both.routed.forward(hidden)
        return total


def layer_kind(options: Gemma4LayerOptions) -> type[Layer]:
    if options.experts:
        return ExpertLayer
    return GivenLayer if options.layer_input_size else Layer


def inputs_kind(options: Gemma4Options) -> type[LayerInputs | NoLayerInputs]:
    return LayerInputs if options.layer_input_size else NoLayerInputs


class Gemma4(Decoder):
    options: Gemma4Options
    layer_inputs: LayerInputs | NoLayerInputs = part(choose=inputs_kind)
    layers: Sequence[Layer] = blocks("blk", choose=layer_kind)

    def embed(self, batch: BatchArrays) -> list[Array]:
        hidden = self.token_embedding(batch.tokens) * self.options.embedding_scale
        if batch.payloads:
            hidden = self.with_images(hidden, batch)
        return [hidden, *self.layer_inputs.forward(batch.tokens, hidden)]

    @classmethod
    def gives_inputs(cls) -> bool:
        return True

    def run(self, carried: list[Array], batch: BatchArrays, cache: Cache) -> list[Array]:
        hidden, *given = carried  # with an input for each layer from here on, or none
        wanted = None if batch.keeps_all else batch.outputs
        for layer, rope in zip(self.layers, self.layer_ropes(cache.context), strict=True):
            if batch.kept is not None:
                batch.kept.put_input(layer.index, hidden)
            rows = wanted if layer.index == self.options.last_to_remember else None
            hidden = layer.forward(hidden, batch, cache, rope, rows)
            if rows is not None:  # later layers need only these rows
                batch, given = batch.wanted(), [each[rows] for each in given]
            hidden = layer.finish(hidden, given.pop(0) if given else None)
        return [hidden, *given]

    @classmethod
    def read_options(cls, file: GGUFFile) -> Gemma4Options:
        size = scalar(file, "embedding_length_per_layer_input", 0)
        if size < 0:
            raise invalid(file, "embedding_length_per_layer_input", f"should be a size, but is {size}")
        options = read_windowed(file)
        # Parts of an image attend to each other only in windows, and in small models not even there.
        remembers = tuple(
            replace(each, spans=isinstance(each, Window) and not size) for each in _read_windows(file)
        )
        shared = share_keys(file, remembers)

        def own(index: int, layer: LayerOptions) -> LayerOptions:
            return Gemma4LayerOptions(
                **vars(layer) | {"remembers": shared[index]},
                layer_input_size=size,
                keys_as_values=f"blk.{index}.attn_v.weight" not in file.tensors,
            )

        return Gemma4Options(**vars(options.each(own)), layer_input_size=size)


def _read_windows(file: GGUFFile) -> tuple[Window | Everything, ...]:
    return read_windows(file, block_count(file), period=6)


def read_windowed(file: GGUFFile, *, only_heads: bool = False) -> TextOptions:
    """Return options whose layers with windows have their own rotation and size of heads.

    For `only_heads` see `TextDefaults`.
    """
    remembers = _read_windows(file)
    windowed = [isinstance(each, Window) for each in remembers]
    options = TextOptions.read(
        file,
        TextDefaults(
            neox=True,
            norm_eps=1e-6,
            rope_base=1e6,
            head_dim=512,
            embedding_scale=math.sqrt(required(file, "embedding_length")),
            windowed=windowed,
            only_heads=only_heads,
        ),
    )
    local_base = positive(file, first_of(file, "rope.freq_base_swa", "rope.local.freq_base"), 10000.0)

    def own(index: int, layer: LayerOptions) -> LayerOptions:
        rope = layer.rope
        if windowed[index]:
            dims = required(file, "rope.dimension_count_swa", layer.head_dim)
            if dims % 2 or dims > layer.head_dim:
                complaint = f"is {dims}, but should be even and at most the {layer.head_dim} of a head"
                raise invalid(file, "rope.dimension_count_swa", complaint)
            rope = RopeOptions(dims, local_base, neox=True, factored=False)
        return replace(layer, attention_scale=1.0, remembers=remembers[index], rope=rope)

    return options.each(own)

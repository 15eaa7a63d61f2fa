"""Layers of vision transformers (Dosovitskiy et al., arXiv:2010.11929), embeddings and projectors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np

from puna.gguf import GGMLType
from puna.nn.feed_forward import feed_forward, gelu_tanh
from puna.nn.layers import LayerNorm, Linear, RMSNorm, StackedLinear, Values, linear_many
from puna.nn.module import Module, WeightSource, part, weight
from puna.ops import Array, Backend, Rope
from puna.vision.layers.attention import Groups, PatchKeys, Slices, pieces


class PatchEmbedding:
    """Convolution whose stride equals its kernel: a product with each patch.

    Patches are flattened channel by channel, like the weights [out, channels, size, size].
    """

    def __init__(self, linear: Linear) -> None:
        self.linear = linear

    @classmethod
    def from_source(
        cls, source: WeightSource, name: str, shape: tuple[int, ...], options: Any
    ) -> Self | None:
        values = source.values(f"{name}.weight", shape)
        if values is None:
            return None
        bias = source.vector(f"{name}.bias", shape[0])
        return cls(Linear.of_values(source, name, values.reshape(shape[0], -1), bias))

    def __call__(self, patches: Array) -> Array:
        """Map [patches, channels * size * size] to [patches, out]."""
        return self.linear(patches)


class FlatPatchEmbedding(PatchEmbedding):
    """Patch embedding with weights stored as a matrix [out, channels * size * size]."""

    @classmethod
    def from_source(
        cls, source: WeightSource, name: str, shape: tuple[int, ...], options: Any
    ) -> Self | None:
        linear = Linear.from_source(source, name, (shape[0], int(np.prod(shape[1:]))), options)
        return None if linear is None else cls(linear)


class Table(Values):
    """Table of values [rows, columns]; its name may lack `.weight`."""

    suffixes = (".weight", "")


class TransposedLinear(Linear):
    """y = x W with W [in, out] as stored."""

    @classmethod
    def from_source(
        cls, source: WeightSource, name: str, shape: tuple[int, ...], options: Any
    ) -> Self | None:
        values = source.values(f"{name}.weight", shape)
        return None if values is None else cls.of_values(source, name, np.ascontiguousarray(values.T))


class ProjectorNorm(LayerNorm):
    """First norm of projectors, with PyTorch's default epsilon instead of the tower's."""

    def __init__(self, ops: Backend, weight: Array, bias: Array | None, eps: float) -> None:
        super().__init__(ops, weight, bias, 1e-5)


@dataclass(frozen=True, kw_only=True)
class VisionLayerOptions:
    """Options of a layer."""

    hidden_size: int
    feed_forward_size: int
    heads: int
    norm_eps: float
    joined: bool = False  # whether queries, keys and values are one tensor
    swapped: bool = False  # whether up is named down and down up, as by the first converters

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.heads


@dataclass(frozen=True)
class Patches:
    """The patches of an image as their layers read them."""

    keys: PatchKeys
    groups: Sequence[Groups]  # one per layer
    slice_rows: int
    rope: Rope | None = None
    places: Array | None = None  # int32 [patches, axes], rotated by `rope`


Activation = Callable[[Backend, Array], Array]


def quick_gelu(ops: Backend, x: Array) -> Array:
    """Return `x * sigmoid(1.702 x)`, [rows, n]."""
    return ops.sigmoid_gate(x, x * 1.702)


class VisionFeedForward(Protocol):
    """Feed-forward half of a layer."""

    def forward(self, x: Array) -> Array:
        """Map [rows, hidden] to the same shape."""


class VisionGeluFeedForward(Module):
    """Feed-forward network with GELU in its tanh approximation."""

    options: VisionLayerOptions
    activation: Activation = staticmethod(gelu_tanh)
    up: Linear = weight("mlp.fc1|ffn_up|mlp.linear_fc1", "feed_forward_size", "hidden_size")
    down: Linear = weight("mlp.fc2|ffn_down|mlp.linear_fc2", "hidden_size", "feed_forward_size")

    def forward(self, x: Array) -> Array:
        return self.down(self.activation(self.ops, self.up(x)))


class SwappedFeedForward(VisionGeluFeedForward):
    """GELU network whose tensors for up and down are named the wrong way round."""

    up: Linear = weight("ffn_down", "feed_forward_size", "hidden_size")
    down: Linear = weight("ffn_up", "hidden_size", "feed_forward_size")


def gelu_feed_forward(options: VisionLayerOptions) -> type[VisionGeluFeedForward]:
    return SwappedFeedForward if options.swapped else VisionGeluFeedForward


class QuickGeluFeedForward(VisionGeluFeedForward):
    """Feed-forward network with quick GELU."""

    activation: Activation = staticmethod(quick_gelu)


class SwappedQuickFeedForward(SwappedFeedForward):
    """Quick GELU network whose tensors for up and down are named the wrong way round."""

    activation: Activation = staticmethod(quick_gelu)


def quick_feed_forward(options: VisionLayerOptions) -> type[VisionGeluFeedForward]:
    return SwappedQuickFeedForward if options.swapped else QuickGeluFeedForward


class VisionExactGeluFeedForward(VisionGeluFeedForward):
    """Feed-forward network with exact GELU."""

    def forward(self, x: Array) -> Array:
        return feed_forward(x, "gelu", self.up, self.down)


class SwiGluFeedForward(Module):
    """Gated feed-forward network with SiLU, as in Llama."""

    options: VisionLayerOptions
    gate: Linear = weight("ffn_gate", "feed_forward_size", "hidden_size")
    up: Linear = weight("ffn_up", "feed_forward_size", "hidden_size")
    down: Linear = weight("ffn_down", "hidden_size", "feed_forward_size")

    def forward(self, x: Array) -> Array:
        return feed_forward(x, "swiglu", self.up, self.down, self.gate)


class PatchAttention(Module):
    """Self-attention among patches."""

    options: VisionLayerOptions
    query: Linear = weight("attn_q", "hidden_size", "hidden_size")
    key: Linear = weight("attn_k", "hidden_size", "hidden_size")
    value: Linear = weight("attn_v", "hidden_size", "hidden_size")
    output: Linear = weight("attn_output|attn_out", "hidden_size", "hidden_size")

    def project(self, x: Array) -> list[Array]:
        """Return queries, keys and values [rows, heads, head_dim] of patches."""
        shape = len(x), self.options.heads, self.options.head_dim
        return [each.reshape(shape) for each in self.linears(x)]

    def linears(self, x: Array) -> list[Array]:
        """Return queries, keys and values [rows, hidden]."""
        return linear_many(x, self.query, self.key, self.value)


class JoinedPatchAttention(PatchAttention):
    """Attention with the query, key and value weights in one tensor."""

    query = key = value = None  # type: ignore[assignment]
    inputs: StackedLinear = weight("attn_qkv", "hidden_size", "hidden_size", "hidden_size", "hidden_size")

    def linears(self, x: Array) -> list[Array]:
        return self.inputs(x)


def attention_kind(options: VisionLayerOptions) -> type[PatchAttention]:
    return JoinedPatchAttention if options.joined else PatchAttention


class VisionLayer(Module):
    """Layer with a norm before attention and one before the feed-forward network; subclasses choose them."""

    options: VisionLayerOptions
    attention_norm: LayerNorm | RMSNorm
    attention: PatchAttention = part(choose=attention_kind)
    feed_forward_norm: LayerNorm | RMSNorm
    feed_forward: VisionFeedForward

    @property
    def score_scale(self) -> float:
        """Factor for products of queries and keys."""
        return float(self.options.head_dim**-0.5)

    def forward(self, hidden: Array, patches: Patches) -> Slices[Array]:
        """Map [patches, hidden] to the same shape."""
        queries, groups = [], patches.groups[self.index]
        for begin, end in pieces(len(hidden), patches.slice_rows):
            query, key, value = self.attention.project(self.attention_norm(hidden[begin:end]))
            if patches.rope is not None:
                assert patches.places is not None
                places = patches.places[begin:end]
                self.ops.rope_(query, places, patches.rope)
                self.ops.rope_(key, places, patches.rope)
            patches.keys.put(begin, key, value)
            queries.append(query)
            yield
        results, scale = [], self.score_scale
        for (begin, end), query in zip(pieces(len(hidden), patches.slice_rows), queries, strict=True):
            found = patches.keys.attend(query, begin, groups, scale)
            results.append(self._rest(hidden[begin:end], self.attention.output(found)))
            yield
        return self.ops.concatenate(results)

    def _rest(self, hidden: Array, attended: Array) -> Array:
        hidden, normed = self.feed_forward_norm.after_adding(attended, hidden)
        total: Array = hidden + self.feed_forward.forward(normed)
        return total


class ScaledLayer(VisionLayer):
    """Layer that scales the output of each half by a learned vector."""

    attention_scale: Array = weight("ls1", "hidden_size")
    feed_forward_scale: Array = weight("ls2", "hidden_size")

    def _rest(self, hidden: Array, attended: Array) -> Array:
        hidden, normed = self.feed_forward_norm.after_adding(attended * self.attention_scale, hidden)
        total: Array = hidden + self.feed_forward.forward(normed) * self.feed_forward_scale
        return total


class LayerNormLayer(VisionLayer):
    """Layer with layer norms, as in CLIP and SigLIP."""

    attention_norm: LayerNorm = weight("layer_norm1|ln1|attn_norm|norm1", "hidden_size")
    feed_forward_norm: LayerNorm = weight("layer_norm2|ln2|ffn_norm|norm2", "hidden_size")
    feed_forward: VisionGeluFeedForward = part(choose=gelu_feed_forward)


class QuickLayer(LayerNormLayer):
    """Layer of CLIP with quick GELU."""

    feed_forward: VisionGeluFeedForward = part(choose=quick_feed_forward)


class ExactLayer(LayerNormLayer):
    """Layer of CLIP with exact GELU."""

    feed_forward: VisionExactGeluFeedForward = part()


class RMSNormLayer(VisionLayer):
    """Layer with Llama's norms and feed-forward network."""

    attention_norm: RMSNorm = weight("attn_norm|ln1", "hidden_size")
    feed_forward_norm: RMSNorm = weight("ffn_norm|ln2", "hidden_size")
    feed_forward: SwiGluFeedForward = part()


@dataclass(frozen=True, kw_only=True)
class ClipLayerOptions(VisionLayerOptions):
    """Options of a layer of CLIP."""

    kind: type[LayerNormLayer]


def clip_layer_kind(options: ClipLayerOptions) -> type[LayerNormLayer]:
    return options.kind


def kept_as(layers: Iterable[VisionLayer]) -> GGMLType:
    """Return the type in which layers keep keys and values: 16 bits, which kernels multiply faster, unless
    the weights of their attention are float32.
    """
    exact = all(layer.attention.output.weight.type == GGMLType.F32 for layer in layers)
    return GGMLType.F32 if exact else GGMLType.F16


def through(layers: Sequence[VisionLayer], hidden: Array, patches: Patches) -> Slices[Array]:
    """Return [patches, hidden] after all `layers`."""
    for layer in layers:
        hidden = yield from layer.forward(hidden, patches)
    return hidden


def pooled(grid: Array, size: int) -> Array:
    """Average squares of `size`: [height, width, n] to [height / size * width / size, n]."""
    height, width, n = grid.shape
    cut = grid.reshape(height // size, size, width // size, size, n)
    total = cut[:, 0, :, 0]
    for row in range(size):
        for column in range(size):
            if row or column:
                total = total + cut[:, row, :, column]
    mean: Array = (total * (1 / size**2)).reshape(-1, n)
    return mean

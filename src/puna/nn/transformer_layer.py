"""Transformer layers: the arrangement of norms, the mixer and the feed-forward network."""

from __future__ import annotations

from typing import Protocol

from puna.batch import BatchArrays
from puna.kvcache.cache import Cache
from puna.nn.attention import SelfAttention
from puna.nn.experts import MixtureOfExperts, dense_or_experts
from puna.nn.feed_forward import FeedForward
from puna.nn.hyper_connections import HyperConnection
from puna.nn.layers import LayerNorm, RMSNorm
from puna.nn.module import Module, part, weight
from puna.ops import Array, Rope


class Mixer(Protocol):
    """Half of a layer that mixes information between tokens."""

    def forward(
        self, hidden: Array, batch: BatchArrays, cache: Cache, rope: Rope | None, rows: Array | None
    ) -> Array:
        """Map [rows, hidden] to the same shape, or only to its rows `rows` (int64)."""


class TokenWise(Protocol):
    """Half of a layer that treats each token on its own."""

    def forward(self, hidden: Array) -> Array:
        """Map [rows, hidden] to the same shape."""


class ResidualOptions(Protocol):
    """Layer options for the residual connections."""

    @property
    def residual_scale(self) -> float: ...


class TransformerLayer(Module):
    """Layer with a mixer and a feed-forward network, which subclasses name."""

    options: ResidualOptions
    mixer: Mixer
    feed_forward: TokenWise

    def forward(
        self, hidden: Array, batch: BatchArrays, cache: Cache, rope: Rope | None, rows: Array | None
    ) -> Array:
        """Map [rows, hidden] to the same shape, or only to its rows `rows` (int64)."""
        raise NotImplementedError

    def scaled(self, x: Array) -> Array:
        """Scale a half's output by `residual_scale` before it is added to the residual."""
        scale = self.options.residual_scale
        scaled: Array = x if scale == 1 else x * scale
        return scaled


class PreNormLayer(TransformerLayer):
    """Layer with a norm before each half, as in nearly all current decoders."""

    mixer_norm: RMSNorm = weight("attn_norm", "hidden_size")
    mixer: SelfAttention = part()
    feed_forward_norm: RMSNorm = weight("ffn_norm", "hidden_size")
    feed_forward: FeedForward | MixtureOfExperts = part(choose=dense_or_experts)

    def forward(
        self, hidden: Array, batch: BatchArrays, cache: Cache, rope: Rope | None, rows: Array | None
    ) -> Array:
        mixed = self.mixer.forward(self.mixer_norm(hidden), batch, cache, rope, rows)
        residual = hidden if rows is None else hidden[rows]
        hidden, normed = self.feed_forward_norm.after_adding(self.scaled(mixed), residual)
        total: Array = hidden + self.scaled(self.feed_forward.forward(normed))
        return total


class PreLayerNormLayer(PreNormLayer):
    """Layer with a LayerNorm before each half, as in GPT-2."""

    mixer_norm: LayerNorm = weight("attn_norm", "hidden_size")  # type: ignore[assignment]
    feed_forward_norm: LayerNorm = weight("ffn_norm", "hidden_size")  # type: ignore[assignment]


class SandwichNormLayer(PreNormLayer):
    """Layer with norms before and after each half (Gemma 2 and later)."""

    post_mixer_norm: RMSNorm = weight("post_attention_norm", "hidden_size")
    post_feed_forward_norm: RMSNorm = weight("post_ffw_norm", "hidden_size")

    def forward(
        self, hidden: Array, batch: BatchArrays, cache: Cache, rope: Rope | None, rows: Array | None
    ) -> Array:
        mixed = self.mixer.forward(self.mixer_norm(hidden), batch, cache, rope, rows)
        residual = hidden if rows is None else hidden[rows]
        hidden, normed = self.feed_forward_norm.after_adding(self.post_mixer_norm(mixed), residual)
        total: Array = hidden + self.post_feed_forward_norm(self.token_wise(hidden, normed))
        return total

    def token_wise(self, hidden: Array, normed: Array) -> Array:
        """Return the output of the second half; `normed` is the norm of `hidden`."""
        return self.feed_forward.forward(normed)


class PostNormLayer(TransformerLayer):
    """Layer with a norm after each half and none before (OLMo 2 and 3)."""

    mixer: SelfAttention = part()
    post_mixer_norm: RMSNorm = weight("post_attention_norm", "hidden_size")
    feed_forward: FeedForward | MixtureOfExperts = part(choose=dense_or_experts)
    post_feed_forward_norm: RMSNorm = weight("post_ffw_norm", "hidden_size")

    def forward(
        self, hidden: Array, batch: BatchArrays, cache: Cache, rope: Rope | None, rows: Array | None
    ) -> Array:
        mixed = self.post_mixer_norm(self.mixer.forward(hidden, batch, cache, rope, rows))
        hidden = mixed + (hidden if rows is None else hidden[rows])
        total: Array = hidden + self.post_feed_forward_norm(self.feed_forward.forward(hidden))
        return total


class ParallelLayer(TransformerLayer):
    """Layer whose halves both read its input and whose outputs are added together (Command R, Phi-2).

    Both halves share a norm unless the second has its own (GPT-NeoX).
    """

    mixer_norm: LayerNorm = weight("attn_norm", "hidden_size")
    mixer: SelfAttention = part()
    feed_forward_norm: LayerNorm | None = weight("ffn_norm", "hidden_size", optional=True)
    feed_forward: TokenWise

    def forward(
        self, hidden: Array, batch: BatchArrays, cache: Cache, rope: Rope | None, rows: Array | None
    ) -> Array:
        normed = self.mixer_norm(hidden)
        mixed = self.mixer.forward(normed, batch, cache, rope, rows)
        if rows is not None:
            hidden, normed = hidden[rows], normed[rows]
        if self.feed_forward_norm is not None:
            normed = self.feed_forward_norm(hidden)
        total: Array = hidden + self.scaled(mixed) + self.scaled(self.feed_forward.forward(normed))
        return total


class ResidualNormLayer(TransformerLayer):
    """Layer that norms each residual sum, as in the first transformer and encoders (arXiv:1706.03762)."""

    mixer: SelfAttention = part()
    mixer_norm: LayerNorm = weight("attn_output_norm", "hidden_size")
    feed_forward: TokenWise
    feed_forward_norm: LayerNorm = weight("layer_output_norm", "hidden_size")

    def forward(
        self, hidden: Array, batch: BatchArrays, cache: Cache, rope: Rope | None, rows: Array | None
    ) -> Array:
        mixed = self.mixer.forward(hidden, batch, cache, rope, rows)
        hidden = self.mixer_norm(mixed + (hidden if rows is None else hidden[rows]))
        return self.feed_forward_norm(hidden + self.feed_forward.forward(hidden))


class MixerLayer(TransformerLayer):
    """Layer with only a mixer."""

    mixer_norm: RMSNorm = weight("attn_norm", "hidden_size")

    def forward(
        self, hidden: Array, batch: BatchArrays, cache: Cache, rope: Rope | None, rows: Array | None
    ) -> Array:
        mixed = self.mixer.forward(self.mixer_norm(hidden), batch, cache, rope, rows)
        total: Array = self.scaled(mixed) + (hidden if rows is None else hidden[rows])
        return total


class FeedForwardLayer(TransformerLayer):
    """Layer with only a feed-forward network."""

    feed_forward_norm: RMSNorm = weight("attn_norm", "hidden_size")

    def forward(
        self, hidden: Array, batch: BatchArrays, cache: Cache, rope: Rope | None, rows: Array | None
    ) -> Array:
        hidden = hidden if rows is None else hidden[rows]
        total: Array = hidden + self.scaled(self.feed_forward.forward(self.feed_forward_norm(hidden)))
        return total


class StreamLayer(Module):
    """Layer of a residual of several streams, which each half reads as one and adds to."""

    mixer_connection: HyperConnection
    mixer_norm: RMSNorm = weight("attn_norm", "hidden_size")
    mixer: Mixer
    feed_forward_connection: HyperConnection
    feed_forward_norm: RMSNorm = weight("ffn_norm", "hidden_size")
    feed_forward: TokenWise

    def forward(
        self, streams: list[Array], batch: BatchArrays, cache: Cache, rope: Rope | None, rows: Array | None
    ) -> list[Array]:
        """Map streams [rows, hidden] to the same, or to their rows `rows` (int64)."""
        hidden, mixture = self.mixer_connection.read(streams)
        mixed = self.mixer.forward(self.mixer_norm(hidden), batch, cache, rope, rows)
        if rows is not None:
            streams, mixture = [each[rows] for each in streams], mixture[rows]
        streams = self.mixer_connection.add(streams, mixed, mixture)
        hidden, mixture = self.feed_forward_connection.read(streams)
        fed = self.feed_forward.forward(self.feed_forward_norm(hidden))
        return self.feed_forward_connection.add(streams, fed, mixture)

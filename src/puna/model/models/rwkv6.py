"""RWKV 6 and QRWKV 6: only linear attention with decays that the token chooses, so no cache that grows.

Peng et al., "Eagle and Finch", arXiv:2404.05892. QRWKV (Recursal AI, "QRWKV6 32B", 2024) uses it in the
layers of Qwen 2.5: with RMS norms, shared keys and values, and feed-forward networks without token shift.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from puna.batch import BatchArrays
from puna.gguf.metadata import check_extent, invalid, required, scalar
from puna.kvcache.cache import Cache
from puna.model.decoder import Decoder
from puna.model.layer_cache import State
from puna.model.options import LayerOptions, TextDefaults, TextOptions
from puna.nn.feed_forward import FeedForward
from puna.nn.layers import LayerNorm, RMSNorm
from puna.nn.module import Module, blocks, part, weight
from puna.nn.rwkv6 import BonusTimeMix, GatedChannelMix, GroupedTimeMix
from puna.ops import Array, MemoryShape, Rope

if TYPE_CHECKING:
    from puna.gguf import GGUFFile


@dataclass(frozen=True, kw_only=True)
class DecayingLayerOptions(LayerOptions):
    memory_dim: int  # of a head's keys and values
    memory_kv_heads: int  # heads of keys and values
    mix_rank: int  # of each share of the previous token
    decay_rank: int
    halved: bool  # whether the layer's output is halved

    @property
    def time_heads(self) -> int:
        return self.hidden_size // self.memory_dim

    @property
    def memory_kv_size(self) -> int:
        return self.memory_kv_heads * self.memory_dim

    @property
    def mixing_values(self) -> int:
        return 24 * self.hidden_size


class Layer(Module):
    options: DecayingLayerOptions
    mixer_norm: LayerNorm = weight("attn_norm", "hidden_size")
    mixer: BonusTimeMix = part()
    feed_forward_norm: LayerNorm = weight("attn_norm_2", "hidden_size")
    feed_forward: GatedChannelMix = part()

    def forward(
        self, hidden: Array, batch: BatchArrays, cache: Cache, rope: Rope | None, rows: Array | None
    ) -> Array:
        """Map [rows, hidden] to the same shape, or only to its rows `rows` (int64)."""
        state = cache.state(self.index)
        mixed = self.mixer.forward(self.mixer_norm(hidden), state)
        hidden, normed = self.feed_forward_norm.after_adding(mixed, hidden)
        fed = self.feed_forward.forward(normed, state, rows)
        total: Array = fed + (hidden if rows is None else hidden[rows])
        return total * 0.5 if self.options.halved else total


class Rwkv6(Decoder):
    shifts: ClassVar[int] = 2  # halves of a layer with token shift

    embedding_norm: LayerNorm | None = weight("token_embd_norm", "hidden_size")
    layers: Sequence[Layer] = blocks("blk")  # type: ignore[assignment]
    output_norm: LayerNorm = weight("output_norm", "hidden_size")  # type: ignore[assignment]

    def embed(self, batch: BatchArrays) -> list[Array]:
        hidden = self.token_embedding(batch.tokens)
        return [hidden if self.embedding_norm is None else self.embedding_norm(hidden)]

    @classmethod
    def read_options(cls, file: GGUFFile) -> TextOptions:
        options = TextOptions.read(file, TextDefaults(rotates=False, attends=False, halves=True))
        size, dim = options.hidden_size, required(file, "wkv.head_size")
        if size % dim:
            raise invalid(file, "wkv.head_size", f"is {dim}, which does not divide the hidden size {size}")
        if (shifts := scalar(file, "token_shift_count", 2)) != cls.shifts:
            raise invalid(file, "token_shift_count", f"is {shifts}; only {cls.shifts} is supported")
        mix_rank, decay_rank = required(file, "time_mix_extra_dim"), required(file, "time_decay_extra_dim")
        heads = size // dim
        kv_heads, state = cls.memory_of(file, heads, dim)
        every = scalar(file, "rescale_every_n_layers", 0)
        if every < 0:
            raise invalid(file, "rescale_every_n_layers", f"should be a number of layers, but is {every}")

        def own(index: int, layer: LayerOptions) -> LayerOptions:
            check_extent(
                file, f"blk.{index}.time_mix_decay_w1.weight", 0, {"time_decay_extra_dim": decay_rank}
            )
            values = vars(layer) | {"remembers": state}
            return DecayingLayerOptions(
                **values, memory_dim=dim, memory_kv_heads=kv_heads, mix_rank=mix_rank, decay_rank=decay_rank,
                halved=every > 0 and (index + 1) % every == 0,
            )  # fmt: skip

        return options.each(own)

    @classmethod
    def memory_of(cls, file: GGUFFile, heads: int, dim: int) -> tuple[int, State]:
        """Return the heads of keys and values, and what a layer remembers, given all `heads`."""
        rows = ("shift", "channel_shift", "key", "value", "decay")
        of_rows = tuple((name, (1, heads * dim)) for name in rows)
        return heads, State((*of_rows, ("memory", MemoryShape(heads, dim, dim))))


class QwenLayer(Layer):
    mixer_norm: RMSNorm = weight("attn_norm", "hidden_size")  # type: ignore[assignment]
    mixer: GroupedTimeMix = part()  # type: ignore[assignment]
    feed_forward_norm: RMSNorm = weight("ffn_norm", "hidden_size")  # type: ignore[assignment]
    feed_forward: FeedForward = part()  # type: ignore[assignment]

    def forward(
        self, hidden: Array, batch: BatchArrays, cache: Cache, rope: Rope | None, rows: Array | None
    ) -> Array:
        mixed = self.mixer.forward(self.mixer_norm(hidden), cache.state(self.index), rows)
        residual = hidden if rows is None else hidden[rows]
        hidden, normed = self.feed_forward_norm.after_adding(mixed, residual)
        total: Array = hidden + self.feed_forward.forward(normed)
        return total


class QwenRwkv6(Rwkv6):
    shifts = 1
    embedding_norm = None
    layers: Sequence[QwenLayer] = blocks("blk")
    output_norm: RMSNorm = weight("output_norm", "hidden_size")  # type: ignore[assignment]

    @classmethod
    def memory_of(cls, file: GGUFFile, heads: int, dim: int) -> tuple[int, State]:
        kv_heads = scalar(file, "attention.head_count_kv", 0) or heads
        if kv_heads < 1 or heads % kv_heads:
            complaint = f"is {kv_heads}, which {heads} heads cannot share"
            raise invalid(file, "attention.head_count_kv", complaint)
        return kv_heads, State((("shift", (1, heads * dim)), ("memory", MemoryShape(heads, dim, dim))))

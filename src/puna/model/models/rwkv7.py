"""RWKV 7 and ARWKV: only linear attention by the generalised delta rule, so no cache that grows.

Peng et al., "RWKV-7 Goose", arXiv:2503.14456. ARWKV (Yueyu et al., arXiv:2501.15570) uses it in the layers of
a transformer: with RMS norms, and feed-forward networks without token shift.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from puna.batch import BatchArrays
from puna.gguf.metadata import invalid, required, scalar
from puna.kvcache.cache import Cache
from puna.model.decoder import Decoder
from puna.model.layer_cache import State
from puna.model.options import LayerOptions, TextDefaults, TextOptions
from puna.nn.feed_forward import FeedForward
from puna.nn.layers import LayerNorm, RMSNorm
from puna.nn.module import Module, blocks, part, weight
from puna.nn.rwkv import ChannelMix, FirstTimeMix, LaterTimeMix, TimeMix
from puna.ops import Array, RemovingMemoryShape

if TYPE_CHECKING:
    from puna.gguf import GGUFFile


@dataclass(frozen=True, kw_only=True)
class RwkvLayerOptions(LayerOptions):
    first: bool  # whether it is the first layer, whose values the others blend in
    memory_dim: int  # of a head's keys and values
    decay_rank: int
    rate_rank: int  # of in-context learning rates
    share_rank: int  # of shares of the first layer's values
    gate_rank: int  # 0: no gates

    @property
    def time_heads(self) -> int:
        return self.hidden_size // self.memory_dim

    @property
    def shifted_inputs(self) -> int:
        return 6 if self.gate_rank else 5

    @property
    def mixing_values(self) -> int:
        return 16 * self.hidden_size


def time_mix_kind(options: RwkvLayerOptions) -> type[TimeMix]:
    return FirstTimeMix if options.first else LaterTimeMix


class Layer(Module):
    mixer_norm: LayerNorm = weight("attn_norm", "hidden_size")
    mixer: TimeMix = part(choose=time_mix_kind)
    feed_forward_norm: LayerNorm = weight("attn_norm_2", "hidden_size")
    feed_forward: ChannelMix = part()

    def forward(
        self, hidden: Array, first: Array | None, cache: Cache, rows: Array | None
    ) -> tuple[Array, Array]:
        """Map [rows, hidden] to the same shape, or to its rows `rows`; for `first` see `TimeMix.forward`."""
        state = cache.state(self.index)
        mixed, first = self.mixer.forward(self.mixer_norm(hidden), first, state)
        hidden, normed = self.feed_forward_norm.after_adding(mixed, hidden)
        fed = self.feed_forward.forward(normed, state, rows)
        return fed + (hidden if rows is None else hidden[rows]), first


class Rwkv7(Decoder):
    shifts: ClassVar[int] = 2  # halves of a layer with token shift

    embedding_norm: LayerNorm | None = weight("token_embd_norm", "hidden_size")
    layers: Sequence[Layer] = blocks("blk")  # type: ignore[assignment]
    output_norm: LayerNorm = weight("output_norm", "hidden_size")  # type: ignore[assignment]

    def embed(self, batch: BatchArrays) -> list[Array]:
        hidden = self.token_embedding(batch.tokens)
        return [hidden if self.embedding_norm is None else self.embedding_norm(hidden)]

    def run(self, carried: list[Array], batch: BatchArrays, cache: Cache) -> list[Array]:
        hidden, *values = carried
        first = values[0] if values else None  # the first layer's values, which later ones blend in
        for layer in self.layers:
            is_last = layer.index == self.options.block_count - 1
            hidden, first = layer.forward(hidden, first, cache, batch.outputs if is_last else None)
            if is_last:
                return [hidden]
        assert first is not None, "a stage has at least one layer"
        return [hidden, first]

    def finish(self, carried: list[Array], batch: BatchArrays) -> Array:
        return self.output_norm(carried[0])

    @classmethod
    def read_options(cls, file: GGUFFile) -> TextOptions:
        options = TextOptions.read(file, TextDefaults(rotates=False, all_attend=False, halves=True))
        size, dim = options.hidden_size, required(file, "wkv.head_size")
        if size % dim:
            raise invalid(file, "wkv.head_size", f"is {dim}, which does not divide the hidden size {size}")
        if (shifts := scalar(file, "token_shift_count", cls.shifts)) != cls.shifts:
            raise invalid(file, "token_shift_count", f"is {shifts}; only {cls.shifts} is supported")
        decays, rates = (
            required(file, "attention.decay_lora_rank"),
            required(file, "attention.iclr_lora_rank"),
        )
        shares = required(file, "attention.value_residual_mix_lora_rank")
        gates = scalar(file, "attention.gate_lora_rank", 0)
        shifted = (("shift", (1, size)), ("channel_shift", (1, size)))[: cls.shifts]
        state = State((*shifted, ("memory", RemovingMemoryShape(size // dim, dim, dim))))

        def own(index: int, layer: LayerOptions) -> LayerOptions:
            values = vars(layer) | {"remembers": state}
            return RwkvLayerOptions(
                **values, first=index == 0, memory_dim=dim, decay_rank=decays, rate_rank=rates,
                share_rank=shares, gate_rank=gates,
            )  # fmt: skip

        return options.each(own)


class RwkvLayer(Layer):
    mixer_norm: RMSNorm = weight("attn_norm", "hidden_size")  # type: ignore[assignment]
    feed_forward_norm: RMSNorm = weight("ffn_norm", "hidden_size")  # type: ignore[assignment]
    feed_forward: FeedForward = part()  # type: ignore[assignment]

    def forward(
        self, hidden: Array, first: Array | None, cache: Cache, rows: Array | None
    ) -> tuple[Array, Array]:
        mixed, first = self.mixer.forward(self.mixer_norm(hidden), first, cache.state(self.index))
        if rows is not None:
            mixed, hidden = mixed[rows], hidden[rows]
        hidden, normed = self.feed_forward_norm.after_adding(mixed, hidden)
        return hidden + self.feed_forward.forward(normed), first


class Arwkv7(Rwkv7):
    shifts = 1
    embedding_norm = None
    layers: Sequence[RwkvLayer] = blocks("blk")
    output_norm: RMSNorm = weight("output_norm", "hidden_size")  # type: ignore[assignment]

"""Gemma 3n: layers compute one of four streams, predict the others, and take in per-layer embeddings.

Reference: `Gemma3nForCausalLM` in Hugging Face transformers. The streams are alternating updates (AltUp:
Baykal et al., arXiv:2301.13310), a learned augmented residual runs beside attention (LAuReL: Menghani et al.,
arXiv:2411.07501), the first layers keep only the largest activations (Spark: You et al., arXiv:2506.06644),
and the last layers use the keys and values of earlier ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from puna.batch import BatchArrays
from puna.errors import shown
from puna.gguf.metadata import block_count, first_of, flag, invalid, positive, required, scalar
from puna.kvcache.cache import Cache
from puna.model.decoder import Decoder
from puna.model.layer_cache import KeysOf, Window
from puna.model.options import LayerOptions, TextDefaults, TextOptions, read_windows, share_keys
from puna.model.rope import RopeOptions
from puna.nn.attention import AllNormedSelfAttention, BorrowingAttention
from puna.nn.feed_forward import GeluFeedForward
from puna.nn.layers import Linear, RMSNorm, SeparateLinears
from puna.nn.module import Module, WeightSource, blocks, part, weight
from puna.nn.per_layer import LayerInput, LayerInputs
from puna.ops import Array, Rope

if TYPE_CHECKING:
    from puna.gguf import GGUFFile

#: Lower bound of a stream's mean square when its magnitude is matched to another's.
_FLOOR = 1e-5
#: More standard deviations than any sensible threshold.
_MAX_DEVIATIONS = 40


@dataclass(frozen=True, kw_only=True)
class Gemma3nLayerOptions(LayerOptions):
    streams: int
    active: int  # index of the computed stream
    laurel_rank: int
    layer_input_size: int
    scales_corrected: bool  # whether the computed stream is scaled where it meets per-layer embeddings
    deviations: float  # threshold of gates, in standard deviations above the mean; minus infinity keeps all

    @property
    def mixtures(self) -> int:
        return self.streams**2


@dataclass(frozen=True, kw_only=True)
class Gemma3nOptions(TextOptions):
    layer_input_size: int
    streams: int

    @property
    def layer_inputs_size(self) -> int:
        return self.layer_input_size * self.block_count

    @property
    def other_streams(self) -> int:
        return self.streams - 1


class Prediction(Linear):
    """Weights that predict each stream from all: the identity plus the router's mixture [streams²]."""

    @classmethod
    def from_source(
        cls, source: WeightSource, name: str, shape: tuple[int, ...], options: Any
    ) -> Self | None:
        values = source.values(f"{name}.weight", shape)
        if values is None:
            return None
        bias = np.eye(options.streams, dtype=np.float32)
        return cls.of_values(source, name, values, source.ops.array(bias.reshape(-1)))


class Correction(Prediction):
    """Weights that correct each stream by the computed one, as a mixture [streams, streams + 1].

    With p the prediction of the computed stream and z its result, stream m becomes its prediction plus `(1 +
    c[m]) * (z - p)`, where c is the tensor's product with the router's output.
    """

    @classmethod
    def from_source(
        cls, source: WeightSource, name: str, shape: tuple[int, ...], options: Any
    ) -> Self | None:
        values = source.values(f"{name}.weight", shape)
        if values is None:
            return None
        count, active = options.streams, options.active
        changes, bias = (
            np.zeros((count, count + 1, count), np.float32),
            np.eye(count, count + 1, dtype=np.float32),
        )
        changes[:, active], changes[:, count] = -values, values
        bias[:, active] -= 1
        bias[:, count] += 1
        return cls.of_values(source, name, changes.reshape(-1, count), source.ops.array(bias.reshape(-1)))


class SparseFeedForward(GeluFeedForward):
    """Gated network that keeps only gates far above the mean."""

    options: Gemma3nLayerOptions

    def project(self, hidden: Array) -> list[Array]:
        gate, up = super().project(hidden)
        return [self.ops.above(gate, self.options.deviations), up]


class Laurel(Module):
    """Low-rank residual beside attention."""

    left: Linear = weight("laurel_l", "laurel_rank", "hidden_size")
    right: Linear = weight("laurel_r", "hidden_size", "laurel_rank")
    norm: RMSNorm = weight("laurel_post_norm", "hidden_size")

    def forward(self, hidden: Array) -> Array:
        total: Array = hidden + self.norm(self.right(self.left(hidden)))
        return total


def mixer_kind(options: LayerOptions) -> type[AllNormedSelfAttention | BorrowingAttention]:
    return BorrowingAttention if isinstance(options.remembers, KeysOf) else AllNormedSelfAttention


def feed_forward_kind(options: Gemma3nLayerOptions) -> type[GeluFeedForward]:
    return SparseFeedForward if options.deviations > -math.inf else GeluFeedForward


class Layer(Module):
    options: Gemma3nLayerOptions
    router_norm: RMSNorm = weight("altup_router_norm", "hidden_size")
    router: Linear = weight("altup_router", "streams", "hidden_size")
    predict: Prediction = weight("altup_predict_coef", "mixtures", "streams")
    correct: Correction = weight("altup_correct_coef", "streams", "streams")
    correct_scale: Array | None = weight("altup_correct_scale", "hidden_size", optional=True)
    mixer_norm: RMSNorm = weight("attn_norm", "hidden_size")
    mixer: AllNormedSelfAttention | BorrowingAttention = part(choose=mixer_kind)
    post_mixer_norm: RMSNorm = weight("post_attention_norm", "hidden_size")
    laurel: Laurel = part()
    feed_forward_norm: RMSNorm = weight("ffn_norm", "hidden_size")
    feed_forward: GeluFeedForward = part(choose=feed_forward_kind)
    post_feed_forward_norm: RMSNorm = weight("post_ffw_norm", "hidden_size")
    layer_input: LayerInput = part()

    def loaded(self) -> None:
        scaled = self.ops.numpy(self.router_norm.weight) / self.options.hidden_size
        self.router_norm.weight = self.ops.array(scaled)

    def forward(
        self, streams: list[Array], given: Array, batch: BatchArrays, cache: Cache, rope: Rope | None,
        rows: Array | None,
    ) -> list[Array]:  # fmt: skip
        """Map streams [rows, hidden] to the same, or to their rows `rows`; `given` is the per-layer input."""
        active = self.options.active
        predicted = self.ops.mix(streams, self.predict(self.routed(streams[active])))
        normed = self.mixer_norm(predicted[active])
        attended = self.post_mixer_norm(self.mixer.forward(normed, batch, cache, rope, rows))
        if rows is not None:
            predicted, normed = [each[rows] for each in predicted], normed[rows]
        computed = (predicted[active] + attended + self.laurel.forward(normed)) * math.sqrt(0.5)
        fed = self.feed_forward.forward(self.feed_forward_norm(computed))
        computed = computed + self.post_feed_forward_norm(fed)
        corrected = self.ops.mix([*predicted, computed], self.correct(self.routed(computed)))
        first = corrected[active]
        if self.correct_scale is not None and self.options.scales_corrected:
            first = first * self.correct_scale
        added = self.layer_input.forward(first, given)
        return [corrected[0], *(each + added for each in corrected[1:])]

    def routed(self, hidden: Array) -> Array:
        """Return the router's output, which mixtures depend on: [rows, streams], between -1 and 1."""
        return self.ops.softcap(self.router(self.router_norm(hidden)), 1.0)


class Gemma3n(Decoder):
    options: Gemma3nOptions
    layer_inputs: LayerInputs = part()
    #: One matrix for each stream but the first.
    expand: SeparateLinears = weight("altup_proj", "other_streams", "hidden_size", "hidden_size")
    layers: Sequence[Layer] = blocks("blk")  # type: ignore[assignment]
    merge: SeparateLinears = weight("altup_unembd_proj", "other_streams", "hidden_size", "hidden_size")

    def embed(self, batch: BatchArrays) -> list[Array]:
        embedded = self.token_embedding(batch.tokens) * self.options.embedding_scale
        if batch.payloads:
            embedded = self.with_images(embedded, batch)
        others = (self.ops.match_rms(each, embedded, _FLOOR) for each in self.expand(embedded))
        return [embedded, *others, *self.layer_inputs.forward(batch.tokens, embedded)]

    def run(self, carried: list[Array], batch: BatchArrays, cache: Cache) -> list[Array]:
        count = self.options.streams
        streams, given = carried[:count], carried[count:]  # an input for each layer from here on
        for layer, rope in zip(self.layers, self.layer_ropes(cache.context), strict=True):
            rows = batch.outputs if layer.index == self.options.last_to_remember else None
            if rows is not None:
                given = [each[rows] for each in given]
            streams = layer.forward(streams, given.pop(0), batch, cache, rope, rows)
            if rows is not None:  # later layers need only these rows
                batch = batch.wanted()
        return [*streams, *given]

    def finish(self, carried: list[Array], batch: BatchArrays) -> Array:
        total, *others = carried
        for linear, stream in zip(self.merge.linears, others, strict=True):
            total = total + self.ops.match_rms(linear(stream), carried[0], _FLOOR)
        return self.output_norm(total * (1 / self.options.streams))

    @classmethod
    def read_options(cls, file: GGUFFile) -> Gemma3nOptions:
        hidden, count = required(file, "embedding_length"), block_count(file)
        remembers = read_windows(file, count, period=5)
        options = TextOptions.read(
            file,
            TextDefaults(
                neox=True,
                norm_eps=1e-6,
                rope_base=1e6,
                head_dim=scalar(file, "head_dim", 0) or None,
                embedding_scale=math.sqrt(hidden),
                logit_softcap=30.0,
            ),
        )
        size = required(file, "embedding_length_per_layer_input", 256)
        streams, active = required(file, "altup.num_inputs", 4), scalar(file, "altup.active_idx", 0)
        if not 0 <= active < streams:
            raise invalid(file, "altup.active_idx", f"is {active}, of {streams} streams")
        rank = file.tensors.get("blk.0.laurel_l.weight")
        base_key = first_of(file, "rope.freq_base_local", "rope.freq_base_swa", "rope.local.freq_base")
        local_base = positive(file, base_key, 10000.0)
        shared, deviations = share_keys(file, remembers), _read_deviations(file, count)
        scales = flag(file, "altup.correct_scale", True)

        def own(index: int, layer: LayerOptions) -> LayerOptions:
            values = vars(layer) | {"attention_scale": 1.0, "remembers": shared[index]}
            if isinstance(remembers[index], Window):
                values["rope"] = RopeOptions(layer.head_dim, local_base, neox=True)
            return Gemma3nLayerOptions(
                **values, streams=streams, active=active, laurel_rank=rank.shape[0] if rank else 0,
                layer_input_size=size, scales_corrected=scales, deviations=deviations[index],
            )  # fmt: skip

        return Gemma3nOptions(**vars(options.each(own)), layer_input_size=size, streams=streams)


def _read_deviations(file: GGUFFile, layers: int) -> list[float]:
    """Return each layer's threshold; files state minus infinity for no threshold."""
    key = "activation_sparsity_scale"
    found: Any = file.get(key)
    if found is None:
        return [-math.inf] * layers
    if isinstance(found, str | int | float) or len(found) != layers:
        raise invalid(file, key, f"should have a number for each of the {layers} layers, not {shown(found)}")
    for each in found:
        if isinstance(each, bool) or not isinstance(each, int | float) or not each < _MAX_DEVIATIONS:
            raise invalid(file, key, f"should be numbers of standard deviations, but has {shown(each)}")
    return [float(each) for each in found]

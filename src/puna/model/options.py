"""Options of text models common to all architectures, read from metadata and checked.

An architecture passes its `TextDefaults` to `TextOptions.read`, and changes the layers' options where it
differs.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, TypeVar

from puna.errors import UnsupportedModelError, shown
from puna.gguf.metadata import (
    block_count,
    check_extent,
    first_of,
    flag,
    flags,
    invalid,
    limit,
    per_layer,
    positive,
    required,
    scalar,
    table_rows,
)
from puna.kvcache.storage import KVShape
from puna.model.layer_cache import ChosenBy, Everything, KeysOf, Remembered, Window
from puna.model.pooling import read_labels
from puna.model.published import TANH_GELU
from puna.model.rope import RopeOptions, read_sections
from puna.model.shares import ModelShare
from puna.model.stages import ModelStage
from puna.ops import Routing, Sections

if TYPE_CHECKING:
    from puna.gguf import GGUFFile

Options = TypeVar("Options", bound="TextOptions")

#: `expert_gating_func` of roots of softplus.
_SQRT_SOFTPLUS = 4
#: Whether scores are sigmoids, by `expert_gating_func`; 3 is a softmax over the chosen experts only.
_SIGMOID = {1: False, 2: True, 3: False, _SQRT_SOFTPLUS: False}


@dataclass(frozen=True)
class ExpertOptions:
    """Experts of a layer."""

    count: int
    size: int  # of each
    shared_size: int  # of the shared expert; 0 if the architecture has one but the file does not
    routing: Routing


def read_experts(
    file: GGUFFile, layers: int, routing: Routing, sizes: tuple[int, int] = (0, 0)
) -> list[ExpertOptions | None]:
    """Read the experts of each layer; `routing` holds defaults of the routing.

    `sizes` are defaults for the size of an expert and of the shared one; 0 stands for the size of a
    feed-forward network, and for one expert.

    Raises `ModelError` that names the key, and `UnsupportedModelError` for other ways of scoring.
    """
    count = scalar(file, "expert_count", 0)
    if count < 0:
        raise invalid(file, "expert_count", f"should be a number of experts, but is {count}")
    if not count:
        return [None] * layers
    used = required(file, "expert_used_count")
    if used > count:
        raise invalid(file, "expert_used_count", f"is {used}, but there are only {count} experts")
    groups, used_groups = _read_groups(file, count, used)
    gating = scalar(file, "expert_gating_func", 0)
    if gating and gating not in _SIGMOID:
        raise UnsupportedModelError(
            f"{file.path}: '{file.architecture}.expert_gating_func' {gating} is not supported"
        )
    size_key = first_of(file, "expert_feed_forward_length", "feed_forward_length")
    size = sizes[0] if sizes[0] and size_key == "feed_forward_length" else required(file, size_key)
    shared = scalar(file, "expert_shared_count", 1) * size
    shared = scalar(file, "expert_shared_feed_forward_length", sizes[1] or shared)
    if shared < 0:
        raise invalid(file, "expert_shared_feed_forward_length", f"should be a size, but is {shared}")
    normalize = flag(file, first_of(file, "norm_top_k_prob", "expert_weights_norm"), routing.normalize)
    experts = ExpertOptions(
        count,
        size,
        shared,
        dataclasses.replace(
            routing,
            used=used,
            sigmoid=_SIGMOID.get(gating, routing.sigmoid),
            sqrt_softplus=gating == _SQRT_SOFTPLUS if gating else routing.sqrt_softplus,
            normalize=normalize or gating == 3,
            scale=positive(file, "expert_weights_scale", routing.scale),
            groups=groups,
            used_groups=used_groups,
        ),
    )
    dense = scalar(file, "leading_dense_block_count", 0)
    step = required(file, "interleave_moe_layer_step", 1)
    return [experts if i >= dense and (i + 1) % step == 0 else None for i in range(layers)]


def _read_groups(file: GGUFFile, experts: int, used: int) -> tuple[int, int]:
    """Return the groups of experts, and how many of them a token's `used` experts come from."""
    groups = max(scalar(file, "expert_group_count", 1), 1)
    if experts % groups:
        raise invalid(file, "expert_group_count", f"is {groups}, which does not divide {experts} experts")
    if groups == 1:
        return 1, 1
    used_groups = required(file, "expert_group_used_count")
    if used_groups > groups:
        raise invalid(
            file, "expert_group_used_count", f"is {used_groups}, but there are only {groups} groups"
        )
    available = used_groups * (experts // groups)
    if used > available:
        raise invalid(
            file, "expert_used_count", f"is {used}, but there are only {available} in the groups used"
        )
    return groups, used_groups


@dataclass(frozen=True)
class LayerOptions:
    """Options of one layer. Sizes are named as in `weight(...)`."""

    hidden_size: int
    feed_forward_size: int  # without experts
    heads: int
    kv_heads: int  # 0: the layer has no attention
    head_dim: int  # of queries and keys
    value_dim: int  # of a head's value
    norm_eps: float
    residual_scale: float  # of each half's output
    attention_scale: float
    attention_softcap: float  # 0: none
    rope: RopeOptions | None  # None: queries and keys are not rotated
    experts: ExpertOptions | None  # None: a dense feed-forward network
    remembers: Remembered

    @property
    def query_size(self) -> int:
        return self.heads * self.head_dim

    @property
    def key_size(self) -> int:
        return self.kv_heads * self.head_dim

    @property
    def value_size(self) -> int:
        return self.kv_heads * self.value_dim

    @property
    def mixed_size(self) -> int:
        return self.heads * self.value_dim

    @property
    def expert_count(self) -> int:
        return self.experts.count if self.experts else 0

    @property
    def expert_feed_forward_size(self) -> int:
        return self.experts.size if self.experts else 0

    @property
    def shared_feed_forward_size(self) -> int:
        return self.experts.shared_size if self.experts else 0

    @property
    def routing(self) -> Routing:
        assert self.experts is not None, "a layer without experts has no routing"
        return self.experts.routing

    @property
    def lender(self) -> int:
        """Number of the layer whose keys and values, or whose choice of positions, this one uses."""
        assert isinstance(self.remembers, KeysOf | ChosenBy), "the layer uses nothing of another"
        return self.remembers.layer

    @property
    def mixing_values(self) -> int:
        """Values alive per row while the layer mixes tokens, besides the results of linears."""
        return 0

    @property
    def kv_shape(self) -> KVShape:
        return KVShape(self.kv_heads, self.head_dim, self.value_dim)


@dataclass(frozen=True, kw_only=True)
class FusableLayerOptions(LayerOptions):
    """Options of a layer whose queries, keys and values may be one tensor or three."""

    fused: bool


@dataclass(frozen=True, kw_only=True)
class GeluLayerOptions(LayerOptions):
    """Options of a layer whose GELU is exact in some models and approximated by tanh in others."""

    exact_gelu: bool


@dataclass(frozen=True)
class HeadOptions:
    """Options of a prediction head besides its layer. Sizes are named as in `weight(...)`."""

    vocab_size: int
    hidden_size: int
    norm_eps: float

    @property
    def joined_size(self) -> int:
        return 2 * self.hidden_size


@dataclass(frozen=True, kw_only=True)
class TextDefaults:
    """Facts of an architecture: those its files never state, and defaults for those they may leave out."""

    head_dim: int | None = None  # None: the hidden size divided by the number of heads
    #: Keys of the sizes of a head's query and value; those of `windowed` layers may end in `_swa`.
    head_dims: tuple[str, str] = ("attention.key_length", "attention.value_length")
    value_dim: int | None = None  # None: that of queries and keys
    norm_eps: float = 1e-5
    rope_base: float = 10000.0
    neox: bool = False  # whether rotated pairs are half a head apart; never stated
    rotates: bool = True  # never stated
    routing: Routing | None = None
    expert_sizes: tuple[int, int] = (0, 0)  # see `read_experts`
    embedding_scale: float = 1.0
    attention_softcap: float = 0.0
    logit_softcap: float = 0.0
    all_attend: bool = True  # if not, layers may have 0 key/value heads and keep something else
    attends: bool = True  # whether any layer does; if not, numbers of heads are those of something else
    halves: bool = False  # whether any layer may lack attention or a feed-forward network
    windowed: Sequence[bool] = ()  # one per layer
    predicts: bool = False  # whether trailing layers of prediction heads are kept
    only_heads: bool = False  # whether all layers predict tokens of another model
    blocks: str = "blk"  # prefix of the layers' tensors


@dataclass(frozen=True)
class TextOptions:
    """Options of a text model and of its layers."""

    vocab_size: int
    hidden_size: int
    norm_eps: float
    layers: tuple[LayerOptions, ...]  # including prediction heads, at the end
    prediction_heads: int = 0
    embedding_scale: float = 1.0
    logit_scale: float = 1.0
    logit_softcap: float = 0.0  # 0: none
    labels: int = 0  # classes of a reranker's classifier; 0 if it has none
    stage: ModelStage | None = None  # the part of the model in this process; None: all of it
    share: ModelShare | None = None  # the part of each layer in this process, in `layers`; None: all of it

    @property
    def block_count(self) -> int:
        """Number of layers, not counting prediction heads."""
        return len(self.layers) - self.prediction_heads

    @property
    def heads(self) -> list[HeadOptions]:
        """Options of each prediction head."""
        own = HeadOptions(self.vocab_size, self.hidden_size, self.norm_eps)
        return [own] * self.prediction_heads

    def without_heads(self) -> Self:
        """Return the options of the model without its prediction heads."""
        return dataclasses.replace(self, layers=self.layers[: self.block_count], prediction_heads=0)

    def on(self, stage: ModelStage | None) -> Self:
        """Return the options of a process that has only the layers of `stage`, or all of them."""
        return dataclasses.replace(self, stage=stage)

    def of_rank(self, share: ModelShare) -> Self:
        """Return the options of a process that has only this share of each layer."""

        def own(_: int, layer: LayerOptions) -> LayerOptions:
            return dataclasses.replace(
                layer,
                heads=layer.heads // share.count,
                kv_heads=layer.kv_heads // share.count,
                feed_forward_size=layer.feed_forward_size // share.count,
            )

        return dataclasses.replace(self.each(own), share=share)

    @property
    def output_rows(self) -> int:
        """Rows of the output matrix in this process."""
        return self.vocab_size if self.share is None else self.share.sizes(self.vocab_size)[self.share.rank]

    def has(self, layer: int) -> bool:
        """Whether layer number `layer` is in this process."""
        return self.stage is None or self.stage.has(layer)

    @property
    def last_to_remember(self) -> int:
        """Last layer with its own memory; later ones use the memory of others."""
        layers = self.layers[: self.block_count]
        own = (i for i, layer in enumerate(layers) if not isinstance(layer.remembers, KeysOf))
        return max(own, default=self.block_count - 1)

    @property
    def rope_pairs(self) -> int:
        """Rotated pairs that factors in the file apply to; 0 if there are none."""
        ropes = (layer.rope for layer in self.layers)
        return max((rope.pairs for rope in ropes if rope and rope.factored), default=0)

    def each(self, change: Callable[[int, LayerOptions], LayerOptions]) -> Self:
        """Return the options with each layer changed by `change(index, layer)`."""
        return dataclasses.replace(
            self, layers=tuple(change(index, layer) for index, layer in enumerate(self.layers))
        )

    @classmethod
    def read(cls, file: GGUFFile, defaults: TextDefaults = TextDefaults()) -> Self:
        """Read the options from the metadata of `file`, and check them against its tensors.

        Raises `ModelError` that names the key and its value, and `UnsupportedModelError`.
        """
        count, hidden = block_count(file, defaults.blocks), required(file, "embedding_length")
        eps_key = first_of(file, "attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon")
        norm_eps = positive(file, eps_key, defaults.norm_eps)
        layers = _read_layers(file, defaults, count, hidden, norm_eps)
        check_extent(file, "token_embd.weight", 1, {"embedding_length": hidden})
        ahead = 0 if defaults.only_heads else scalar(file, "nextn_predict_layers", 0)
        if not 0 <= ahead < count:
            raise invalid(file, "nextn_predict_layers", f"is {ahead}, of {count} layers")
        found = (f"blk.{i}.nextn.eh_proj.weight" in file.tensors for i in range(count - ahead, count))
        predicting = ahead if defaults.predicts and all(found) else 0
        return cls(
            vocab_size=table_rows(file, "token_embd.weight"),
            hidden_size=hidden,
            norm_eps=norm_eps,
            layers=layers[: count - ahead + predicting],
            prediction_heads=predicting,
            embedding_scale=positive(file, "embedding_scale", defaults.embedding_scale),
            logit_scale=positive(file, "logit_scale", 1.0),
            logit_softcap=limit(file, "final_logit_softcapping", defaults.logit_softcap),
            labels=read_labels(file),
        )


def _read_layers(
    file: GGUFFile, defaults: TextDefaults, count: int, hidden: int, norm_eps: float
) -> tuple[LayerOptions, ...]:
    """Read the options of all `count` layers and check them against the tensors."""
    heads = kv_heads = (0,) * count
    if defaults.attends:
        heads, kv_heads = _read_heads(file, count, defaults.all_attend, defaults.halves)
    key, value = defaults.head_dims
    own_dim = defaults.head_dim or max(hidden // max(*heads, 1), 1)
    head_dim = required(file, first_of(file, key, "attention.head_dim"), own_dim)
    value_dim = required(file, value, defaults.value_dim or head_dim)
    head_dim_swa = required(file, f"{key}_swa", head_dim)
    value_dim_swa = required(file, f"{value}_swa", head_dim_swa if head_dim_swa != head_dim else value_dim)
    windowed = defaults.windowed or (False,) * count
    scale = limit(file, "attention.scale", 0.0) or 1 / math.sqrt(head_dim)
    residual_scale = positive(file, "residual_scale", 1.0)
    softcap = limit(file, "attn_logit_softcapping", defaults.attention_softcap)
    rope = None
    if defaults.rotates:
        rope = RopeOptions.read(file, head_dim, base=defaults.rope_base, neox=defaults.neox)
    experts = read_experts(file, count, defaults.routing or Routing(0), defaults.expert_sizes)
    feed_forward = per_layer(file, "feed_forward_length", count, 0 if all(experts) else None)
    layers = tuple(
        LayerOptions(
            hidden_size=hidden,
            feed_forward_size=feed_forward[i],
            heads=heads[i],
            kv_heads=kv_heads[i],
            head_dim=head_dim_swa if windowed[i] else head_dim,
            value_dim=value_dim_swa if windowed[i] else value_dim,
            norm_eps=norm_eps,
            residual_scale=residual_scale,
            attention_scale=scale,
            attention_softcap=softcap,
            rope=rope,
            experts=experts[i],
            remembers=Everything(),
        )
        for i in range(count)
    )
    for i, layer in enumerate(layers):
        if not (layer.feed_forward_size or layer.experts or defaults.halves):
            raise invalid(file, "feed_forward_length", f"should be positive, but is 0 for layer {i}")
        suffix = "_swa" if windowed[i] and head_dim_swa != head_dim else ""
        _check_tensors(file, f"{defaults.blocks}.{i}", layer, f"{key}{suffix}", f"{value}{suffix}")
    return layers


def _check_tensors(file: GGUFFile, prefix: str, layer: LayerOptions, key: str, value: str) -> None:
    """Raise `ModelError` unless the sizes that memory depends on match the layer's tensors.

    Other sizes are checked as tensors are loaded; for these that would be too late, because a model is
    admitted by the memory its options ask for. `key` and `value` are the keys of its head sizes.
    """
    for tensor, axis, sizes in (
        ("ffn_gate_inp", 0, {"expert_count": layer.expert_count}),
        ("ffn_down_exps", 2, {"expert_feed_forward_length": layer.expert_feed_forward_size}),
    ):
        check_extent(file, f"{prefix}.{tensor}.weight", axis, sizes)
    if not layer.kv_heads:
        return  # other kinds of mixers have other heads
    heads = "attention.head_count_kv"
    kept = {heads: layer.kv_heads, value: layer.value_dim}
    for tensor, axis, sizes in (
        ("attn_k", 0, {heads: layer.kv_heads, key: layer.head_dim}),
        ("cross_attn_k_proj", 0, {heads: layer.kv_heads, key: layer.head_dim}),
        ("attn_v", 0, kept),
        ("cross_attn_v_proj", 0, kept),
        ("attn_output", 1, {"attention.head_count": layer.heads, value: layer.value_dim}),
        ("attn_o", 1, {"attention.head_count": layer.heads, value: layer.value_dim}),
    ):
        check_extent(file, f"{prefix}.{tensor}.weight", axis, sizes)
    joined = file.tensors.get(f"{prefix}.attn_qkv.weight")
    if f"{prefix}.ssm_conv1d.weight" in file.tensors:
        joined = None  # of a layer without attention, whose heads differ
    rows = layer.query_size + layer.key_size + layer.value_size
    if joined is not None and joined.shape[0] != rows:
        raise invalid(
            file, key, f"is {layer.head_dim} and makes {rows} rows of '{joined.name}', not {joined.shape[0]}"
        )


def fusable(file: GGUFFile, options: Options) -> Options:
    """Return `options` with each layer told whether its queries, keys and values are one tensor."""

    def own(index: int, layer: LayerOptions) -> LayerOptions:
        return FusableLayerOptions(**vars(layer), fused=f"blk.{index}.attn_qkv.weight" in file.tensors)

    return options.each(own)


def with_gelu(file: GGUFFile, options: Options, *, exact: bool) -> Options:
    """Return `options` with the kind of GELU that the file states, or else `exact` or not.

    Raises `UnsupportedModelError` for another activation.
    """
    name = file.get("hidden_activation", "gelu" if exact else TANH_GELU)
    if name not in ("gelu", TANH_GELU):
        raise UnsupportedModelError(
            f"{file.path}: '{file.architecture}.hidden_activation' {shown(name)} is not supported"
        )

    def own(_: int, layer: LayerOptions) -> LayerOptions:
        return GeluLayerOptions(**vars(layer), exact_gelu=name == "gelu")

    return options.each(own)


def rotated_within_windows(file: GGUFFile, options: Options, *, or_everywhere: bool = False) -> Options:
    """Return `options` with the windows that `read_windows` finds; layers without one do not rotate.

    If no layer has a window, all of them rotate if `or_everywhere`.
    """
    remembers = read_windows(file, options.block_count, period=4)
    everywhere = or_everywhere and not any(isinstance(each, Window) for each in remembers)

    def own(index: int, layer: LayerOptions) -> LayerOptions:
        rotates = everywhere or isinstance(remembers[index], Window)
        rope = layer.rope if rotates else None
        return dataclasses.replace(layer, rope=rope, remembers=remembers[index])

    return options.each(own)


def read_windows(
    file: GGUFFile, layers: int, *, period: int, full_first: bool = False
) -> tuple[Window | Everything, ...]:
    """Return the memory of each layer in a model where some layers have a sliding window.

    The file lists those layers, or the period at whose end a layer has none (default `period`), or at whose
    start if `full_first`. Without a window size no layer has one. Raises `ModelError` that names the key.
    """
    key = "attention.sliding_window_pattern"
    size = scalar(file, "attention.sliding_window", 0)
    pattern = file.get(key)
    if pattern is None or isinstance(pattern, int | float):
        every = required(file, key, period if size else 1)
        windowed = tuple((i + (not full_first)) % every != 0 for i in range(layers))
    else:
        windowed = flags(file, key, layers)
    if size < 1 and any(windowed):
        size = required(file, "attention.sliding_window")
    return tuple(Window(size) if each else Everything() for each in windowed)


def share_keys(
    file: GGUFFile, remembers: Sequence[Window | Everything]
) -> tuple[Window | Everything | KeysOf, ...]:
    """Make the last layers, as many as the file states, share keys and values of earlier layers.

    Each uses those of the last of the other layers with the same window. Raises `ModelError` that names the
    key.
    """
    key, count = "attention.shared_kv_layers", len(remembers)
    shared = scalar(file, key, 0)
    if not 0 <= shared < count:
        raise invalid(file, key, f"is {shared}, of {count} layers")
    lenders = {kept: index for index, kept in enumerate(remembers[: count - shared])}
    if missing := [i for i in range(count - shared, count) if remembers[i] not in lenders]:
        complaint = f"is {shared}, but no earlier layer has the window of layer {missing[0]}"
        raise invalid(file, key, complaint)
    borrowed = (KeysOf(lenders[kept]) for kept in remembers[count - shared :])
    return (*remembers[: count - shared], *borrowed)


def _read_heads(
    file: GGUFFile, layers: int, all_attend: bool, halves: bool
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the query heads and key/value heads of each layer."""
    heads = per_layer(file, "attention.head_count", layers)
    kv_heads = per_layer(file, "attention.head_count_kv", layers, heads if all_attend or halves else None)
    for i, (count, kv_count) in enumerate(zip(heads, kv_heads, strict=True)):
        if not kv_count and not all_attend:
            continue
        if not count:
            raise invalid(file, "attention.head_count", f"should be positive, but is 0 for layer {i}")
        if not kv_count or count % kv_count:
            complaint = f"is {kv_count} for layer {i}, whose {count} query heads cannot share {kv_count}"
            raise invalid(file, "attention.head_count_kv", complaint)
    if not any(kv_heads) and not halves:
        raise invalid(file, "attention.head_count_kv", "is 0 for all layers, but at least one must attend")
    return heads, kv_heads


def with_axes(
    file: GGUFFile, options: TextOptions, *, shares: Sequence[int] = (), interleaved: bool = False
) -> TextOptions:
    """Return `options` with rotation by time, height and width, by the file's sections or by `shares`."""

    def own(_: int, layer: LayerOptions) -> LayerOptions:
        assert layer.rope is not None
        sections = Sections(read_sections(file, layer.rope.pairs, shares), interleaved)
        rope = dataclasses.replace(layer.rope, sections=sections)
        return dataclasses.replace(layer, rope=rope)

    return options.each(own)

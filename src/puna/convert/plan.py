"""The plan of a GGUF file: each tensor's sources, shape and type, known before any tensor data is read."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from puna.convert.assumptions import how_to_ignore
from puna.convert.checkpoint import Checkpoint, Values
from puna.convert.config import Config
from puna.convert.family import Family, Member, Place, Split, halves
from puna.errors import ConversionError, shown
from puna.gguf import GGMLType
from puna.model.published import EXPERT_LINEARS, LINEARS, is_of_another_sense

_OF_LAYER: Final = {
    **LINEARS, **EXPERT_LINEARS, "input_layernorm": "attn_norm", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm", "self_attn.query_layernorm": "attn_q_norm",
    "self_attn.key_layernorm": "attn_k_norm", "self_attn.sinks": "attn_sinks.weight",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate.e_score_correction_bias": "exp_probs_b.bias",
    "block_sparse_moe.e_score_correction_bias": "exp_probs_b.bias",
    "mlp.experts.down_proj": "ffn_down_exps.weight",
}  # fmt: skip

#: Modules that predict the token after the next, stored as an extra layer.
_HEAD: Final = {
    "eh_proj": "nextn.eh_proj", "enorm": "nextn.enorm", "hnorm": "nextn.hnorm",
    "embed_tokens": "nextn.embed_tokens", "shared_head.head": "nextn.shared_head_head",
    "shared_head.norm": "nextn.shared_head_norm", "fc": "nextn.eh_proj",
    "pre_fc_norm_embedding": "nextn.enorm", "pre_fc_norm_hidden": "nextn.hnorm",
    "norm": "nextn.shared_head_norm",
}  # fmt: skip

_GATE_AND_UP: Final = ("blk.{}.ffn_gate_exps.weight", "blk.{}.ffn_up_exps.weight")

#: Names that most architectures use.
NAMES: Final[dict[str, Place]] = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    **{f"model.layers.{{}}.{theirs}": f"blk.{{}}.{ours}" for theirs, ours in (_OF_LAYER | _HEAD).items()},
    "model.layers.{}.mlp.experts.gate_up_proj": Split(_GATE_AND_UP, halves),
    # Computed from settings, or unused.
    "model.layers.{}.self_attn.rotary_emb.inv_freq": None,
    "model.rotary_emb.inv_freq": None,
}
#: Names in architectures that also have norms after each half of a layer.
POST_NORMS: Final[dict[str, Place]] = {
    "model.layers.{}.post_attention_layernorm": "blk.{}.post_attention_norm",
    "model.layers.{}.pre_feedforward_layernorm": "blk.{}.ffn_norm",
    "model.layers.{}.post_feedforward_layernorm": "blk.{}.post_ffw_norm",
}

#: The prefix of prediction heads with layers of their own; modules outside them belong to the first head.
_AHEAD: Final = re.compile(r"(?:model\.)?mtp\.(?:layers\.(\d{1,6})\.)?")
_NUMBER: Final = re.compile(r"(?<=\.)(\d{1,6})(?=\.|$)")
#: Prefixes of vision towers.
_TOWER: Final = re.compile(
    r"^(?:visual\.vision_model|vision_tower\.vision_model|vision_tower|vision_encoder|vision_model|visual|vpm)\."
)


def is_of_another_part(name: str, family: Family) -> bool:
    """Whether a tensor is of another part of the model: vision or audio for the text model, or vice versa."""
    if family.kept:
        plain = _plain(name, family)
        return not plain.startswith(family.kept) or plain.startswith(family.dropped)
    return is_of_another_sense(name) or name.startswith(family.dropped)


def _plain(name: str, family: Family) -> str:
    """Return the name as the tables spell it, wherever the module is in the checkpoint."""
    name = name.removeprefix("thinker.")
    if family.kept:
        return _TOWER.sub("tower.", name.removeprefix("model."))
    plain = name.replace("language_model.", "").replace("text_model.", "").removeprefix("model.model.")
    return family.prefix + plain if family.prefix and not plain.startswith(family.prefix) else plain


def place_of(name: str, family: Family, config: Config) -> tuple[str | Split | None, int | None]:
    """Return the target of tensor `name`, with its layer number and suffix, and its index in a stack.

    A number for which the target has no placeholder is the index in a stack, as for experts. Heads that
    predict later tokens follow the model's layers.

    Raises KeyError if the family has no place for the tensor.
    """
    plain = family.rename(_plain(name, family), config)
    if not family.kept and (head := _AHEAD.match(plain)):
        plain = f"model.layers.{config.layers + int(head[1] or 0)}.{plain[head.end() :]}"
    numbers = [int(number) for number in _NUMBER.findall(plain)]
    pattern = _NUMBER.sub("{}", plain)
    module, _, ending = pattern.rpartition(".")
    of_layer = _NUMBER.sub("{}", plain, count=1)
    for known, tail in ((pattern, ""), (of_layer, ""), (module, f".{ending}")):
        for table in (family.names, {} if family.kept else NAMES):
            if known in table:
                place = table[known]
                if isinstance(place, Member):
                    number = numbers[-1] if place.number is None else place.number
                    return _numbered(place.target, numbers, tail), number
                first = place.targets[0] if isinstance(place, Split) else place or ""
                stacked = known.count("{}") > max(first.count("{}"), 1)
                return _numbered(place, numbers, tail), numbers[-1] if stacked else None
    raise KeyError(name)


def _numbered(place: str | Split | None, numbers: list[int], tail: str) -> str | Split | None:
    if place is None:
        return None
    if isinstance(place, Split):
        return Split(tuple(target.format(*numbers) + tail for target in place.targets), place.parts)
    return place.format(*numbers) + tail


#: Tensors always stored as F32.
_EXACT: Final = (
    "ffn_gate_inp.weight", "ffn_gate_inp_shexp.weight", "position_embd.weight", "token_types.weight",
    "ssm_conv1d.weight", "shortconv.conv.weight", "time_mix_lerp_fused.weight", "_norm.weight",
    "conv_stem.conv.weight", "pos_embd.weight", "pos_h.weight", "pos_w.weight", "neck.0.weight",
    "neck.2.weight", "net_2.weight", "net_3.weight", "conv_dw.weight", "hc_attn_fn.weight",
    "hc_ffn_fn.weight", "output_hc_fn.weight", "compressor_ape.weight", "indexer_compressor_gate.weight",
)  # fmt: skip
#: Numbers of tokens, and of experts.
_INTEGERS: Final = {"d2t": GGMLType.I64, "ffn_gate_tid2eid.weight": GGMLType.I32}
#: Convolution kernels over pixels, whatever their shape.
_KERNELS: Final = ("v.patch_embd.weight", "mm.patch_merger.weight")


_LAYER: Final = re.compile(r"blk\.(\d+)\.")
_ROUTER: Final = re.compile(r"blk\.(\d+)\.ffn_gate_inp\.weight")
#: Tensors whose sizes depend on the heads.
_OF_HEADS: Final = re.compile(r"blk\.(\d+)\.(attn_k|attn_output)\.weight")


#: Suffixes of architectures that predict tokens.
_PREDICTING: Final = ("ForCausalLM", "ForConditionalGeneration", "LMHeadModel")
#: Biases of a layer, by the setting that says whether they exist.
_BIASES: Final = {
    name: re.compile(rf"(?:{modules})\.bias")
    for name, modules in {
        "attention_bias": "attn_(?:q|k|v|qkv|output|q_a|kv_a_mqa)", "attention_out_bias": "attn_output",
        "qkv_bias": "attn_[qkv]", "mlp_bias": "ffn_(?:gate|up|down)(?:_shexp)?",
        "use_bias": r"attn_(?:q|k|v|output)|ffn_(?:gate|up|down)(?:_shexp)?|ssm_(?:in|out)",
        "mamba_proj_bias": "ssm_(?:in|out)", "projectors_bias": "ssm_out", "use_conv_bias": "ssm_conv1d",
        "mamba_conv_bias": "ssm_conv1d", "conv_bias": r"shortconv\.\w+", "norm_bias": r"\w+_norm",
    }.items()
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TensorPart:
    """A tensor of a checkpoint, or one of the parts it is split into, as a source of a tensor of the file."""

    source: str
    family: Family
    target: str
    split: Split | None = None
    index: int = 0

    def values(self, given: Values, config: Config) -> Values:
        """Compute the part's values from its source's `given` values."""
        values = self.split.parts(given, config)[self.index] if self.split else given
        if change := self.family.change(self.target):
            values = change(values, config)
        lacks = self.target.endswith("norm.weight") and not self.target.endswith(self.family.plain_norms)
        if self.family.norm_offset and lacks:
            values = values + np.float32(self.family.norm_offset)
        return values


@dataclass
class Target:
    """A tensor of the file: a stack of experts or of rows, which are its parts, or its only part."""

    name: str
    parts: dict[int, TensorPart] = field(default_factory=dict)
    stacked: bool = False
    shape: tuple[int, ...] = ()
    type: GGMLType = GGMLType.F32
    constant: Values | None = None  # values that are not from the checkpoint

    def pieces(self, checkpoint: Checkpoint, config: Config) -> Iterator[Values]:
        """Yield the values in order, with at most one tensor of the checkpoint in memory."""
        if self.constant is not None:
            yield self.constant
        for _, part in sorted(self.parts.items()):
            yield part.values(checkpoint.values(part.source), config)


def targets(checkpoint: Checkpoint, config: Config, family: Family, mostly: GGMLType) -> list[Target]:
    """Return all tensors of the file, and set what `config` tells of them: prediction heads and the output.

    Raises ConversionError for a tensor of the checkpoint without a place.
    """
    found: dict[str, Target] = {
        name: Target(name, constant=np.ascontiguousarray(values))
        for name, values in family.extra(config).items()
    }
    places = {}
    for name in checkpoint.tensors:
        if is_of_another_part(name, family):
            continue
        try:
            places[name] = place_of(name, family, config)
        except (KeyError, IndexError):
            raise ConversionError(
                f"tensor {shown(name)} has no place in a file of architecture {family.architecture}"
            ) from None
    repeated = _repeated_output(places, checkpoint) if _is_tied(config, family) else None
    for name, (place, expert) in places.items():
        if place is None or name == repeated:
            continue
        split = place if isinstance(place, Split) else None
        for index, target in enumerate(split.targets if split else (str(place),)):
            stacked = expert is not None and target not in family.joined
            there = found.setdefault(target, Target(target, stacked=stacked))
            number = expert or 0
            if number in there.parts:
                raise ConversionError(
                    f"tensors {shown(there.parts[number].source)} and {shown(name)} are both '{target}'"
                )
            there.parts[number] = TensorPart(name, family, target, split, index)
    for name, other in family.only_with.items():
        if other not in found:
            found.pop(name, None)
    config.heads_ahead = sum(name.endswith(".nextn.eh_proj.weight") for name in found)
    config.has_output = "output.weight" in found
    for each in found.values():
        _set_shape_and_type(each, checkpoint, config, mostly)
    return sorted(found.values(), key=_order)


def _repeated_output(
    places: Mapping[str, tuple[str | Split | None, int | None]], checkpoint: Checkpoint
) -> str | None:
    """Return the name of an output that repeats the input's table, or None.

    Like transformers, which ties the two only if they are equal or one is missing, files keep an output that
    differs, whatever config.json says.
    """
    targets = {
        name: place.targets if isinstance(place, Split) else (place,) for name, (place, _) in places.items()
    }
    tables = [name for name, found in targets.items() if "token_embd.weight" in found]
    outputs = [
        name
        for name, found in targets.items()
        if name not in tables and {"output.weight", "cls.output.weight"} & {*found}
    ]
    pairs = ((output, table) for output in outputs for table in tables)
    return next((output for output, table in pairs if checkpoint.are_equal(output, table)), None)


def _is_tied(config: Config, family: Family) -> bool:
    """Return whether config.json says that the output is the input's table."""
    stated = config.whole.get("tie_word_embeddings", config.get("tie_word_embeddings"))
    return family.tied if stated is None else bool(stated)


def check_output(planned: Sequence[Target], checkpoint: Checkpoint, config: Config, family: Family) -> None:
    """Raise ConversionError if a model that predicts tokens lacks its output matrix.

    Readers would use the input embedding instead. A folder written by sentence-transformers computes
    embeddings, which need no output matrix.
    """
    (name, *_) = config.whole.get("architectures") or ("",)
    predicts = str(name).endswith(_PREDICTING) and not checkpoint.modules
    # transformers ties the weights of a nested text model unless the outer settings say otherwise.
    by_whole = config.own is not config.whole and "tie_word_embeddings" not in config.whole
    tied = _is_tied(config, family) or by_whole or config.get("tie_word_embeddings")
    if predicts and not tied and not {"output.weight", "cls.output.weight"} & {each.name for each in planned}:
        raise ConversionError(
            "the checkpoint has no output ('lm_head.weight'), and config.json does not say that it is the "
            "input's table ('tie_word_embeddings'): the setting or a file of tensors is missing"
        )


def check_biases(planned: Sequence[Target], config: Config, ignore: Collection[str]) -> None:
    """Raise ConversionError for biases that a setting denies, unless `ignore` names the setting.

    transformers leaves such biases out; readers of the file would add them.
    """
    stated = {name: config.peek(name) for name in _BIASES if isinstance(config.peek(name), bool)}
    for target in planned:
        module = target.name.rpartition("blk.")[2].partition(".")[2]
        about = [name for name in stated if _BIASES[name].fullmatch(module)]
        if about and not any(stated[name] for name in about) and not {*about} & {*ignore}:
            raise ConversionError(
                f"config.json: '{about[0]}' is False, but there is '{target.name}'; to use it anyway, "
                f"{how_to_ignore(about[0], ignore)}"
            )


def check_layers(planned: Sequence[Target], keys: Mapping[str, Any]) -> None:
    """Raise ConversionError if the checkpoint's layers differ from those in `keys`."""
    found = {int(layer[1]) for target in planned if (layer := _LAYER.match(target.name))}
    if found and len(found) != keys["block_count"]:
        raise ConversionError(
            f"config.json says that there are {keys['block_count']} layers, but the checkpoint has "
            f"{len(found)}: 'num_hidden_layers' is missing or wrong, or a file of tensors is missing"
        )


def check_experts(planned: Sequence[Target], keys: Mapping[str, Any]) -> None:
    """Raise ConversionError if `keys` lack the numbers of experts, or the checkpoint contradicts them."""
    routed = [int(found[1]) for target in planned if (found := _ROUTER.fullmatch(target.name))]
    if routed and not (keys.get("expert_count") and keys.get("expert_used_count")):
        raise ConversionError("config.json does not say how many experts there are, or how many are used")
    groups, groups_used = keys.get("expert_group_count") or 1, keys.get("expert_group_used_count")
    if (experts := keys.get("expert_count")) and experts % groups:
        raise ConversionError(f"config.json: 'n_group' is {groups}, which does not divide {experts} experts")
    if routed and groups > 1:
        if groups_used is None:
            raise ConversionError("config.json lacks 'topk_group', the number of groups that are used")
        most = keys["expert_count"] // groups * groups_used
        if keys["expert_used_count"] > most:
            raise ConversionError(
                f"config.json: {keys['expert_used_count']} experts cannot be used, because the used "
                f"groups have {most}: 'n_group' or 'topk_group' is wrong"
            )
    dense, layers = keys.get("leading_dense_block_count"), keys["block_count"]
    if dense is None:
        return
    first, every = min(routed, default=layers), keys.get("interleave_moe_layer_step") or 1
    if not min(dense, layers) <= first < min(dense, layers) + every:
        raise ConversionError(
            f"config.json says that layer {dense} is the first with experts, but in the checkpoint it is "
            f"layer {first}: a setting such as 'first_k_dense_replace' is missing or wrong"
        )


def check_heads(planned: Sequence[Target], keys: Mapping[str, Any]) -> None:
    """Raise ConversionError if the sizes of tensors contradict the heads in `keys`.

    A setting that config.json lacks may have different defaults in transformers and in readers of the file.
    """
    heads = keys.get("attention.head_count")
    if not isinstance(heads, int) or heads < 1:
        return
    counts = keys.get("attention.head_count_kv") or heads
    usual = keys.get("embedding_length", 0) // heads
    key_sizes = _sizes(keys, "key_length", "key_length_swa") or {usual}
    value_sizes = (
        _sizes(keys, "value_length_mla") or _sizes(keys, "value_length", "value_length_swa") or {usual}
    )
    for target in planned:
        if (found := _OF_HEADS.fullmatch(target.name)) is None:
            continue
        kv_heads = counts[int(found[1])] if isinstance(counts, list) else counts
        if not kv_heads:  # a layer of another type
            continue
        size, count, allowed = target.shape[-1], heads, value_sizes
        if found[2] == "attn_k":
            size, count, allowed = target.shape[0], kv_heads, key_sizes
        if size not in {count * each for each in allowed}:
            raise ConversionError(
                f"tensor '{target.name}' has {size} key or value dimensions, but config.json says "
                f"{count} heads of {' or '.join(map(str, sorted(allowed)))}: a setting such as 'head_dim' or "
                "'num_key_value_heads' is missing or wrong"
            )


def _sizes(keys: Mapping[str, Any], *names: str) -> set[int]:
    return {keys[f"attention.{name}"] for name in names if f"attention.{name}" in keys}


def _set_shape_and_type(target: Target, checkpoint: Checkpoint, config: Config, mostly: GGMLType) -> None:
    """Set the target's shape and type."""
    if target.constant is not None:
        target.shape = target.constant.shape
        return
    if sorted(target.parts) != list(range(len(target.parts))):
        kind = "experts" if target.stacked else "parts"
        raise ConversionError(f"'{target.name}' lacks some of its {max(target.parts) + 1} {kind}")
    shapes, rows = set(), 0
    for part in target.parts.values():
        given = np.zeros(checkpoint.shape(part.source), np.float16)  # uses no memory until written
        try:
            shape = part.values(given, config).shape
            if len(target.parts) > 1 and not target.stacked:
                rows, shape = rows + shape[0], (0, *shape[1:])
            shapes.add(shape)
        except (ValueError, IndexError, ZeroDivisionError) as error:
            raise ConversionError(
                f"tensor {shown(part.source)} of shape {'x'.join(map(str, given.shape))} does not fit "
                f"config.json: {error}"
            ) from None
    if len(shapes) > 1:
        kind = "experts" if target.stacked else "parts"
        raise ConversionError(f"the {kind} of '{target.name}' have different shapes: {sorted(shapes)}")
    (shape,) = shapes
    if rows:
        shape = (rows, *shape[1:])
    target.shape = (len(target.parts), *shape) if target.stacked else shape
    if 0 in target.shape:
        raise ConversionError(f"'{target.name}' of shape {'x'.join(map(str, target.shape))} has no values")
    if any(checkpoint.is_mxfp4(part.source) for part in target.parts.values()):
        columns = target.shape[-1] // GGMLType.MXFP4.type_size * GGMLType.MXFP4.block_size
        target.shape, target.type = (*target.shape[:-1], columns), GGMLType.MXFP4
        return
    eight = all(checkpoint.is_eight_bits(part.source) for part in target.parts.values())
    target.type = _type(target.name, target.shape, GGMLType.Q8_0 if eight else mostly)


def _type(name: str, shape: Sequence[int], mostly: GGMLType) -> GGMLType:
    for end, integers in _INTEGERS.items():
        if name.endswith(end):
            return integers
    if len(shape) < 2 or name.endswith(_EXACT) or not name.endswith(".weight"):
        return GGMLType.F32
    if name.startswith(_KERNELS) or (len(shape) == 4 and shape[-1] > 1):  # readers support no other types
        return GGMLType.F16 if mostly is GGMLType.F16 else GGMLType.F32
    if mostly is GGMLType.Q8_0 and shape[-1] % mostly.block_size:
        return GGMLType.F16
    return mostly


def _order(target: Target) -> tuple[int, str]:
    parts = target.name.split(".")
    return (int(parts[1]) if parts[0] == "blk" and parts[1].isdecimal() else -1, target.name)

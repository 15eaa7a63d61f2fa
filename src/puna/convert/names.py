"""Names of tensors that most architectures share, and where a checkpoint's tensor goes."""

from __future__ import annotations

import re
from typing import Final

from puna.convert.config import Config
from puna.convert.family import Family, Member, Place, Split, halves
from puna.model.published import EXPERT_LINEARS, LINEARS, is_of_another_sense

_LAYER: Final = {
    **LINEARS, **EXPERT_LINEARS, "input_layernorm": "attn_norm", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm", "self_attn.query_layernorm": "attn_q_norm",
    "self_attn.key_layernorm": "attn_k_norm", "self_attn.sinks": "attn_sinks.weight",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate.e_score_correction_bias": "exp_probs_b.bias",
    "block_sparse_moe.e_score_correction_bias": "exp_probs_b.bias",
    "mlp.experts.down_proj": "ffn_down_exps.weight",
}  # fmt: skip

#: What predicts the token after the next, as a layer more.
_HEAD: Final = {
    "eh_proj": "nextn.eh_proj", "enorm": "nextn.enorm", "hnorm": "nextn.hnorm",
    "embed_tokens": "nextn.embed_tokens", "shared_head.head": "nextn.shared_head_head",
    "shared_head.norm": "nextn.shared_head_norm", "fc": "nextn.eh_proj",
    "pre_fc_norm_embedding": "nextn.enorm", "pre_fc_norm_hidden": "nextn.hnorm",
    "norm": "nextn.shared_head_norm",
}  # fmt: skip

_GATE_AND_UP: Final = ("blk.{}.ffn_gate_exps.weight", "blk.{}.ffn_up_exps.weight")

#: The usual ones.
NAMES: Final[dict[str, Place]] = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    **{f"model.layers.{{}}.{theirs}": f"blk.{{}}.{ours}" for theirs, ours in (_LAYER | _HEAD).items()},
    "model.layers.{}.mlp.experts.gate_up_proj": Split(_GATE_AND_UP, halves),
    # Computed from settings, or of no use.
    "model.layers.{}.self_attn.rotary_emb.inv_freq": None,
    "model.rotary_emb.inv_freq": None,
}
#: Where norms follow the halves of a layer too.
POST_NORMS: Final[dict[str, Place]] = {
    "model.layers.{}.post_attention_layernorm": "blk.{}.post_attention_norm",
    "model.layers.{}.pre_feedforward_layernorm": "blk.{}.ffn_norm",
    "model.layers.{}.post_feedforward_layernorm": "blk.{}.post_ffw_norm",
}

#: Of models whose heads have layers of their own; what is outside them is the first head's.
_AHEAD: Final = re.compile(r"(?:model\.)?mtp\.(?:layers\.(\d{1,6})\.)?")
_NUMBER: Final = re.compile(r"(?<=\.)(\d{1,6})(?=\.|$)")
#: How names of what sees begin.
_TOWER: Final = re.compile(r"^(?:vision_tower\.vision_model|vision_tower|vision_model|visual|vpm)\.")


def is_of_another_part(name: str, family: Family) -> bool:
    """Whether a tensor is not of the file: of what sees or hears if it is of the text model, or of that."""
    if family.kept:
        plain = _plain(name, family)
        return not plain.startswith(family.kept) or plain.startswith(family.dropped)
    return is_of_another_sense(name) or name.startswith(family.dropped)


def _plain(name: str, family: Family) -> str:
    """The name as tables have it, wherever the module lies in the checkpoint."""
    if family.kept:
        return _TOWER.sub("tower.", name.removeprefix("model."))
    plain = name.replace("language_model.", "").replace("text_model.", "").removeprefix("model.model.")
    return family.prefix + plain if family.prefix and not plain.startswith(family.prefix) else plain


def place_of(name: str, family: Family, config: Config) -> tuple[str | Split | None, int | None]:
    """Where the tensor `name` goes: targets with their layer and their ending, and its number in a stack.

    A number that the target has no room for is that in a stack; experts are such stacks. Heads that predict
    later tokens follow the model's layers.

    Raises KeyError if the family has no place for it.
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

"""The experts of a model's layers, read from its metadata and checked."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

from puna.errors import UnsupportedModelError
from puna.model.metadata import first_of, flag, invalid, positive, required, scalar
from puna.ops import Routing

if TYPE_CHECKING:
    from puna.gguf import GGUFFile

#: How `expert_gating_func` says that scores are sigmoids. 3 is the softmax over the chosen experts alone.
_SIGMOID = {1: False, 2: True, 3: False}


@dataclass(frozen=True)
class ExpertOptions:
    """The experts of a layer."""

    count: int
    size: int  # of each
    shared_size: int  # of the one that every token goes through, if the architecture has it; 0: it has none
    routing: Routing


def read_experts(
    file: GGUFFile, layers: int, routing: Routing, sizes: tuple[int, int] = (0, 0)
) -> list[ExpertOptions | None]:
    """The experts of each layer; `routing` stands for what the file does not say of it.

    So do `sizes`, of an expert and of what is shared; 0 is that of a feed-forward network, and of one expert.

    Raises `ModelError` that names the key, and `UnsupportedModelError` for another way of scoring.
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
    """The groups of the experts, and how many of them the `used` ones of a token come from."""
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

"""The type of each tensor in a quantised file, by llama.cpp's rules, so that a Q4_K_M is what users expect.

Some tensors are kept as they are (norms, routers, position embeddings, everything for images, and for audio
unless the model transcribes, when that is most of it).
Those most sensitive to errors, such as attention values and feed-forward down projections, get more bits in
some layers. A tensor whose rows are not whole blocks of its type gets a type with smaller blocks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from puna.architectures import ARCHITECTURES, UNKNOWN
from puna.errors import RequestError, shown
from puna.gguf import FileType, GGMLType, GGUFFile, TensorInfo

#: The type of most matrices in a file.
MOSTLY: Final = {
    FileType.F32: GGMLType.F32,
    FileType.F16: GGMLType.F16,
    FileType.BF16: GGMLType.BF16,
    FileType.Q8_0: GGMLType.Q8_0,
    FileType.Q4_0: GGMLType.Q4_0,
    FileType.Q4_1: GGMLType.Q4_1,
    FileType.Q5_0: GGMLType.Q5_0,
    FileType.Q5_1: GGMLType.Q5_1,
    FileType.Q2_K: GGMLType.Q2_K,
    FileType.Q2_K_S: GGMLType.Q2_K,
    FileType.Q3_K_S: GGMLType.Q3_K,
    FileType.Q3_K_M: GGMLType.Q3_K,
    FileType.Q3_K_L: GGMLType.Q3_K,
    FileType.Q4_K_S: GGMLType.Q4_K,
    FileType.Q4_K_M: GGMLType.Q4_K,
    FileType.Q5_K_S: GGMLType.Q5_K,
    FileType.Q5_K_M: GGMLType.Q5_K,
    FileType.Q6_K: GGMLType.Q6_K,
    FileType.IQ4_NL: GGMLType.IQ4_NL,
    FileType.IQ4_XS: GGMLType.IQ4_XS,
    FileType.TQ1_0: GGMLType.TQ1_0,
    FileType.TQ2_0: GGMLType.TQ2_0,
    FileType.MXFP4_MOE: GGMLType.MXFP4,
}

_SHORT: Final = {
    "Q3_K": FileType.Q3_K_M,
    "Q4_K": FileType.Q4_K_M,
    "Q5_K": FileType.Q5_K_M,
    "MXFP4": FileType.MXFP4_MOE,
}


def file_type_of(text: str) -> FileType:
    """Return the file type that `text` names in any case: `q4_K_M`.

    Raises RequestError listing the valid ones.
    """
    name = text.strip().upper()
    kind = _SHORT.get(name) or FileType.__members__.get(name)
    if kind is None or kind not in MOSTLY:
        raise RequestError(
            f"unsupported quantization type {shown(text)} - supported types are "
            f"{', '.join(kind.label for kind in MOSTLY)}"
        )
    return kind


_KEPT: Final = (
    "_norm.weight", "ffn_gate_inp.weight", "altup", "laurel", "per_layer_model_proj", "ssm_conv1d",
    "shortconv.conv.weight", "attn_rel_b.weight", ".position_embd", ".rel_pos", ".patch_embd",
    ".patch_merger", "hc_", "ffn_gate_tid2eid.weight", "compressor_ape.weight",
    "indexer_compressor_gate.weight",
)  # fmt: skip
_KEPT_NAMES: Final = ("position_embd.weight", "token_types.weight")
_KEPT_BEGINNINGS: Final = ("v.", "a.", "mm.")
#: The layers of an audio tower.
_HEARING: Final = "a.blk."

#: Roles by a part of a tensor's name; the first match counts.
_ROLES: Final = {
    "attn_qkv.weight": "qkv", "attn_kv_b.weight": "kv_b", "attn_v.weight": "value", "attn_k.weight": "key",
    "attn_output.weight": "attention_output", "ffn_down": "down",
}  # fmt: skip
_SMALLER_BLOCKS: Final = {
    GGMLType.IQ4_XS: GGMLType.IQ4_NL, GGMLType.Q2_K: GGMLType.Q4_0, GGMLType.Q3_K: GGMLType.Q4_0,
    GGMLType.TQ1_0: GGMLType.Q4_0, GGMLType.TQ2_0: GGMLType.Q4_0, GGMLType.Q4_K: GGMLType.Q5_0,
    GGMLType.Q5_K: GGMLType.Q5_1, GGMLType.Q6_K: GGMLType.Q8_0,
}  # fmt: skip

_LAYER: Final = re.compile(r"blk\.(\d{1,6})\.")


def mixture(file: GGUFFile, file_type: FileType, *, has_importance: bool = False) -> dict[str, GGMLType]:
    """Return the type of each tensor of `file`, by name, for a `file_type`."""
    rules = _Rules(file, file_type, has_importance)
    ordered = sorted(file.tensors.values(), key=lambda tensor: (_layer(tensor.name), tensor.name))
    return {tensor.name: rules.type_of(tensor) for tensor in ordered}


def is_kept(tensor: TensorInfo, transcribes: bool = False) -> bool:
    """Whether a tensor of a model, which may be one that transcribes, is never quantised."""
    heard = transcribes and tensor.name.startswith(_HEARING)
    sizes = tensor.shape
    while len(sizes) > 1 and sizes[0] == 1:
        sizes = sizes[1:]
    return (
        len(sizes) < 2
        or not tensor.name.endswith("weight")
        or tensor.name in _KEPT_NAMES
        or (tensor.name.startswith(_KEPT_BEGINNINGS) and not heard)
        or any(part in tensor.name for part in _KEPT)
    )


class _Rules:
    """The rules for one file, applied to tensors in the order of layers, with counts for some roles."""

    def __init__(self, file: GGUFFile, kind: FileType, has_importance: bool) -> None:
        self._kind = kind
        self._has_importance = has_importance
        self._layers = _first(file.get("block_count"))
        self._experts = max(1, _first(file.get("expert_count")))
        heads, kept = (_first(file.get(f"attention.{key}")) for key in ("head_count", "head_count_kv"))
        self._shared_by = heads // kept if kept else 0  # query heads per key/value head
        self._is_70b = (
            self._layers == 80
            and ARCHITECTURES.get(file.architecture, UNKNOWN).has_70b
            and (file.architecture != "llama" or heads != kept)
        )
        self._tied = "output.weight" not in file.tensors
        self._transcribes = ARCHITECTURES.get(file.architecture, UNKNOWN).transcribes
        names = [_role(name) for name in file.tensors if not name.startswith(_HEARING)]
        self._values = sum(role in ("value", "qkv", "kv_b") for role in names)
        self._counted: dict[str, int] = {"value": 0, "down": 0}

    def type_of(self, tensor: TensorInfo) -> GGMLType:
        if is_kept(tensor, self._transcribes):
            return tensor.type
        wanted = MOSTLY[self._kind]
        if wanted.is_quantized:
            wanted = fitting(self._chosen(tensor, wanted), tensor.shape[-1])
        return wanted

    def _chosen(self, tensor: TensorInfo, mostly: GGMLType) -> GGMLType:
        is_input = tensor.name in ("token_embd.weight", "per_layer_token_embd.weight")
        if tensor.name == "output.weight" or (self._tied and is_input):
            return self._output(tensor, mostly)
        if self._kind is FileType.MXFP4_MOE:
            return GGMLType.MXFP4 if len(tensor.shape) == 3 and tensor.shape[0] > 1 else GGMLType.Q8_0
        if is_input:
            ternary = self._kind in (FileType.TQ1_0, FileType.TQ2_0)
            return GGMLType.Q4_K if ternary else mostly
        if tensor.name.startswith(_HEARING):
            return mostly
        match _role(tensor.name):
            case "value" | "qkv" | "kv_b":
                chosen = self._value(mostly, self._counted["value"])
                self._counted["value"] += 1
                return chosen
            case "key" if self._experts == 8:
                return GGMLType.Q8_0
            case "down":
                layer = _layer(tensor.name) if self._experts > 1 else self._counted["down"]
                self._counted["down"] += 1
                return self._down(mostly, layer)
            case "attention_output":
                return self._attention_output(mostly)
        return mostly

    def _output(self, tensor: TensorInfo, mostly: GGMLType) -> GGMLType:
        whole = tensor.shape[-1] % mostly.block_size == 0
        is_eight = self._kind in (FileType.MXFP4_MOE, FileType.Q8_0)
        return GGMLType.Q6_K if whole and not is_eight else GGMLType.Q8_0

    def _value(self, mostly: GGMLType, number: int) -> GGMLType:
        chosen, many_share = mostly, self._shared_by >= 4
        match self._kind:
            case FileType.Q2_K:
                chosen = GGMLType.Q4_K if many_share else GGMLType.Q3_K
            case FileType.Q2_K_S if many_share:
                chosen = GGMLType.Q4_K
            case FileType.Q3_K_M:
                chosen = GGMLType.Q5_K if number < 2 else GGMLType.Q4_K
            case FileType.Q3_K_L:
                chosen = GGMLType.Q5_K
            case FileType.IQ4_NL | FileType.IQ4_XS if many_share:
                chosen = GGMLType.Q5_K
            case FileType.Q4_K_M | FileType.Q5_K_M if _more_bits(number, self._values):
                chosen = GGMLType.Q6_K
            case FileType.Q4_K_S if number < 4:
                chosen = GGMLType.Q5_K
        if self._is_70b and chosen in (GGMLType.Q3_K, GGMLType.Q4_K):
            chosen = GGMLType.Q5_K
        return GGMLType.Q8_0 if self._experts == 8 else chosen

    def _down(self, mostly: GGMLType, layer: int) -> GGMLType:
        more, early = _more_bits(layer, self._layers), layer < self._layers // 8
        match self._kind:
            case FileType.Q2_K:
                return GGMLType.Q3_K
            case FileType.Q2_K_S if early:
                return GGMLType.Q4_K
            case FileType.Q3_K_M:
                return GGMLType.Q5_K if layer < self._layers // 16 else GGMLType.Q4_K
            case FileType.Q3_K_L:
                return GGMLType.Q5_K
            case FileType.Q4_K_M | FileType.Q5_K_M if more:
                return GGMLType.Q6_K
            case FileType.IQ4_NL | FileType.IQ4_XS if early and not self._has_importance:
                return GGMLType.Q5_K
            case FileType.Q4_K_S if early:
                return GGMLType.Q5_K
            case FileType.Q4_0 if early and self._has_importance:
                return GGMLType.Q4_1
            case FileType.Q5_0 if early and self._has_importance:
                return GGMLType.Q5_1
        return mostly

    def _attention_output(self, mostly: GGMLType) -> GGMLType:
        if self._experts == 8:
            few = (
                FileType.Q2_K, FileType.Q3_K_S, FileType.Q3_K_M, FileType.IQ4_NL, FileType.Q4_K_S,
                FileType.Q4_K_M, FileType.IQ4_XS,
            )  # fmt: skip
            return GGMLType.Q5_K if self._kind in few else mostly
        more: Mapping[FileType, GGMLType] = {
            FileType.Q2_K: GGMLType.Q3_K, FileType.Q3_K_M: GGMLType.Q4_K, FileType.Q3_K_L: GGMLType.Q5_K,
        }  # fmt: skip
        return more.get(self._kind, mostly)


def fitting(wanted: GGMLType, columns: int) -> GGMLType:
    """Return `wanted`, or the nearest type whose blocks fill rows of `columns` values."""
    if columns % wanted.block_size:
        wanted = _SMALLER_BLOCKS.get(wanted, wanted)
    return GGMLType.F16 if columns % wanted.block_size else wanted


def _more_bits(number: int, count: int) -> bool:
    return number < count // 8 or number >= 7 * count // 8 or (number - count // 8) % 3 == 2


def _role(name: str) -> str:
    return next((role for part, role in _ROLES.items() if part in name), "")


def _layer(name: str) -> int:
    found = _LAYER.match(name)
    return int(found[1]) if found else -1


def _first(value: object) -> int:
    """Return a number of the metadata, the first of an array, or 0."""
    if isinstance(value, int):
        return int(value)
    try:
        return int(value[0])  # type: ignore[index]
    except (TypeError, IndexError, ValueError):
        return 0

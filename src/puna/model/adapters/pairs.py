"""Contents of an adapter file in any format: two small matrices for each tensor it changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from puna.architectures import ARCHITECTURES, UNKNOWN
from puna.config import env_bool
from puna.errors import InsufficientMemoryError, ModelError, UnsupportedModelError, shown
from puna.gguf import GGUFFile, open_gguf
from puna.machine import available_memory
from puna.model.memory import is_of_images

#: Suffixes of an adapter's tensor names.
A, B = ".lora_a", ".lora_b"
#: Key of an adapter's task. One for `AUDIO` is used with recordings, unless a request says otherwise.
TASK = "adapter.lora.task_name"
AUDIO = "audio"
#: Table of tokens, whose `a` is stored transposed, one row per token.
TABLE = "token_embd.weight"
#: Limit of values in one adapter, beyond any real one.
MAX_VALUES = 1 << 31
#: Larger values could make an adapter's output infinite. Other requests' rows take it 0 times, and infinity
#: times 0 is NaN.
_LARGEST = 1e15


@dataclass(frozen=True)
class Pair:
    """Matrices whose product `b @ a` is added to a weight W [out, in]: `a` [rank, in], `b` [out, rank].

    For experts they are [experts, rank, in] and [experts, out, rank]. The table of tokens counts as a weight
    [hidden, tokens].
    """

    a: NDArray[np.float32]
    b: NDArray[np.float32]

    @property
    def rank(self) -> int:
        return int(self.a.shape[-2])


Pairs = Mapping[str, Pair]  # by the names of tensors in the model's file
Factor = Callable[[str, int], float]


def read_gguf_adapter(path: Path, architecture: str) -> Pairs:
    """Read a GGUF adapter as llama.cpp's converter writes them, for a model of `architecture`.

    Its alpha is folded into the matrices. Raises `GGUFError`, `ModelError` for an adapter that is incomplete
    or for another architecture, and `UnsupportedModelError`.
    """
    with open_gguf(path) as file:
        _check_kind(file, architecture)
        if file.parameter_count > MAX_VALUES:
            raise ModelError(f"{path}: an adapter of {file.parameter_count} values; at most {MAX_VALUES}")
        alpha = file.metadata.get("adapter.lora.alpha", 0.0)
        if not isinstance(alpha, int | float) or not np.isfinite(alpha):
            raise ModelError(f"{path}: key 'adapter.lora.alpha' is {shown(alpha)}, not a number")
        halves = {
            name: file.array(name).copy()
            for name in file.tensors
            if not (is_of_images(name) and leaves_out(path, name))
        }
    if (rows := halves.get(TABLE + A)) is not None:
        halves[TABLE + A] = np.ascontiguousarray(rows.T)
    return paired(path, halves, lambda _, rank: float(alpha) / rank if alpha else 1.0)


def is_for_recordings(path: Path) -> bool:
    """Whether the file at `path` is an adapter for prompts with recordings. Raises `GGUFError`."""
    if path.suffix == ".safetensors" or not path.is_file():
        return False
    with open_gguf(path) as file:
        return file.metadata.get(TASK) == AUDIO


def leaves_out(path: Path, name: str) -> bool:
    """Return True if `PUNA_ADAPTERS_TEXT_ONLY` allows leaving out tensor `name` of a vision or audio tower.

    Raises `UnsupportedModelError` otherwise.
    """
    if env_bool("ADAPTERS_TEXT_ONLY"):
        return True
    raise UnsupportedModelError(
        f"{path}: tensor {shown(name)} belongs to a vision or audio tower, which adapters cannot "
        "change here: train the language model's layers alone, or set PUNA_ADAPTERS_TEXT_ONLY=1 to apply the "
        "adapter without such tensors"
    )


def check_room(path: Path, needed: int) -> None:
    """Raise `InsufficientMemoryError` unless `needed` more bytes are free."""
    if needed > (available := available_memory()):
        raise InsufficientMemoryError(
            f"{path}: reading the adapter takes {needed / 1e9:.1f} GB, and {available / 1e9:.1f} GB are free",
            needed,
            available,
        )


def paired(path: Path, halves: Mapping[str, NDArray[np.float32]], factor: Factor) -> Pairs:
    """Pair the matrices `halves`, named by tensor with the suffix `A` or `B`.

    Each product is scaled by `factor(tensor, rank)`. Raises `ModelError` and `UnsupportedModelError`.
    """
    found: dict[str, Pair] = {}
    for name, half in halves.items():
        tensor, mark, _ = name.rpartition(".")
        other = {A: B, B: A}.get(f".{name[len(tensor) + 1 :]}")
        if not mark or other is None:
            raise UnsupportedModelError(
                f"{path}: tensor {shown(name)} is not part of a low-rank adapter; only those can be applied"
            )
        if tensor + other not in halves:
            raise ModelError(f"{path}: tensor '{tensor}{other}' is missing beside '{name}'")
        if half.ndim not in (2, 3) or not half.size:
            raise UnsupportedModelError(
                f"{path}: tensor {shown(name)} is {list(half.shape)}; an adapter's are matrices, "
                "or one for each expert"
            )
        if not _are_sane(half):
            raise ModelError(
                f"{path}: tensor {shown(name)} has values that are not finite, or beyond {_LARGEST:g}; "
                "it is damaged"
            )
    for name, a in halves.items():
        if name.endswith(A):
            tensor = name.removesuffix(A)
            b, rank = halves[tensor + B], a.shape[-2]
            if b.shape[-1] != rank:
                raise ModelError(
                    f"{path}: '{tensor}{B}' is {list(b.shape)}, which does not fit '{name}' of "
                    f"{list(a.shape)}: the rank is {rank} here and {b.shape[-1]} there"
                )
            with np.errstate(over="ignore"):
                scaled = b * np.float32(factor(tensor, rank))
            if not _are_sane(scaled):
                raise ModelError(
                    f"{path}: alpha makes the values of '{tensor}{B}' larger than {_LARGEST:g}; it is damaged"
                )
            found[tensor] = Pair(np.ascontiguousarray(a), np.ascontiguousarray(scaled))
    if not found:
        raise ModelError(f"{path}: this adapter has no tensors")
    return found


def _are_sane(values: NDArray[np.float32]) -> bool:
    return bool(values.max() <= _LARGEST and values.min() >= -_LARGEST)


def _check_kind(file: GGUFFile, architecture: str) -> None:
    kind = file.metadata.get("general.type")
    if kind != "adapter":
        what = "a model" if kind is None else f"of type {shown(kind)}"
        raise ModelError(f"{file.path}: this file is {what}, not an adapter")
    if (kind := file.metadata.get("adapter.type", "lora")) != "lora":
        raise UnsupportedModelError(
            f"{file.path}: this is an adapter of type {shown(kind)}; only 'lora' can be applied"
        )
    if file.metadata.get("adapter.alora.invocation_tokens") is not None:
        raise UnsupportedModelError(
            f"{file.path}: this adapter begins at certain tokens (activated LoRA), which is not supported"
        )
    if file.architecture != architecture:
        raise ModelError(
            f"{file.path}: this adapter is for {shown(file.architecture)}, and the model is "
            f"'{architecture}'; use it with the model it was trained on"
        )


#: Number of experts, hidden size, width of an expert.
_Sizes = tuple[int, int, int]


def spread(
    path: Path,
    fused: Mapping[tuple[int, str], Pair],
    model: GGUFFile,
    factor: Factor,
) -> dict[str, NDArray[np.float32]]:
    """Split flat matrices, by layer and module, into one per expert, named by tensor with `A` or `B`.

    Each product is scaled by `factor(module, rank)`. Raises `ModelError` and `UnsupportedModelError`.
    """
    sizes = {place: _sizes(path, model, *place) for place in fused}
    ways = [
        swapped
        for swapped in (False, True)
        if all(_parameter(pair, sizes[place], swapped) for place, pair in fused.items())
    ]
    if not ways:
        names = ", ".join(
            f"{shown(module)} {list(p.a.shape)} {list(p.b.shape)}" for (_, module), p in fused.items()
        )
        raise ModelError(f"{path}: adapters of experts do not fit the model's: {names[:500]}")
    if len(ways) > 1:
        raise UnsupportedModelError(
            f"{path}: the shapes do not tell which side of the experts' matrices is which; convert the "
            "adapter to GGUF, with a tensor for each of gate, up and down"
        )
    found: dict[str, NDArray[np.float32]] = {}
    for (layer, module), flat in fused.items():
        count, _, width = sizes[layer, module]
        parameter = _parameter(flat, sizes[layer, module], ways[0])
        pair = _apart(flat, count, ways[0])
        with np.errstate(over="ignore"):
            b = pair.b * np.float32(factor(f"{module.removesuffix('.base_layer')}.{parameter}", pair.rank))
        parts = {"down": b}
        if parameter == "gate_up_proj":
            alternating = ARCHITECTURES.get(model.architecture, UNKNOWN).alternating_experts
            parts = {
                "gate": b[:, ::2] if alternating else b[:, :width],
                "up": b[:, 1::2] if alternating else b[:, width:],
            }
        for name, rows in parts.items():
            tensor = f"blk.{layer}.ffn_{name}_exps.weight"
            if tensor + A in found:
                raise ModelError(f"{path}: {shown(module)} changes '{tensor}' a second time")
            found[tensor + A], found[tensor + B] = pair.a, rows
    return found


def _sizes(path: Path, model: GGUFFile, layer: int, module: str) -> _Sizes:
    down = model.tensors.get(f"blk.{layer}.ffn_down_exps.weight")
    if down is None or len(down.shape) != 3 or 0 in down.shape:
        raise UnsupportedModelError(
            f"{path}: {shown(module)} changes experts, which the model does not have there"
        )
    count, hidden, width = down.shape
    return count, hidden, width


def _parameter(pair: Pair, sizes: _Sizes, swapped: bool) -> str | None:
    """Return the parameter that this pair changes if its sides were `swapped`; None if it cannot be."""
    count, hidden, width = sizes
    if pair.a.ndim != 2 or pair.b.ndim != 2 or len(pair.a) % count or pair.b.shape[1] != len(pair.a):
        return None
    if not pair.a.size or not pair.b.size:
        return None
    sides = pair.a.shape[1], pair.b.shape[0]
    known = {(hidden, 2 * width): "gate_up_proj", (width, hidden): "down_proj"}
    return known.get(sides[::-1] if swapped else sides)


def _apart(pair: Pair, count: int, swapped: bool) -> Pair:
    """Split a flat pair into one per expert."""
    a = pair.a.reshape(count, -1, pair.a.shape[1])
    b = pair.b.reshape(len(pair.b), -1, count).transpose(2, 0, 1)
    return Pair(b.swapaxes(1, 2), a.swapaxes(1, 2)) if swapped else Pair(a, b)

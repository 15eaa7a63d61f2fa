"""Adapters of parameters that hold all experts: `target_parameters` of PEFT.

PEFT flattens what experts have: A is [experts * rank, in], and B [out, rank * experts], the expert's number
changing fastest. It does not say which parameter they change, nor which of its sides it took for the inputs,
which its releases do not agree on: the shapes tell.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from puna.errors import ModelError, UnsupportedModelError, shown
from puna.gguf import GGUFFile
from puna.model.adapters.pairs import A, B, Factor, Pair
from puna.model.published import ALTERNATING

#: Experts, their hidden size and their width.
_Sizes = tuple[int, int, int]


def spread(
    path: Path,
    fused: Mapping[tuple[int, str], Pair],
    model: GGUFFile,
    factor: Factor,
) -> dict[str, NDArray[np.float32]]:
    """The matrices of each expert, by tensors with `A` and `B` behind, of flat ones by layer and module.

    `factor(module, rank)` is what their product counts. Raises `ModelError` and `UnsupportedModelError`.
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
            alternating = model.architecture in ALTERNATING
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
    """Which parameter this changes if it was `swapped`; None: that cannot be."""
    count, hidden, width = sizes
    if pair.a.ndim != 2 or pair.b.ndim != 2 or len(pair.a) % count or pair.b.shape[1] != len(pair.a):
        return None
    if not pair.a.size or not pair.b.size:
        return None
    sides = pair.a.shape[1], pair.b.shape[0]
    known = {(hidden, 2 * width): "gate_up_proj", (width, hidden): "down_proj"}
    return known.get(sides[::-1] if swapped else sides)


def _apart(pair: Pair, count: int, swapped: bool) -> Pair:
    """Of each expert."""
    a = pair.a.reshape(count, -1, pair.a.shape[1])
    b = pair.b.reshape(len(pair.b), -1, count).transpose(2, 0, 1)
    return Pair(b.swapaxes(1, 2), a.swapaxes(1, 2)) if swapped else Pair(a, b)

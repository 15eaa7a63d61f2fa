"""Sizes of indexers in the files of several architectures (`puna.nn.indexer`)."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from puna.gguf.metadata import check_extent, flags, invalid, required

if TYPE_CHECKING:
    from puna.gguf import GGUFFile

_HEADS: Final = "attention.indexer.head_count"
_DIM: Final = "attention.indexer.key_length"
_TYPES: Final = "attention.indexer.types"


def read_indexer(file: GGUFFile) -> tuple[int, int]:
    """Return the number of an indexer's heads, and the size of its keys. Raises `ModelError`."""
    return required(file, _HEADS), required(file, _DIM)


def check_rotated(file: GGUFFile, rotated: int, dim: int) -> None:
    """Raise `ModelError` if more values of a head are `rotated` than an indexer's key has."""
    if rotated > dim:
        complaint = f"is {rotated}, more than the {dim} numbers of an indexer's key"
        raise invalid(file, "rope.dimension_count", complaint)


def check_indexer(
    file: GGUFFile,
    layer: int,
    heads: int,
    dim: int,
    *,
    query: str = "indexer.attn_q_b",
    norm: str = "indexer.k_norm",
) -> None:
    """Raise `ModelError` unless the tensors `query` and `norm` of a layer have an indexer's sizes.

    Memory is promised by these sizes before tensors are loaded.
    """
    check_extent(file, f"blk.{layer}.{norm}.weight", 0, {_DIM: dim})
    check_extent(file, f"blk.{layer}.{query}.weight", 0, {_HEADS: heads, _DIM: dim})


def within_context(file: GGUFFile, most: int, group: int = 1) -> int:
    """Return the most positions that can be chosen in whole groups: `most`, or those that the context has."""
    context = required(file, "context_length", most)
    return min(most, -(-context // group) * group)


def stated_choosers(file: GGUFFile, layers: int) -> tuple[bool, ...] | None:
    """Return for each layer whether it has an indexer; None if the file does not say.

    Raises `ModelError` if the first has none, since it has no other's choice to use.
    """
    if file.get(_TYPES) is None:
        return None
    found = flags(file, _TYPES, layers)
    if not found[0]:
        raise invalid(file, _TYPES, "has no indexer for the first layer, which has no other's choice to use")
    return found


def lenders_of(chooses: Iterable[bool]) -> list[int]:
    """Return for each layer the number of the latest layer up to it that has an indexer."""
    return list(accumulate((index if own else 0 for index, own in enumerate(chooses)), max))

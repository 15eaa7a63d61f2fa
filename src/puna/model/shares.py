"""The share of each layer that one process computes, when others compute the rest of the same layers.

Heads and the inner values of feed-forward networks are divided among ranks. So a rank has some rows of the
matrices that make them and the same columns of those that read them, whose results are summed; rows of the
output matrix are divided too, and everything else is in all ranks.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from puna.errors import UnsupportedModelError, shown
from puna.ops import Weight

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from puna.gguf import TensorInfo

#: Tensors whose rows are divided, and their biases.
_BY_ROWS: Final = frozenset(("attn_q", "attn_k", "attn_v", "ffn_gate", "ffn_up", "output"))
#: Tensors whose columns are divided; their biases are not.
_BY_COLUMNS: Final = frozenset(("attn_output", "ffn_down"))
#: Tensors that all ranks have; some files have the last two, which nobody reads.
_WHOLE: Final = frozenset(
    (
        "token_embd", "attn_norm", "ffn_norm", "attn_q_norm", "attn_k_norm", "output_norm",
        "rope_freqs", "rope_factors_short", "rope_factors_long", "attn_rot_embd", "rope.freqs",
    )
)  # fmt: skip
_LAYER: Final = re.compile(r"blk\.\d+\.")


@dataclass(frozen=True)
class ModelShare:
    """The part of a model that rank number `rank` of `count` has."""

    rank: int
    count: int

    def bounds(self, size: int, rank: int | None = None) -> tuple[int, int]:
        """Return where the part of this rank, or of `rank`, of `size` rows or columns begins and ends."""
        rank = self.rank if rank is None else rank
        return size * rank // self.count, size * (rank + 1) // self.count

    def sizes(self, size: int) -> list[int]:
        """Return how many of `size` rows each rank has."""
        return [end - begin for begin, end in (self.bounds(size, rank) for rank in range(self.count))]

    def shape(self, name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of this rank's part of the tensor `name`, which has `shape` in the file."""
        axis = _axis(name)
        if axis is None:
            return shape
        return *shape[:axis], self.sizes(shape[axis])[self.rank], *shape[axis + 1 :]

    def tensor(self, tensor: TensorInfo) -> TensorInfo:
        """Return the directory entry that this rank's part of a tensor would have."""
        shape = self.shape(tensor.name, tensor.shape)
        return replace(tensor, shape=shape, nbytes=tensor.type.nbytes(math.prod(shape)))

    def matrix(self, whole: Weight, shape: tuple[int, ...]) -> Weight:
        """Return this rank's part of a matrix, which has `shape`, and let go of the rest of the file's bytes.

        A table of embeddings is whole, unless it stands in for a missing output matrix.
        """
        axis = _axis(whole.name)
        if axis is None and shape[0] == whole.shape[0]:
            return whole
        if axis != 1:
            return whole.row_range(*self.bounds(whole.shape[0]))
        part = whole.column_range(*self.bounds(whole.shape[1]))
        whole.drop_data()
        return part

    def vector(self, name: str, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return this rank's part of a vector."""
        return values if _axis(name) is None else values[slice(*self.bounds(len(values)))]

    def check(self, tensors: Iterable[TensorInfo], kv_heads: Sequence[int]) -> None:
        """Raise `UnsupportedModelError` unless tensors and each layer's key heads can be divided."""
        for heads in kv_heads:
            if heads % self.count:
                raise UnsupportedModelError(
                    f"its {heads} heads of keys and values cannot be divided among {self.count} GPUs"
                )
        for tensor in tensors:
            axis, role = _axis(tensor.name), _role(tensor.name)
            known = role in _BY_ROWS | _BY_COLUMNS | _WHOLE
            if not known or (axis is not None and len(tensor.shape) != 2 - tensor.name.endswith(".bias")):
                raise UnsupportedModelError(f"nothing says how to divide its tensor {shown(tensor.name)}")
            if axis is None or role == "output":  # of which ranks may have more or less
                continue
            block = tensor.type.block_size if axis else 1
            blocks = tensor.shape[axis] // block
            if blocks % self.count:
                raise UnsupportedModelError(
                    f"the {tensor.shape[axis]} {'columns' if axis else 'rows'} of its tensor "
                    f"{shown(tensor.name)} cannot be divided among {self.count} GPUs"
                    + (f": {tensor.type.name} has blocks of {block}" if block > 1 else "")
                )


def _role(name: str) -> str:
    """Return what a tensor is for, as `attn_q` of `blk.3.attn_q.weight`."""
    return _LAYER.sub("", name, count=1).removesuffix(".weight").removesuffix(".bias")


def _axis(name: str) -> int | None:
    """Return the axis by which a tensor is divided: 0 for rows, 1 for columns, None if it is not."""
    role = _role(name)
    if role in _BY_ROWS:
        return 0
    return 1 if role in _BY_COLUMNS and not name.endswith(".bias") else None

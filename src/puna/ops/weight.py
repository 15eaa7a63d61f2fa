"""A weight matrix as the file has it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from puna.gguf import GGMLType


class Weight:
    """A matrix [out, in] in one of GGUF's block types."""

    def __init__(self, name: str, data: np.ndarray, type: GGMLType, shape: tuple[int, ...]) -> None:
        expected = type.nbytes(int(np.prod(shape)))
        if data.nbytes != expected:
            raise ValueError(
                f"weight '{name}': {data.nbytes} bytes for shape {list(shape)}, expected {expected}"
            )
        self.name = name
        self.type = type
        self.shape = shape
        self.nbytes = data.nbytes
        self.data = data

    @classmethod
    def from_tensor(cls, name: str, tensor: Tensor) -> Weight:
        from puna.gguf import GGMLType

        values = tensor.detach().float().contiguous().numpy()
        return cls(name, values.reshape(-1).view(np.uint8), GGMLType.F32, tuple(tensor.shape))

    def pack(self) -> None:
        """Bring the matrix into the layout the kernels read; the reference reads it as it is."""

    def dequantize(self) -> Tensor:
        """All values, float32 [out, in]."""
        from puna.gguf import dequantize

        return torch.from_numpy(dequantize(self.data, self.type).reshape(self.shape))

    def rows(self, indices: Tensor) -> Tensor:
        """Some rows, float32 [len(indices), in]."""
        from puna.gguf import dequantize

        stored = self.data.reshape(self.shape[0], -1)[indices.numpy()]
        return torch.from_numpy(dequantize(stored.reshape(-1), self.type).reshape(-1, self.shape[1]))

"""Random matrices of each type, packed on a device, and their exact values."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from puna.gguf import GGMLType
from puna.ops.gpu.packed import PackedMatrix
from tests.ops.block_bytes import random_bytes, reference_values


def random_matrix(
    kind: GGMLType, rows: int, columns: int, device: torch.device, factor: float = 0.01
) -> tuple[PackedMatrix, Tensor]:
    """Return a matrix [rows, columns], and its values in float64 on the host.

    `factor` is about what the scales of its blocks are.
    """
    data = random_bytes(kind, rows, columns, np.random.default_rng(int(kind)), factor)
    values = torch.from_numpy(reference_values(data, kind, rows).astype(np.float64))
    return PackedMatrix.pack(torch.from_numpy(data).to(device), kind, rows, columns), values


def relative_error(got: Tensor, exact: Tensor) -> float:
    """Return the root of the mean square error, relative to that of `exact`."""
    assert got.shape == exact.shape
    assert got.dtype == torch.float32
    if not exact.numel():
        return 0.0
    return float(((got.cpu().double() - exact).square().mean() / exact.square().mean()).sqrt())

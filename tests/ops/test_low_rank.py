"""Low-rank adapters beside a product, on every backend, against float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from puna.ops import LowRankWeights
from tests.ops.torch_ops import TorchOps

pytestmark = pytest.mark.kernels_of("linear")


@pytest.mark.parametrize("rows", [0, 1, 5])
def test_each_row_takes_its_own_share_of_each_adapter(ops: TorchOps, rows: int) -> None:
    torch.default_generator.manual_seed(3)
    y, x, scales = torch.randn(rows, 20), torch.randn(rows, 30), torch.randn(rows, 4)
    scales[1:3, 1] = 0
    scales[:, 2] = 0.5
    scales[:, 3] = 0  # loaded, but used by no row
    adapters, exact = LowRankWeights(), y.double()
    for number in (1, 2, 3):
        a, b = torch.randn(number + 2, 30), torch.randn(20, number + 2)
        adapters.add(number, "w", a.numpy(), b.numpy())
        ops.pack_low_rank(adapters)
        exact = exact + (x.double() @ a.double().T * scales[:, number, None]) @ b.double().T
    found = ops.add_low_rank(y.clone(), x, adapters, scales)
    assert found.shape == exact.shape
    np.testing.assert_allclose(found.numpy(), exact.numpy(), atol=1e-4)

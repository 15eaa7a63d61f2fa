"""A plugin for pytest: storage moves as it grows, as on devices without virtual memory.

pytest -p tests.ops.gpu.moving
"""

from __future__ import annotations

import torch

from puna.ops.gpu import planes


def pytest_configure() -> None:
    planes.can_reserve = _cannot_reserve
    planes.STEP = 1  # byte


def _cannot_reserve(device: torch.device) -> bool:
    return False

"""How many threads operations use: the kernels' own pool, and torch's beside it."""

from __future__ import annotations

import torch

try:
    from puna import _native
except ImportError:
    _native = None  # type: ignore[assignment]


def threads() -> int:
    """Threads the operations use: physical cores within the control group's quota, unless set."""
    return torch.get_num_threads() if _native is None else _native.threads()


def set_threads(count: int = 0) -> None:
    """Use `count` threads from now on, in the kernels and in torch; 0 keeps the kernels' number for both.

    Raises `ValueError` for negative numbers.
    """
    if count < 0:
        raise ValueError(f"the number of threads must be positive, or 0 for automatic, not {count}")
    if count and _native is not None:
        _native.set_threads(count)
    torch.set_num_threads(count or threads())

"""How many threads operations use: the kernels' own pool, and torch's beside it."""

from __future__ import annotations

import threading

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


def use_one_torch_thread() -> None:
    """Have torch use one thread for what the calling thread asks of it from now on."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    # OpenMP keeps a number for each thread, torch one for threads that are yet to come: that is set back.
    setter = threading.Thread(target=torch.set_num_threads, args=(before,))
    setter.start()
    setter.join()


def keep_freed_memory() -> None:
    """Have this process keep freed memory for the next time, as one that computes does well to.

    Otherwise the large intermediate results of prompts go back to the system in every layer, which clears
    the same pages again and again. Up to 256 MiB stay with the process.
    """
    if _native is not None:
        _native.keep_freed_memory()

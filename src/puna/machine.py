"""What the machine has left, as far as this process may use it."""

from __future__ import annotations

from pathlib import Path

import psutil


def available_memory() -> int:
    """Bytes this process may still take: free memory, or what its control group leaves, if that is less."""
    available = int(psutil.virtual_memory().available)
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        if limit != "max":
            used = int(Path("/sys/fs/cgroup/memory.current").read_text())
            available = min(available, max(0, int(limit) - used))
    except (OSError, ValueError):
        pass  # no control group, or not ours to read
    return available


def process_memory(pid: int | None = None) -> int:
    """Bytes of memory a process has (this one by default); 0 when it has ended."""
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return 0

"""Collectives of torch.distributed: NCCL between GPUs, Gloo between processors that stand in for them."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from puna.errors import UnavailableError

#: Variables that keep the ranks' connections, which have no secret, within the machine.
_INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
_LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"


class ProcessGroup:
    """`puna.ops.collectives.Collectives` of the device `place`; torch allows a process one group."""

    def __init__(self, place: torch.device, meeting: Path, rank: int, count: int, timeout_s: float) -> None:
        """Wait for the other ranks at the file `meeting`; each operation waits at most `timeout_s`.

        Raises `UnavailableError` if torch cannot do it or has a group already, and `RuntimeError` if the
        other ranks do not come.
        """
        if not dist.is_available():
            raise UnavailableError("tensor parallelism needs torch.distributed, which this torch lacks")
        if dist.is_initialized():
            raise UnavailableError(
                "tensor parallelism needs torch.distributed, which this process uses for something else"
            )
        for name in _INTERFACES:
            os.environ.setdefault(name, _LOOPBACK)
        on_gpu = place.type == "cuda"
        dist.init_process_group(
            "nccl" if on_gpu else "gloo",
            meeting.as_uri(),
            rank=rank,
            world_size=count,
            timeout=timedelta(seconds=timeout_s),
            device_id=place if on_gpu else None,
        )
        self.rank = rank

    def sum(self, x: Tensor) -> Tensor:
        if x.numel():
            dist.all_reduce(x)
        return x

    def join(self, x: Tensor, widths: Sequence[int]) -> Tensor:
        if not len(x):
            return x.new_empty(0, sum(widths))
        padded = F.pad(x, (0, max(widths) - x.shape[1]))
        parts = [torch.empty_like(padded) for _ in widths]
        dist.all_gather(parts, padded)
        return torch.cat([part[:, :width] for part, width in zip(parts, widths, strict=True)], -1)

    def abort(self) -> None:
        if dist.is_initialized() and dist.group.WORLD is not None:
            with contextlib.suppress(RuntimeError):  # Gloo cannot
                dist.group.WORLD.abort()

    def close(self) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()

"""Collectives of torch.distributed: NCCL between GPUs, Gloo between processors that stand in for them."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Final

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from puna.errors import UnavailableError

_LOOPBACK: Final = "lo0" if sys.platform == "darwin" else "lo"
#: Variables, unless they are set: the ranks' connections, which have no secret, stay within the machine, and
#: torch neither ends the process when NCCL waits too long, nor looks for other ranks' reports in the file.
_VARIABLES: Final = {
    "GLOO_SOCKET_IFNAME": _LOOPBACK,
    "NCCL_SOCKET_IFNAME": f"={_LOOPBACK}",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
}
#: How long leaving a group may take: NCCL may wait for ranks that are gone.
_LEAVE_S: Final = 10.0


class ProcessGroup:
    """`puna.ops.collectives.Collectives` of the device `place`; torch allows a process one group."""

    def __init__(self, place: torch.device, meeting: Path, rank: int, count: int, timeout_s: float) -> None:
        """Wait for the other ranks at the file `meeting`, and with Gloo in operations, at most `timeout_s`.

        Raises `UnavailableError` if torch cannot do it or has a group already, and `RuntimeError` if the
        other ranks do not come.
        """
        if not dist.is_available():
            raise UnavailableError("tensor parallelism needs torch.distributed, which this torch lacks")
        if dist.is_initialized():
            raise UnavailableError(
                "tensor parallelism needs torch.distributed, which this process uses for something else"
            )
        for name, value in _VARIABLES.items():
            os.environ.setdefault(name, value)
        on_gpu, timeout = place.type == "cuda", timedelta(seconds=timeout_s)
        # Not by its URL, whose path could have no spaces.
        store = dist.FileStore(str(meeting), count)  # type: ignore[attr-defined]
        store.set_timeout(timeout)
        dist.init_process_group(
            "nccl" if on_gpu else "gloo",
            store=store,
            rank=rank,
            world_size=count,
            timeout=timeout,
            device_id=place if on_gpu else None,
        )
        self.rank = rank
        self._group = dist.group.WORLD

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
        if self._group is not None:
            with contextlib.suppress(RuntimeError):  # not every backend can
                self._group.abort()

    def close(self) -> None:
        if self._group is None or dist.group.WORLD is not self._group:
            return  # this group has been left, and there may be another
        leaving = threading.Thread(target=self._leave, name="puna-leave", daemon=True)
        try:
            leaving.start()
        except RuntimeError:  # the interpreter ends, and starts no threads
            self._leave()
        else:
            leaving.join(_LEAVE_S)

    def _leave(self) -> None:
        self.abort()  # destroying alone would wait until all ranks do it, and they may be gone
        with contextlib.suppress(RuntimeError):
            dist.destroy_process_group()

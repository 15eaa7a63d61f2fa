"""Models with tensor parallelism whose ranks are threads of this process, with real connections."""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np

from puna.errors import ModelLostError
from puna.model.load import LoadedModel, LoadSettings, load_model, load_share
from puna.model.parallel.model import ParallelModel, join_ranks
from puna.model.parallel.ranks import OtherRank, OtherRanks
from puna.model.parallel.wire import Meet, RankConnection, ShareLoaded, ToRank
from puna.model.parallel.worker import Orders, RankWorker
from puna.model.placement import DeviceStage
from puna.model.shares import ModelShare
from puna.ops import Backend
from tests.waiting import PATIENCE_S


class Meeting:
    """A place where threads put arrays and wait for those of the others."""

    def __init__(self, count: int) -> None:
        self.given: list[Any] = [None] * count
        self.barrier = threading.Barrier(count, timeout=PATIENCE_S)


class ThreadGroup:
    """`puna.ops.collectives.Collectives` of a thread."""

    def __init__(self, meeting: Meeting, ops: Backend, rank: int) -> None:
        self.rank = rank
        self._meeting = meeting
        self._ops = ops
        self.calls = 0

    def sum(self, x: Any) -> Any:
        first, *others = self._exchange(x)
        for each in others:
            first = first + each
        return self._ops.array(first)

    def join(self, x: Any, widths: Sequence[int]) -> Any:
        found = self._exchange(x)
        assert [each.shape[1] for each in found] == list(widths)
        return self._ops.array(np.concatenate(found, 1))

    def abort(self) -> None:
        self._meeting.barrier.abort()

    def close(self) -> None:
        pass

    def _exchange(self, x: Any) -> list[Any]:
        self.calls += 1
        meeting = self._meeting
        meeting.given[self.rank] = np.array(self._ops.numpy(x))
        try:
            meeting.barrier.wait()
            found = list(meeting.given)
            meeting.barrier.wait()
        except threading.BrokenBarrierError:
            raise RuntimeError("a rank is gone") from None
        return found


class SilentGroup(ThreadGroup):
    """A group whose operations end with nonsense when it is aborted, as those of NCCL do."""

    def sum(self, x: Any) -> Any:
        try:
            return super().sum(x)
        except RuntimeError:
            return x

    def join(self, x: Any, widths: Sequence[int]) -> Any:
        try:
            return super().join(x, widths)
        except RuntimeError:
            return self._ops.array(np.zeros((len(x), sum(widths)), np.float32))


@dataclasses.dataclass
class Parallel:
    """A model, its first rank's group, and what its ranks do."""

    loaded: LoadedModel
    group: ThreadGroup
    shares: list[Any]  # the models of the other ranks
    losses: list[ModelLostError]

    @property
    def model(self) -> ParallelModel:
        assert isinstance(self.loaded.model, ParallelModel)
        return self.loaded.model


@contextmanager
def parallel(
    path: Path, count: int, ops: Backend, kind: type[ThreadGroup] = ThreadGroup
) -> Iterator[Parallel]:
    """Load a model that `count` ranks compute with `ops`; rank 0 has a group of `kind`."""
    with ExitStack() as stack:
        whole = load_model(path, stages=[DeviceStage(ops, 0, 0)])
        meeting = Meeting(count)
        others, shares = [], []
        for rank in range(1, count):
            ours, theirs = socket.socketpair()
            share = load_share(path, LoadSettings(), ModelShare(rank, count), ops)
            join_ranks(share.model, ThreadGroup(meeting, ops, rank))
            shares.append(share.model)
            others.append(OtherRank(rank, ours))
            connection = RankConnection(theirs, ToRank)
            worker = RankWorker(share.model, connection, rank)
            thread = threading.Thread(target=_work, args=(worker, connection))
            thread.start()
            stack.callback(thread.join, PATIENCE_S)
        first = load_share(path, LoadSettings(), ModelShare(0, count), ops).model
        group = kind(meeting, ops, 0)
        join_ranks(first, group)
        ranks = OtherRanks(others)
        losses: list[ModelLostError] = []
        ranks.on_loss = losses.append
        ranks.meet(lambda _: group)
        ranks.loaded = [
            ShareLoaded(weight_bytes=0, room_bytes=1 << 30, device=f"GPU {each.rank}") for each in others
        ]
        ranks.room_bytes = [each.room_bytes for each in ranks.loaded]
        model = ParallelModel(first, ranks)
        stack.callback(model.close)
        yield Parallel(dataclasses.replace(whole, model=model), group, shares, losses)


def _work(worker: RankWorker, connection: RankConnection) -> None:
    orders: Orders = SimpleQueue()

    def receive() -> None:
        with contextlib.suppress(OSError):
            while (received := connection.receive()) is not None:
                if not isinstance(received[0], Meet):  # they have met
                    orders.put(received[0])
        orders.put(None)

    threading.Thread(target=receive, daemon=True).start()
    with contextlib.suppress(OSError):  # rank 0 has given up first
        worker.run(orders)
    connection.close()

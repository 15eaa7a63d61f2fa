"""The command `python -m puna.model.rank FD`, the process of a rank other than 0, started by rank 0.

FD is its end of a socket pair. When the other end closes, it ends at once, whatever it is doing.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
from pathlib import Path
from queue import SimpleQueue
from typing import NoReturn

from puna.errors import InsufficientMemoryError, RunnerError
from puna.kvcache.types import KVTypes
from puna.lines import LineFormatter
from puna.model.load import LoadedStage, LoadSettings, load_share
from puna.model.parallel.model import join_ranks
from puna.model.parallel.wire import (
    PATIENCE_S,
    LoadShare,
    Meet,
    RankConnection,
    ShareLoaded,
    ShareRefused,
    ToRank,
)
from puna.model.parallel.worker import Orders, RankWorker, reason_of, report
from puna.model.shares import ModelShare
from puna.ops import backends

log = logging.getLogger("puna.parallel")


def serve(owner: RankConnection) -> None:
    """Load a share of a model, meet the other ranks, and work for them until rank 0 is gone."""
    orders: Orders = SimpleQueue()
    threading.Thread(target=_receive, args=(owner, orders), name="puna-orders", daemon=True).start()
    request = orders.get()
    if not isinstance(request, LoadShare):
        raise RunnerError(f"the first message must be LoadShare, not {type(request).__name__}")
    loaded = _load(request, owner)
    if loaded is None:
        return
    ops = loaded.model.ops
    owner.send(
        ShareLoaded(
            weight_bytes=loaded.weight_bytes,
            room_bytes=loaded.model.cache_room(request.reserved),
            device=ops.device,
        )
    )
    meet = orders.get()
    if not isinstance(meet, Meet):
        raise RunnerError(f"the second message must be Meet, not {type(meet).__name__}")
    try:
        group = ops.join_ranks(Path(meet.meeting), request.rank, request.count, PATIENCE_S)
    except Exception as error:
        report(error, owner, request.rank)
        return
    join_ranks(loaded.model, group)
    RankWorker(loaded.model, owner, request.rank, reserved=request.reserved).run(orders)


def _load(request: LoadShare, owner: RankConnection) -> LoadedStage | None:
    """Return the share, or None after telling why it cannot be loaded."""
    settings = LoadSettings(
        context=request.context,
        parallel=request.parallel,
        batch_size=request.batch_size,
        reserved=request.reserved,
        cache_types=KVTypes.parse(request.cache_types),
        prediction_heads=request.prediction_heads,
    )
    try:
        gpus = backends()
        if request.device >= len(gpus):
            raise RunnerError(f"there is no GPU {request.device}")
        return load_share(
            request.path, settings, ModelShare(request.rank, request.count), gpus[request.device]
        )
    except InsufficientMemoryError as error:
        owner.send(ShareRefused(reason=f"{error}", needed=error.needed, available=error.available))
    except Exception as error:
        owner.send(ShareRefused(reason=reason_of(error)))
    return None


def _receive(owner: RankConnection, orders: Orders) -> NoReturn:
    try:
        while (received := owner.receive()) is not None:
            message: ToRank = received[0]
            orders.put(message)
    except (OSError, RunnerError) as error:
        log.info("the connection with rank 0 broke: %s", error)
    os._exit(0)  # an operation may wait for rank 0


def main() -> None:
    number, *others = sys.argv[1:] or [""]
    if not number.isdigit() or others:
        sys.exit("usage: python -m puna.model.rank FD (started by Puna, not by hand)")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for rank 0, which then closes our socket
    output = logging.StreamHandler(sys.stderr)
    output.setFormatter(LineFormatter("%(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[output])
    status = 0
    try:
        serve(RankConnection(socket.socket(fileno=int(number)), ToRank))
    except Exception:
        log.exception("a rank has failed")
        status = 1
    os._exit(status)  # at its usual end, torch may wait for other ranks


if __name__ == "__main__":
    main()

"""Messages between rank 0 and each other rank, as `puna.model.split.wire` sends them."""

from __future__ import annotations

from typing import Final

from puna.model.split.wire import (
    Broken,
    Compact,
    CopyPrefix,
    LimitCells,
    MakeCache,
    PartLink,
    Pass,
    Remove,
    StageMessage,
    Undo,
)

#: How long ranks wait for one another when they meet, and in an operation if the backend has a clock.
PATIENCE_S: Final = 120.0


class LoadShare(StageMessage, frozen=True):
    """The first message: load a share of the model at `path`. Answered by `ShareLoaded` or `ShareRefused`."""

    path: str
    rank: int
    count: int
    device: int  # its number in `puna.ops.backends`
    context: int
    parallel: int
    batch_size: int
    reserved: int
    cache_types: str
    prediction_heads: bool


class ShareLoaded(StageMessage, frozen=True):
    """A rank has its weights."""

    weight_bytes: int
    room_bytes: int  # for its cache
    device: str


class CacheMade(StageMessage, frozen=True):
    """The answer to `MakeCache`."""

    room_bytes: int  # for the cache, with what it takes already, now that the rank has everything else


class ShareRefused(StageMessage, frozen=True):
    """A rank cannot load its share, for lack of memory if bytes are `needed`."""

    reason: str
    needed: int = 0
    available: int = 0


class Meet(StageMessage, frozen=True):
    """Meet the other ranks at the file `meeting`."""

    meeting: str


class Step(StageMessage, frozen=True):
    """Make room for a batch, and compute it together with the other ranks."""

    batch: Pass
    logits: bool  # whether they are computed, too
    predicted: bytes | None = None  # int64: the results whose logits are wanted; None: all


ToRank = LoadShare | Meet | MakeCache | Step | Undo | Remove | CopyPrefix | LimitCells | Compact
FromRank = ShareLoaded | ShareRefused | CacheMade | Broken

RankConnection = PartLink[ToRank]
OwnerConnection = PartLink[FromRank]

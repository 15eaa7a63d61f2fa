"""Messages between the stages of a split model, and the connections that carry them.

A frame is a header, a message in msgpack, and float32 arrays as they are in memory. The stages form a ring: a
connection only carries frames from one stage to the next, and from the last one back to the first.
"""

from __future__ import annotations

import contextlib
import math
import socket
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import msgspec
import numpy as np

from puna.batch import Batch, BatchArrays, ImagePart, ImageStates
from puna.errors import RunnerError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from puna.ops import Backend

#: Bytes of the message, and of the arrays.
_HEADER: Final = struct.Struct("<4sIQ")
_MAGIC: Final = b"puna"
#: Maximum bytes of a message, and of its arrays.
MAX_MESSAGE_BYTES: Final = 16 << 20
MAX_ARRAYS_BYTES: Final = 4 << 30
_FLOAT_BYTES: Final = 4


class StageMessage(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """Base of messages between stages. Those that are not answered are commands for a cache."""

    arrays: list[tuple[int, int]] = []  # rows and columns of each that follows


class Greeting(StageMessage, frozen=True):
    """The first message, to which each stage adds its facts. The last one passes it back."""

    kernels: list[str] = []  # that each further stage computes with
    room_bytes: list[int] = []  # memory that each has for its cache


class MakeCache(StageMessage, frozen=True):
    """Replace the cache by a new one. The last stage passes this back, once all have done so."""

    sequences: int
    context: int
    capacity: int
    types: str


class StageSpent(msgspec.Struct, frozen=True, array_like=True):
    """The cost of a pass for a stage."""

    compute_us: int
    received_bytes: int  # by all messages so far


class Pass(StageMessage, frozen=True):
    """Make room for a batch, and run the layers of this stage on the arrays.

    With `images`, further arrays are the states of the payloads. `scales` are the strengths of adapters, by
    their numbers. Each further stage adds to `spent`.
    """

    tokens: bytes  # int32 [rows]
    positions: bytes  # int32 [rows]
    sequences: bytes  # int32 [rows]
    outputs: bytes | None  # int64 [wanted]
    whole: bool  # whether all rows are wanted from the last layer
    spans: list[tuple[int, int]] = []
    drafts: dict[int, int] = {}
    places: bytes | None = None  # int32 [rows, axes]
    axes: int = 0  # 0: `places` are [rows]
    payloads: list[tuple[int, int]] = []  # row and entries
    images: bool = False
    scales: dict[int, bytes] = {}  # float32 [rows]
    spent: list[StageSpent] = []


class Rows(StageMessage, frozen=True):
    """The result of a `Pass`, from the last stage to the first."""

    spent: list[StageSpent]


class Undo(StageMessage, frozen=True):
    """Undo the last `Pass`; or make and undo room for `batch`, whose pass failed before it came this far."""

    batch: Pass | None = None


class Remove(StageMessage, frozen=True):
    """See `puna.kvcache.cache.Cache.remove`."""

    sequence: int
    begin: int
    end: int | None


class CopyPrefix(StageMessage, frozen=True):
    """See `puna.kvcache.cache.Cache.copy_prefix`."""

    source: int
    target: int
    count: int


class LimitCells(StageMessage, frozen=True):
    """See `puna.kvcache.cache.Cache.limit_cells`."""

    count: int


class Compact(StageMessage, frozen=True):
    """See `puna.kvcache.cache.Compacting.compact`."""

    limit: int


class Broken(StageMessage, frozen=True):
    """The last message of a stage that cannot go on."""

    stage: int
    reason: str


AnyMessage = Greeting | MakeCache | Pass | Rows | Undo | Remove | CopyPrefix | LimitCells | Compact | Broken

Arrays = list["NDArray[np.float32]"]  # [rows, columns] each

Message = TypeVar("Message", bound=StageMessage)


class Absent:
    """The payload of a row whose states are in other stages."""

    def __init__(self, entries: int) -> None:
        self._entries = entries

    def __len__(self) -> int:
        return self._entries


def packed(batch: Batch, *, whole: bool, images: bool) -> tuple[Pass, Arrays]:
    """Return a batch as a message, and the states of its images if stages need them."""
    places = batch.places
    states = [_states(payload) for _, payload in batch.payloads] if images else []
    message = Pass(
        tokens=batch.tokens.tobytes(),
        positions=batch.positions.tobytes(),
        sequences=batch.sequences.tobytes(),
        outputs=None if batch.outputs is None else batch.outputs.tobytes(),
        whole=whole,
        spans=batch.spans,
        drafts=batch.drafts,
        places=None if places is None else np.ascontiguousarray(places).tobytes(),
        axes=0 if places is None or places.ndim == 1 else places.shape[1],
        payloads=[(row, len(payload)) for row, payload in batch.payloads],
        images=images and bool(states),
    )
    return message, states


def _states(payload: Any) -> NDArray[np.float32]:
    assert isinstance(payload, ImagePart), "models that can be split read no other payloads"
    states = payload.image.states
    assert states is not None, "an image is encoded before it is read"
    return states[payload.begin : payload.end]


def unpacked(message: Pass, states: Arrays, ops: Backend) -> Batch:
    """Return the batch of a message; its payloads have the given states, or none. Raises `RunnerError`."""
    tokens, positions, sequences = (
        _numbers(each, np.int32) for each in (message.tokens, message.positions, message.sequences)
    )
    rows = len(tokens)
    places = None if message.places is None else _numbers(message.places, np.int32)
    expected = rows * max(message.axes, 1)
    if (
        not rows
        or not rows == len(positions) == len(sequences)
        or (places is not None and len(places) != expected)
    ):
        raise RunnerError("a batch has a different number of tokens, positions and sequences")
    if places is not None and message.axes:
        places = places.reshape(rows, message.axes)
    outputs = None if message.outputs is None else _numbers(message.outputs, np.int64)
    if outputs is not None and len(outputs) and not 0 <= outputs.min() <= outputs.max() < rows:
        raise RunnerError(f"results are wanted of rows that a batch of {rows} rows does not have")
    payloads: list[tuple[int, Any]] = [(row, Absent(entries)) for row, entries in message.payloads]
    if message.images:
        payloads = [
            (row, ImageStates(ops.array(each)))
            for (row, _), each in zip(message.payloads, states, strict=True)
        ]
    return Batch(
        tokens=tokens,
        positions=positions,
        sequences=sequences,
        outputs=outputs,
        payloads=payloads,
        spans=message.spans,
        drafts=message.drafts,
        places=places,
    )


def scales_in(message: Pass) -> dict[int, NDArray[np.float32]]:
    """Return the strength of each adapter for each row of a batch. Raises `RunnerError`."""
    rows = len(message.tokens) // np.dtype(np.int32).itemsize
    found = {number: _numbers(each, np.float32) for number, each in message.scales.items()}
    if any(len(each) != rows for each in found.values()):
        raise RunnerError(f"adapters of a batch of {rows} rows have other numbers of strengths")
    return found


def on_stage(batch: Batch, message: Pass, ops: Backend) -> BatchArrays:
    """Return a batch as arrays for a stage that is not the first; without states, images are no matter."""
    arrays = batch.on(ops)
    return BatchArrays(
        tokens=arrays.tokens,
        positions=arrays.positions,
        outputs=None if message.whole else arrays.outputs,
        payloads=arrays.payloads if message.images else [],
    )


def _numbers(data: bytes, kind: type[np.int32 | np.int64 | np.float32]) -> NDArray[Any]:
    if len(data) % np.dtype(kind).itemsize:
        raise RunnerError(f"{len(data)} bytes are not whole numbers")
    return np.frombuffer(data, kind).copy()


class PartLink(Generic[Message]):
    """A connection between two parts of a model. One thread sends; another one may receive."""

    def __init__(self, sock: socket.socket, messages: Any) -> None:
        """`messages` is the union of the types that may be received."""
        self._sock = sock
        self._decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(messages)
        self.received_bytes = 0

    def send(self, message: StageMessage, arrays: Sequence[NDArray[np.float32]] = ()) -> None:
        """Send a message. Raises `RunnerError` if it is too long, and `OSError` if the other side is gone."""
        shapes = [(each.shape[0], each.shape[1]) for each in arrays]
        body = msgspec.msgpack.encode(msgspec.structs.replace(message, arrays=shapes))
        total = sum(each.nbytes for each in arrays)
        if len(body) > MAX_MESSAGE_BYTES or total > MAX_ARRAYS_BYTES:
            raise RunnerError(f"a batch of {len(body)} and {total} bytes is too long for another stage")
        parts: list[Any] = [_HEADER.pack(_MAGIC, len(body), total) + body]
        parts += [np.ascontiguousarray(each).data.cast("B") for each in arrays if each.size]
        if total < _JOINED_BYTES:
            parts = [b"".join(parts)]
        for part in parts:
            self._sock.sendall(part)

    def receive(self) -> tuple[Message, Arrays] | None:
        """Return the next message and its arrays, or None when the other side has closed.

        Raises `RunnerError` for anything that is no message, and `OSError`.
        """
        header = bytearray(_HEADER.size)
        if not self._fill(memoryview(header), may_end=True):
            return None
        magic, length, total = _HEADER.unpack(header)
        if magic != _MAGIC:
            raise RunnerError("this is no message of a stage")
        if length > MAX_MESSAGE_BYTES or total > MAX_ARRAYS_BYTES:
            raise RunnerError(
                f"a message of {length} bytes with arrays of {total} was announced; at most "
                f"{MAX_MESSAGE_BYTES} and {MAX_ARRAYS_BYTES} are allowed"
            )
        body = bytearray(length)
        self._fill(memoryview(body))
        try:
            message = self._decoder.decode(body)
        except (msgspec.DecodeError, RecursionError) as error:
            raise RunnerError(f"this is no message of a stage: {error}") from error
        sizes = [_FLOAT_BYTES * rows * columns for rows, columns in message.arrays]
        if any(min(shape) < 0 for shape in message.arrays) or sum(sizes) != total:
            raise RunnerError(f"{total} bytes are not arrays of these shapes: {message.arrays[:5]}")
        arrays = []
        for shape in message.arrays:
            array = np.empty(shape, np.float32)
            if math.prod(shape):
                self._fill(array.data.cast("B"))
            arrays.append(array)
        self.received_bytes += _HEADER.size + length + total
        return message, arrays

    def close(self) -> None:
        """Close the connection, also for a thread that waits for a message."""
        with contextlib.suppress(OSError):  # the other side has closed it
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()

    def _fill(self, view: memoryview, *, may_end: bool = False) -> bool:
        """Fill `view` with received bytes; return False if there are none and there may be none."""
        done = 0
        while done < len(view):
            count = self._sock.recv_into(view[done:])
            if not count:
                if may_end and not done:
                    return False
                raise RunnerError("the connection ended within a message")
            done += count
        return True


class Link(PartLink[AnyMessage]):
    """A connection between two stages."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock, AnyMessage)


#: Frames with fewer bytes of arrays are sent by one call.
_JOINED_BYTES: Final = 1 << 16

"""A stage of a split model that is not the first: it does as the stage before it says, and passes that on."""

from __future__ import annotations

import logging
import threading
import time
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

from puna.errors import PunaError, RunnerError
from puna.kvcache.cache import Cache
from puna.machine import available_memory, is_out_of_memory
from puna.model.split.repeated import cache_for, repeat
from puna.model.split.wire import (
    AnyMessage,
    Arrays,
    Broken,
    Greeting,
    Link,
    MakeCache,
    Pass,
    Rows,
    StageMessage,
    StageSpent,
    on_stage,
    scales_in,
    unpacked,
)

if TYPE_CHECKING:
    from puna.model.decoder import Decoder

log = logging.getLogger("puna.split")

#: Longer reasons of a failure are cut.
_REASON_CHARS: Final = 500

#: The end of a connection, or why it broke, in place of a message.
_End = Exception | None
#: Received messages and arrays, or how the connection ended.
Inbox = SimpleQueue["tuple[AnyMessage, Arrays] | _End"]


def read_all(link: Link) -> Inbox:
    """Receive messages on a thread of their own, so that a stage that computes keeps no other waiting."""
    inbox: Inbox = SimpleQueue()

    def read() -> None:
        try:
            while (received := link.receive()) is not None:
                inbox.put(received)
            inbox.put(None)
        except Exception as error:
            inbox.put(error)

    threading.Thread(target=read, name="puna-stage", daemon=True).start()
    return inbox


class Worker:
    """Stage number `number` (from 1) of a model: its layers, and caches like those of the other stages."""

    def __init__(self, model: Decoder, source: Link, sink: Link, *, number: int, reserved: int = 0) -> None:
        stage = model.options.stage
        assert stage is not None
        self.number = number
        self.passes = 0
        self.pass_began: float | None = None  # time.monotonic() of the running one
        self._model = model
        self._stage = stage
        self._source = source
        self._sink = sink
        self._reserved = reserved  # bytes of memory to leave to others
        self._cache: Cache | None = None

    def run(self) -> None:
        """Do what the stage before says until it ends the connection.

        Raises `RunnerError` if it says what cannot be done; the other stages are told why.
        """
        inbox = read_all(self._source)
        try:
            while isinstance(received := inbox.get(), tuple):
                self._take(*received)
            if received is not None:
                raise RunnerError(f"the connection of the stage before {self._stage} broke: {received}")
        except Exception as error:
            self._report(error)
            raise
        finally:
            if self._cache is not None:
                self._cache.close()
            self._source.close()
            self._sink.close()

    def _report(self, error: Exception) -> None:
        reason = "out of memory" if is_out_of_memory(error) else f"{error}"
        if not isinstance(error, PunaError):
            reason = f"{type(error).__name__}: {reason}"
        try:
            self._sink.send(Broken(stage=self.number, reason=f"{self._stage}: {reason}"[:_REASON_CHARS]))
        except (OSError, RunnerError):
            log.debug("the next stage is gone too")

    def _take(self, message: AnyMessage, arrays: Arrays) -> None:
        match message:
            case Pass():
                self._compute(message, arrays)
                return
            case MakeCache():
                self._make_cache(message)
                return
            case Greeting():
                self._greet(message)
                return
            case Broken():
                self._sink.send(message)
                return
            case Rows():
                raise RunnerError("results came to a stage that is not the first")
        if not self._stage.is_last:
            self._sink.send(message)  # first, since it costs the next stage time too
        repeat(message, self._made, self._model.ops)

    @property
    def provided_bytes(self) -> int:
        """Memory that its cache takes."""
        return self._cache.provided_bytes if self._cache is not None else 0

    @property
    def _made(self) -> Cache:
        if self._cache is None:
            raise RunnerError("the first message to a stage must make its cache")
        return self._cache

    def _greet(self, message: Greeting) -> None:
        room = max(available_memory() - self._reserved, 0)
        self._sink.send(
            msgspec.structs.replace(
                message,
                kernels=[*message.kernels, self._model.ops.kernels],
                room_bytes=[*message.room_bytes, room],
            )
        )

    def _make_cache(self, message: MakeCache) -> None:
        self._cache = cache_for(message, self._model, self._cache)
        self._sink.send(message)

    def _compute(self, message: Pass, arrays: Arrays) -> None:
        ops, count = self._model.ops, len(message.payloads) if message.images else 0
        carried, states = (arrays[:-count], arrays[-count:]) if count else (arrays, [])
        if not carried or any(len(each) != len(carried[0]) for each in carried):
            raise RunnerError("a pass needs hidden states, as many of each kind")
        batch = unpacked(message, states, ops)
        cache = self._made
        self.pass_began = began = time.monotonic()
        cache.start_forward(batch)
        self._model.row_scales.begin(scales_in(message), batch.outputs)
        found = self._model.run([ops.array(each) for each in carried], on_stage(batch, message, ops), cache)
        results = [np.asarray(ops.numpy(each), np.float32) for each in found]
        spent_us = round((time.monotonic() - began) * 1e6)
        spent = [*message.spent, StageSpent(spent_us, self._source.received_bytes)]
        self.passes += 1
        self.pass_began = None
        answer: StageMessage
        if self._stage.is_last:
            answer = Rows(spent=spent)
        else:
            answer = msgspec.structs.replace(message, spent=spent)
            results += states
        self._sink.send(answer, results)

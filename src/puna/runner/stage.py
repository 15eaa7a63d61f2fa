"""A runner process that holds a part of a model: a further stage, or the first one with its connections."""

from __future__ import annotations

import dataclasses
import logging
import os
import threading
import time
from collections.abc import Callable
from typing import NoReturn

from puna.errors import ModelLostError, RequestError, UnsupportedModelError
from puna.machine import process_memory
from puna.model.decoder import Decoder
from puna.model.load import LoadedModel, LoadedStage
from puna.model.split.model import OtherStage, OtherStages, SplitModel
from puna.model.split.wire import Link
from puna.model.split.worker import Worker
from puna.model.stages import ModelStage
from puna.protocol import Cancel, Channel, Loaded, Ping, Pong, SplitLoad, ToRunner
from puna.runner.peers import Entrance, Hello, connect

log = logging.getLogger("puna.runner")


class StageProcess:
    """A stage that is not the first, which answers nothing but pings to its parent."""

    def __init__(self, loaded: LoadedStage, split: SplitLoad, reserved: int) -> None:
        """Listen for the other stages; `reserved` is that of `Load`. Raises `RunnerError`."""
        self._loaded = loaded
        self._number = split.number
        self._reserved = reserved
        self._entrance = Entrance.at(split.stages[split.number - 1].address, split.secret)
        self._worker: Worker | None = None

    def loaded(self) -> Loaded:
        """Return the message that it is ready."""
        return Loaded(
            context_length=0,
            parallel=0,
            weight_bytes=self._loaded.weight_bytes,
            cache_bytes=0,
            kernels=self._loaded.model.ops.kernels,
            port=self._entrance.port,
        )

    def serve(self, channel: Channel[ToRunner], on_death: Callable[[BaseException], NoReturn]) -> None:
        """Work until the other stages or the parent are gone."""
        threading.Thread(target=self._work, args=(on_death,), name="puna-work", daemon=True).start()
        while (frame := channel.receive()) is not None:
            match frame.message():
                case Ping(id=number):
                    channel.send(self._pong(number))
                case Cancel():
                    pass
                case other:
                    raise RequestError(f"a stage does not take {type(other).__name__}")
        os._exit(0)

    def _work(self, on_death: Callable[[BaseException], NoReturn]) -> None:
        try:
            stage = self._loaded.model.options.stage
            assert stage is not None
            source, sink = self._entrance.await_peers(is_last=stage.is_last)
            self._worker = Worker(
                self._loaded.model, Link(source), Link(sink), number=self._number, reserved=self._reserved
            )
            self._worker.run()
        except BaseException as error:
            on_death(error)
        log.info("the other stages have ended")
        os._exit(0)

    def _pong(self, number: int) -> Pong:
        worker = self._worker
        began = worker.pass_began if worker is not None else None
        return Pong(
            id=number,
            active=0,
            running=0,
            step_age_s=0.0 if began is None else time.monotonic() - began,
            cache_bytes=worker.provided_bytes if worker is not None else 0,
            cells=[],
            evicted=0,
            memory_bytes=process_memory(),
        )


def joined(loaded: LoadedModel, split: SplitLoad, on_loss: Callable[[ModelLostError], object]) -> LoadedModel:
    """Return the model whose first layers are in `loaded`, connected with its further stages.

    Raises `RunnerError` if they cannot be reached, and `UnsupportedModelError` if their kernels differ.
    """
    first, stages = loaded.model, split.stages
    assert isinstance(first, Decoder)
    down = Link(connect(stages[0], split.secret, Hello(onward=stages[1:])))
    up = Link(connect(stages[-1], split.secret, Hello(returns=True)))
    others = [
        OtherStage(
            f"stage {number} (layers {each.begin} to {each.end - 1}) on node {each.node}",
            ModelStage(each.begin, each.end, first.options.block_count),
        )
        for number, each in enumerate(stages, 2)
    ]
    connected = OtherStages(down, up, others, on_loss)
    kernels = {loaded.ops.kernels, *connected.greeting.kernels}
    if len(kernels) > 1 and not split.any_kernels:
        connected.close()
        raise UnsupportedModelError(
            f"the stages would use different kernels ({', '.join(sorted(kernels))}), whose results differ in "
            "the last bits; use nodes that agree, or allow it with PUNA_SPLIT_KERNELS=any"
        )
    return dataclasses.replace(loaded, model=SplitModel(first, connected))

"""Split models whose stages are threads of this process, with real connections."""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from puna.errors import PunaError
from puna.model.load import LoadedModel, LoadSettings, load_model, load_stage
from puna.model.split.model import OtherStage, OtherStages, SplitModel
from puna.model.split.wire import Link
from puna.model.split.worker import Worker
from puna.model.stages import ModelStage
from puna.options import AdapterFile
from tests.waiting import PATIENCE_S


@dataclasses.dataclass
class Split:
    """A split model, and its further stages with their connections."""

    loaded: LoadedModel
    workers: list[Worker]
    sockets: list[socket.socket]
    failures: list[PunaError]

    @property
    def model(self) -> SplitModel:
        assert isinstance(self.loaded.model, SplitModel)
        return self.loaded.model


@contextmanager
def split(
    path: Path, cuts: Sequence[int], adapters: Sequence[AdapterFile] = (), **options: Any
) -> Iterator[Split]:
    """Load a model in stages, of which the second begins with layer `cuts[0]`, and so on."""
    with ExitStack() as stack:
        whole = load_model(path, LoadSettings(layers=(0, cuts[0])), adapters=adapters, **options)
        first: Any = whole.model
        count = first.options.block_count
        ends = [*cuts[1:], count]
        pairs = [socket.socketpair() for _ in range(len(cuts) + 1)]
        workers, failures = [], []
        for number, (begin, end) in enumerate(zip(cuts, ends, strict=True), 1):
            stage = load_stage(path, LoadSettings(layers=(begin, end)), adapters=adapters)
            source, sink = Link(pairs[number - 1][1]), Link(pairs[number][0])
            worker = Worker(stage.model, source, sink, number=number)
            workers.append(worker)

            def run(worker: Worker = worker) -> None:
                with contextlib.suppress(PunaError):
                    worker.run()

            thread = threading.Thread(target=run)
            thread.start()
            stack.callback(thread.join, PATIENCE_S)
        others = [
            OtherStage(f"stage {number}", ModelStage(begin, end, count))
            for number, (begin, end) in enumerate(zip(cuts, ends, strict=True), 2)
        ]
        other_stages = OtherStages(Link(pairs[0][0]), Link(pairs[-1][1]), others, failures.append)
        stack.callback(other_stages.close)
        model = SplitModel(first, other_stages)
        loaded = dataclasses.replace(whole, model=model)
        yield Split(loaded, workers, [each for pair in pairs for each in pair], failures)

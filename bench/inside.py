"""Streams of an engine in this process, for comparison with those of a server."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from servers import Setting

import puna
from puna.options import Options
from puna.protocol import Chunk, Done, Event, Failed, Generate


class Inside:
    """The engine of a server, but without the server."""

    def __init__(self, setting: Setting) -> None:
        self._model = puna.load(
            setting.model, num_ctx=setting.context, parallel=setting.slots, num_thread=setting.threads
        )

    def close(self) -> None:
        self._model.close()

    def rate(self, prompts: Sequence[str], tokens: int) -> float:
        """Return the total tokens per second of all prompts in parallel, from request to last token."""
        generated, left, last_s = 0, len(prompts), 0.0
        finished = threading.Event()

        def sink(event: Event) -> None:  # called only by the engine's thread
            nonlocal generated, left, last_s
            if isinstance(event, Failed):
                raise RuntimeError(event.message)
            if isinstance(event, Chunk):
                last_s = time.perf_counter()
            elif isinstance(event, Done):
                generated += event.eval_count
                left -= 1
                if left == 0:
                    finished.set()

        options = Options(temperature=0.0, num_predict=tokens)
        begin = time.perf_counter()
        for number, prompt in enumerate(prompts):
            self._model.engine.submit(
                Generate(id=number, prompt=prompt, options=options, ignore_eos=True), sink
            )
        finished.wait()
        return generated / (last_s - begin)

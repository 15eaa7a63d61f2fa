"""An engine stepped by hand on this thread, so that nothing depends on timing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from puna.batch import Batch, BatchArrays, Input
from puna.engine.engine import Engine
from puna.engine.room import EngineSizes
from puna.engine.sequence import Generation
from puna.engine.text import TextStream
from puna.kvcache.storage import CellCache
from puna.kvcache.types import KVTypes
from puna.model.load import LoadedModel
from puna.ops import Array
from puna.options import Options
from puna.protocol import Chunk, Done, Embed, Embedded, Event, Failed, Generate, Scored
from puna.sample import Sampler

REQUEST_FIELDS = (
    "truncate", "shift", "logprobs", "top_logprobs", "ignore_eos", "samples", "prompt_logprobs",
    "cache_prompt", "priority", "client", "format", "lora", "progress", "resumed", "sampled_logprobs",
)  # fmt: skip


class Run:
    """An engine and the events it sent, by request."""

    def __init__(self, loaded: LoadedModel, **settings: Any) -> None:
        if (draft := settings.pop("draft", None)) is not None:
            loaded = replace(loaded, draft=draft)
        others = {name: settings.pop(name) for name in ("speculate", "growable") if name in settings}
        sizes = {"context": 64, "parallel": 4, "cache_types": KVTypes.parse("f32"), **settings}
        self.engine = Engine(loaded, EngineSizes(**sizes), **others)
        self.events: dict[int, list[Event]] = defaultdict(list)
        self.ended: list[int] = []  # requests, in order of ending
        self.rows: list[int] = []  # of each step
        execute = self.engine._executor.execute

        def counted(slices: Any) -> Any:
            self.rows.append(sum(batch_slice.rows for batch_slice in slices))
            return execute(slices)

        self.engine._executor.execute = counted  # type: ignore[method-assign]

    def submit(self, number: int, prompt: str | list[int], **settings: Any) -> None:
        self.engine.submit(_message(number, prompt, settings), self._sink(number))

    def submit_inputs(self, number: int, inputs: list[Input], **settings: Any) -> None:
        """Submit a request whose prompt is not all text, as after preparing its images."""
        message = _message(number, [0], settings)
        sequence = Generation(
            request=message,
            sink=self._sink(number),
            inputs=list(inputs),
            limit=message.options.num_predict,
            keep=message.options.num_keep,
            sampler=Sampler(message.options, self.engine.loaded.tokenizer.vocab_size, self.engine.loaded.ops),
            text=TextStream(message.options.stop or ()),
            resumed=[*message.resumed, []][0],
        )
        self.engine.scheduler.add(sequence)

    def _sink(self, number: int) -> Callable[[Event], None]:
        def sink(event: Event) -> None:
            self.events[number].append(event)
            if isinstance(event, Done | Failed):
                self.ended.append(number)

        return sink

    def embed(self, number: int, *inputs: str | list[int], **settings: Any) -> None:
        request = Embed(id=number, inputs=list(inputs), **settings)
        self.engine.submit(request, self.events[number].append)

    def finish(self) -> None:
        for _ in range(10_000):
            if not self.engine.step():
                return
        raise AssertionError("the engine does not come to an end")

    def one(self, prompt: str | list[int], **settings: Any) -> tuple[list[int], Done]:
        self.submit(0, prompt, **settings)
        self.finish()
        return self.tokens(0), self.done(0)

    def tokens(self, number: int, sample: int = 0) -> list[int]:
        return [
            token
            for event in self.events[number]
            if isinstance(event, Chunk) and event.sample == sample
            for token in event.tokens
        ]

    def text(self, number: int) -> str:
        return "".join(event.text for event in self.events[number] if isinstance(event, Chunk))

    def embedded(self, number: int) -> list[Embedded]:
        """Return the embedded events in the order of the inputs."""
        events = [event for event in self.events[number] if isinstance(event, Embedded)]
        assert len(events) == len(self.events[number]), self.events[number]
        return sorted(events, key=lambda event: event.sample)

    def vectors(self, number: int) -> Any:
        """Return the vectors, float32 [inputs, size]."""
        return np.array([np.frombuffer(event.vector, np.float32) for event in self.embedded(number)])

    def scored(self, number: int) -> list[Any]:
        """Return (token, log-probability) of the prompt's tokens."""
        return [
            (token, None if logprob is None else logprob.logprob)
            for event in self.events[number]
            if isinstance(event, Scored)
            for token, logprob in zip(event.tokens, event.logprobs, strict=True)
        ]

    def done(self, number: int, sample: int = 0) -> Done:
        ends = [event for event in self.events[number] if isinstance(event, Done | Failed)]
        (last,) = [event for event in ends if event.sample == sample]
        assert isinstance(last, Done), last
        return last

    def failed(self, number: int) -> Failed:
        last = self.events[number][-1]
        assert isinstance(last, Failed), last
        return last

    def leaked(self) -> int:
        """Forget everything while nothing runs, and return the cells still in use; check the bookkeeping.

        States do not count: the next pass releases those that the last pass began with.
        """
        assert self.engine.active == 0
        while self.engine.prefix_cache.evict():
            pass
        used = 0
        for cache in getattr(self.engine.cache, "caches", [self.engine.cache]):
            if isinstance(cache, CellCache):
                cache.cells.check()
                used += cache.cells.capacity - cache.cells.free
            else:
                cache.check()
        return used


class Watched(Run):
    """A run that records the evaluated batches."""

    def __init__(self, loaded: LoadedModel, **settings: Any) -> None:
        super().__init__(loaded, **settings)
        self.batches: list[Batch] = []
        start = self.engine.cache.start_forward

        def noted(batch: Batch) -> None:
            start(batch)
            self.batches.append(batch)

        self.engine.cache.start_forward = noted  # type: ignore[method-assign]

    @property
    def positions(self) -> list[list[int]]:
        """Return the positions of the rows of each batch."""
        return [batch.positions.tolist() for batch in self.batches]


def let_it_say(patch: pytest.MonkeyPatch, model: LoadedModel, tokens: list[int], after: int) -> None:
    """Make the model answer a prompt of `after` tokens with `tokens`, greedily; it computes as usual."""

    def said(logits: NDArray[np.float32], batch: BatchArrays) -> NDArray[np.float32]:
        logits = np.full_like(logits, -20.0)
        positions = model.ops.numpy(batch.positions)
        wanted = positions if batch.outputs is None else positions[model.ops.numpy(batch.outputs)]
        for row, position in enumerate(wanted.tolist()):
            logits[row, tokens[min(position + 1 - after, len(tokens) - 1)]] = 20.0
        return logits

    change_logits(patch, model, said)


def change_logits(
    patch: pytest.MonkeyPatch,
    model: LoadedModel,
    change: Callable[[NDArray[np.float32], BatchArrays], NDArray[np.float32]],
) -> None:
    """Pass the model's logits [outputs, vocabulary] through `change`, on the host."""
    forward, ops = model.model.forward, model.ops

    def changed(batch: BatchArrays, cache: Any) -> Array:
        return ops.array(change(ops.numpy(forward(batch, cache)), batch))

    patch.setattr(model.model, "forward", changed)


def _message(number: int, prompt: str | list[int], settings: dict[str, Any]) -> Generate:
    request = {name: settings.pop(name) for name in REQUEST_FIELDS if name in settings}
    request.setdefault("ignore_eos", True)
    options = Options.merge({"temperature": 0, "num_predict": 12}, settings)
    return Generate(id=number, prompt=prompt, options=options, **request)

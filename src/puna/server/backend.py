"""What every API is made of: finding a model, holding its runner, generating."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from puna.errors import ModelNotFoundError, RequestError
from puna.options import Options
from puna.prompt.thinking import Tags, ThinkingParser
from puna.runner.client import Runner
from puna.runner.protocol import Chunk, Done, TokenLogprob
from puna.server.loaded import LoadPlan
from puna.server.metrics import Metrics
from puna.server.request_facts import facts
from puna.server.scheduler import Scheduler
from puna.server.settings import Settings
from puna.store import Store, StoredModel

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Prompt:
    """What the model is to continue: as text, and as tokens with those of an earlier `context` in front.

    `dropped` counts the tokens of messages that were left out to make it fit.
    """

    text: str
    ids: list[int]
    dropped: int = 0


@dataclass(frozen=True)
class Order:
    """What to generate with: the model is loaded as these `options` say, and sampled as they say."""

    model: StoredModel
    options: Options
    keep_alive_s: float | None = None
    truncate: bool = True
    shift: bool = True
    logprobs: bool = False
    top_logprobs: int = 0
    ignore_eos: bool = False  # go on after the model's end
    thinking_tags: Tags | None = None  # split the output at these
    arrived_ns: int = field(default_factory=time.perf_counter_ns)


@dataclass(frozen=True)
class Piece:
    """More of the answer. Log-probabilities may come before the text they belong to."""

    text: str
    thinking: str = ""
    logprobs: Sequence[TokenLogprob] = ()


@dataclass(frozen=True)
class Finished:
    """The end of a generation. Durations in nanoseconds, from the arrival of the request."""

    done: Done
    total_duration: int
    load_duration: int
    truncated: int
    context: list[int]  # tokens of the prompt and the answer


MakePrompt = Callable[[Runner], Awaitable[Prompt]]


class Backend:
    """The store, the scheduler and the settings, and what the routes do with them."""

    def __init__(self, store: Store, scheduler: Scheduler, settings: Settings, metrics: Metrics) -> None:
        self.store = store
        self.scheduler = scheduler
        self.settings = settings
        self.metrics = metrics

    def find(self, name: str) -> StoredModel:
        """The model a request names. Raises RequestError, InvalidNameError or ModelNotFoundError."""
        if not name.strip():
            raise RequestError("model is required")
        facts().model = name
        try:
            return self.store.get(name)
        except ModelNotFoundError as error:
            raise ModelNotFoundError(f"model '{name}' not found") from error

    def options(self, model: StoredModel, given: dict[str, Any], stop: tuple[str, ...] = ()) -> Options:
        """Options of a request: the model's own under those `given`; `stop` where neither has any."""
        unknown = Options.unknown(given)
        if unknown:
            _log.warning("options that do not exist are ignored: %s", ", ".join(sorted(unknown)))
        return Options.merge({"stop": list(stop)}, model.params, given)

    def plan(self, options: Options) -> LoadPlan:
        return LoadPlan.of(options, self.settings.context_length)

    async def load(self, order: Order) -> None:
        """Bring the model into memory and leave it there for its keep-alive time."""
        async with self.scheduler.use(order.model, self.plan(order.options), order.keep_alive_s):
            pass

    async def unload(self, model: StoredModel) -> None:
        await self.scheduler.unload(str(model.runnable_path()))

    async def prompt(self, order: Order, make_prompt: MakePrompt) -> Prompt:
        """The prompt alone, without generating."""
        async with self.scheduler.use(order.model, self.plan(order.options), order.keep_alive_s) as runner:
            return await make_prompt(runner)

    async def generate(self, order: Order, make_prompt: MakePrompt) -> AsyncGenerator[Piece | Finished, None]:
        """The answer piece by piece, then `Finished`. Closing it stops the generation."""
        with self.metrics.generation(order.model.name, order.arrived_ns) as watched:
            plan = self.plan(order.options)
            async with self.scheduler.use(order.model, plan, order.keep_alive_s) as runner:
                watched.loaded()
                loaded_ns = time.perf_counter_ns()
                prompt = await make_prompt(runner)
                answer: list[int] = []
                tags = order.thinking_tags
                parser = ThinkingParser(tags, prompt=prompt.text) if tags is not None else None
                items = runner.generate(
                    prompt.ids,
                    order.options,
                    truncate=order.truncate,
                    shift=order.shift,
                    logprobs=order.logprobs,
                    top_logprobs=order.top_logprobs,
                    ignore_eos=order.ignore_eos,
                )
                async with contextlib.aclosing(items):
                    async for item in items:
                        if isinstance(item, Chunk):
                            watched.chunk(item)
                            answer += item.tokens
                            thinking, text = parser.feed(item.text) if parser else ("", item.text)
                            if text or thinking or item.logprobs:
                                yield Piece(text, thinking, item.logprobs)
                            continue
                        watched.done(item)
                        thinking, text = parser.flush() if parser else ("", "")
                        if text or thinking:
                            yield Piece(text, thinking)
                        yield Finished(
                            done=item,
                            total_duration=time.perf_counter_ns() - order.arrived_ns,
                            load_duration=max(loaded_ns - order.arrived_ns, 1),
                            truncated=prompt.dropped + item.truncated,
                            context=prompt.ids + answer,
                        )

"""What every API is made of: finding a model, holding its runner, generating."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from puna.engine.events import Priority
from puna.errors import ModelNotFoundError, RequestError
from puna.options import Options
from puna.prompt.thinking import Tags, ThinkingParser
from puna.runner.client import Runner
from puna.runner.protocol import Chunk, Done, Scored, TokenLogprob
from puna.server.fleet.fleet import Fleet
from puna.server.fleet.resident import LoadPlan
from puna.server.http.request_facts import facts
from puna.server.jobs.merge import merged
from puna.server.metrics import Metrics, Observation
from puna.server.settings import Settings
from puna.store import Store, StoredModel

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Prompt:
    """What the model is to continue: as text, and as tokens with those of an earlier `context` in front.

    `dropped` counts the tokens of messages that were left out to make it fit. `spelled` says that the ids
    come from the text, and not the text from the ids.
    """

    text: str
    ids: list[int]
    dropped: int = 0
    spelled: bool = True


@dataclass(frozen=True)
class Order:
    """What to generate with: the model is loaded as these `options` say, and sampled as they say.

    There are `samples` answers to each prompt. With `echo` each begins with the prompt; `score` asks how
    likely the prompt's tokens were, and makes a `num_predict` of 0 mean that nothing is generated.
    """

    model: StoredModel
    options: Options
    keep_alive_s: float | None = None
    truncate: bool = True
    shift: bool = True
    logprobs: bool = False
    top_logprobs: int = 0
    ignore_eos: bool = False  # go on after the model's end
    samples: int = 1
    echo: bool = False
    score: bool = False
    cache_prompt: bool = True
    priority: Priority = "interactive"
    thinking_tags: Tags | None = None  # split the output at these
    arrived_ns: int = field(default_factory=time.perf_counter_ns)


@dataclass(frozen=True)
class Piece:
    """More of an answer. Log-probabilities may come before the text they belong to.

    Answers are numbered by `choice`: all samples of the first prompt, then those of the second, ...
    """

    text: str
    thinking: str = ""
    logprobs: Sequence[TokenLogprob] = ()
    choice: int = 0


@dataclass(frozen=True)
class Echo:
    """The prompt, before anything else of an answer. Without a score, `logprobs` is empty.

    A begin token that was put before the text is not in it. The first token of all, where it is in it, comes
    after nothing: its log-probability is None, and `first` its text.
    """

    text: str
    logprobs: Sequence[TokenLogprob | None] = ()
    first: str = ""
    choice: int = 0


@dataclass(frozen=True)
class Finished:
    """The end of an answer. Durations in nanoseconds, from the arrival of the request."""

    done: Done
    total_duration: int
    load_duration: int
    truncated: int
    context: list[int]  # tokens of the prompt and the answer
    choice: int = 0


Answer = Piece | Echo | Finished
MakePrompt = Callable[[Runner], Awaitable[Prompt]]


class Backend:
    """The store, the fleet and the settings, and what the routes do with them."""

    def __init__(self, store: Store, fleet: Fleet, settings: Settings, metrics: Metrics) -> None:
        self.store = store
        self.fleet = fleet
        self.settings = settings
        self.metrics = metrics

    def find(self, name: str) -> StoredModel:
        """The model a request names. Raises RequestError, InvalidNameError or ModelNotFoundError."""
        if not name.strip():
            raise RequestError("model is required")
        facts().model = name
        return self._named(name)

    def _named(self, name: str) -> StoredModel:
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
        draft = str(self._named(options.draft).runnable_path()) if options.draft else ""
        return LoadPlan.of(options, self.settings.context_length, draft)

    async def load(self, order: Order) -> None:
        """Bring the model into memory and leave it there for its keep-alive time."""
        async with self.fleet.use(order.model, self.plan(order.options), order.keep_alive_s):
            pass

    async def unload(self, model: StoredModel) -> None:
        await self.fleet.unload(str(model.runnable_path()))

    async def prompt(self, order: Order, make_prompt: MakePrompt) -> Prompt:
        """The prompt alone, without generating."""
        async with self.fleet.use(order.model, self.plan(order.options), order.keep_alive_s) as runner:
            return await make_prompt(runner)

    async def generate(
        self, order: Order, make_prompts: Sequence[MakePrompt]
    ) -> AsyncGenerator[Answer, None]:
        """All answers piece by piece, each ending with `Finished`. Closing it stops the generation."""
        choices = len(make_prompts) * order.samples
        with self.metrics.observation(order.model.name, order.arrived_ns, choices) as watched:
            plan = self.plan(order.options)
            async with self.fleet.use(order.model, plan, order.keep_alive_s) as runner:
                watched.loaded()
                generation = _Generation(order, runner, watched)
                answers = [
                    generation.answers(make_prompt, number * order.samples)
                    for number, make_prompt in enumerate(make_prompts)
                ]
                async with contextlib.aclosing(merged(answers)) as items:
                    async for item in items:
                        yield item


@dataclass
class _Sample:
    """What is known of one answer so far."""

    parser: ThinkingParser | None
    begun: bool = False
    scores: list[TokenLogprob | None] = field(default_factory=list)  # of the prompt
    tokens: list[int] = field(default_factory=list)


class _Generation:
    """What one order makes a runner answer."""

    def __init__(self, order: Order, runner: Runner, watched: Observation) -> None:
        self._order = order
        self._runner = runner
        self._watched = watched
        self._loaded_ns = time.perf_counter_ns()

    async def answers(self, make_prompt: MakePrompt, first: int) -> AsyncGenerator[Answer, None]:
        """The answers to one prompt, numbered from `first` on."""
        order = self._order
        prompt = await make_prompt(self._runner)
        echo, begins = await self._echo(prompt) if order.echo else (None, 0)
        tags = order.thinking_tags
        samples = [
            _Sample(ThinkingParser(tags, prompt=prompt.text) if tags else None) for _ in range(order.samples)
        ]
        async with contextlib.aclosing(self._events(prompt)) as events:
            async for event in events:
                sample, choice = samples[event.sample], first + event.sample
                if isinstance(event, Scored):
                    sample.scores += event.logprobs
                    continue
                if echo is not None and not sample.begun:
                    yield replace(echo, logprobs=sample.scores[begins:], choice=choice)
                sample.begun = True
                parser = sample.parser
                if isinstance(event, Chunk):
                    self._watched.chunk(choice, event)
                    sample.tokens += event.tokens
                    thinking, text = parser.feed(event.text) if parser else ("", event.text)
                    if text or thinking or event.logprobs:
                        yield Piece(text, thinking, event.logprobs, choice)
                    continue
                self._watched.done(choice, event)
                thinking, text = parser.flush() if parser else ("", "")
                if text or thinking:
                    yield Piece(text, thinking, choice=choice)
                yield Finished(
                    done=event,
                    total_duration=time.perf_counter_ns() - order.arrived_ns,
                    load_duration=max(self._loaded_ns - order.arrived_ns, 1),
                    truncated=prompt.dropped + event.truncated,
                    context=prompt.ids + sample.tokens,
                    choice=choice,
                )

    def _events(self, prompt: Prompt) -> AsyncGenerator[Scored | Chunk | Done, None]:
        order = self._order
        return self._runner.generate(
            prompt.ids,
            order.options,
            truncate=order.truncate,
            shift=order.shift,
            logprobs=order.logprobs,
            top_logprobs=order.top_logprobs,
            ignore_eos=order.ignore_eos,
            samples=order.samples,
            prompt_logprobs=order.score,
            cache_prompt=order.cache_prompt,
            priority=order.priority,
        )

    async def _echo(self, prompt: Prompt) -> tuple[Echo, int]:
        """The echo, still without scores, and how many of the prompt's tokens come before it."""
        if not self._order.score:
            return Echo(prompt.text), 0
        if prompt.spelled:
            own = await self._runner.tokenize(prompt.text, add_special=False)
            if own[:1] != prompt.ids[:1]:  # the begin token the model wants
                return Echo(prompt.text), 1
        return Echo(prompt.text, first=await self._runner.detokenize(prompt.ids[:1])), 0

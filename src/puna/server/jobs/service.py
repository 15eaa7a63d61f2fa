"""The service behind every API: finding a model, holding its runner, generating."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, TypeVar

from msgspec.structs import replace

from puna.chat.templates.model_facts import projector_for
from puna.errors import ModelNotFoundError, RequestError, TemplateError
from puna.options import Options
from puna.protocol import (
    Chunk,
    Detokenized,
    Done,
    Evaluated,
    Generate,
    Priority,
    Prompted,
    Scored,
    TokenLogprob,
)
from puna.runner.client import ProgressCallback
from puna.server.fleet.fleet import Fleet
from puna.server.fleet.resident import LoadPlan, Runner
from puna.server.http.connections import caller
from puna.server.http.logs import facts
from puna.server.http.streams import Streams
from puna.server.jobs.running import Progress, RunnerLease, Running, RunningRequests
from puna.server.jobs.turns import WorkSlots, run_in_thread
from puna.server.metrics import Metrics, Observation
from puna.server.settings import Settings
from puna.store import Store, StoredModel

T = TypeVar("T")

#: Maximum items of merge streams that wait to be read.
_AHEAD = 64
#: Pulls and pushes that run at the same time: in all, of one client, and with one registry. Others wait.
_TRANSFERS = 32
_OF_CLIENT = 8
_OF_HOST = 4
#: Models converted or quantised at the same time, each with all processors.
_CREATIONS = 2
#: PDF documents read at the same time, each in a process of its own.
_DOCUMENTS = 2
#: Audio files decoded at the same time, each in a process of its own: in all, and of one client.
_DECODINGS = 2
_DECODINGS_OF_CLIENT = 1
#: Short operations on the store at the same time; they may wait for its lock or for a disk.
_STORE_WORK = 8


@dataclass(frozen=True)
class LoadRequest:
    """A request to load `model` for `client` with `options`, and to keep it for a time after its last use."""

    model: StoredModel
    options: Options
    keep_alive_s: float | None = None
    given: Sequence[Mapping[str, Any]] = ()  # the mappings that the options were read from
    ignored: Sequence[str] = ()  # sentences about other ignored parts of the request
    give_way: Callable[[], object] | None = None  # called once another model waits until this one is unloaded
    arrived_ns: int = field(default_factory=time.perf_counter_ns)
    client: str = field(default_factory=lambda: caller().client)


@dataclass(frozen=True)
class Echo:
    """The prompt, sent before the rest of an answer; without scores, `logprobs` is empty.

    A BOS token that was added to the text is left out. If the first token follows nothing, it has no
    log-probability, and `first` is its text.
    """

    text: str
    logprobs: Sequence[TokenLogprob | None] = ()
    first: str = ""
    sample: int = 0


@dataclass(frozen=True)
class Finished:
    """The end of an answer. Durations in nanoseconds, from the arrival of the request."""

    done: Done
    total_duration: int
    load_duration: int
    context: list[int]  # tokens of the prompt and the answer
    unsent: Sequence[int] = ()  # the last tokens of the answer, which are in no chunk
    sample: int = 0
    warnings: Sequence[str] = ()


#: Items of `Service.generate`. `sample` numbers the answers to all prompts of a request: first the samples
#: of the first prompt, then those of the second, and so on.
Part = Progress | Prompted | Echo | Chunk | Finished
_Event = Prompted | Evaluated | Scored | Chunk | Done


def _diverged(done: Done) -> list[str]:
    """Return a warning if an answer went on on a machine that would have begun it otherwise."""
    if not done.diverged:
        return []
    return [
        f"the machine that began this answer was lost, and the one that went on after {done.resumed} tokens "
        f"would have drawn {done.diverged} of them otherwise: it has other kernels"
    ]


def warnings(order: LoadRequest, runner: Runner) -> list[str]:
    """Return the warnings for a request's answers: those of its model, and what is ignored in the request.

    The latter are also noted for the request log.
    """
    info = runner.info
    useless = Options.ignored(
        *order.given, engine=info.engine, scales=runner.scales, on_gpu=info.on_gpu, gpus=info.gpus
    )
    ignored = [*order.ignored, *useless]
    facts().ignored = "; ".join(ignored)
    return [*info.warnings, *ignored]


@contextlib.contextmanager
def template_errors(*, requested: bool) -> Iterator[None]:
    """Turn errors of a template into errors of the request if the request brought it (`requested`)."""
    try:
        yield
    except TemplateError as error:
        if requested:
            raise RequestError(str(error)) from error
        raise


def _template_errors(order: LoadRequest, *requests: Generate) -> contextlib.AbstractContextManager[None]:
    """Turn errors of templates other than the model's own into errors of the request."""
    return template_errors(requested=any(one.template not in ("", order.model.template) for one in requests))


class Service:
    """The store, the fleet and the settings, with the operations that routes need."""

    def __init__(self, store: Store, fleet: Fleet, settings: Settings, metrics: Metrics) -> None:
        self.store = store
        self.fleet = fleet
        self.settings = settings
        self.metrics = metrics
        self.requests = RunningRequests()
        self.streams = Streams(settings.ping_s)
        longest = settings.max_queue
        self.transfers = WorkSlots(_TRANSFERS, of_client=_OF_CLIENT, of_kind=_OF_HOST, longest_queue=longest)
        self.creations = WorkSlots(
            _CREATIONS, of_client=_CREATIONS, of_kind=_CREATIONS, longest_queue=longest
        )
        self.decoding = WorkSlots(
            _DECODINGS, of_client=_DECODINGS_OF_CLIENT, of_kind=_DECODINGS, longest_queue=longest
        )
        self._store_work = asyncio.Semaphore(_STORE_WORK)
        self.reading = asyncio.Semaphore(_DOCUMENTS)

    async def in_store(self, work: Callable[[], T]) -> T:
        """Return the result of `work`, which may wait for the store's lock or read whole files.

        If the client leaves, the work is still done, and keeps its place until then.
        """
        await self._store_work.acquire()
        working = run_in_thread(work)
        working.add_done_callback(lambda _: self._store_work.release())
        return await asyncio.shield(working)

    def find(self, name: str) -> StoredModel:
        """Return the model `name`. Raises RequestError, InvalidNameError or ModelNotFoundError."""
        if not name.strip():
            raise RequestError("model is required")
        facts().model = name
        return self._named(name)

    def _named(self, name: str) -> StoredModel:
        try:
            return self.store.get(name)
        except ModelNotFoundError as error:
            raise ModelNotFoundError(f"model '{name}' not found") from error

    def order(
        self,
        model: StoredModel,
        given: Mapping[str, Any],
        keep_alive_s: float | None = None,
        ignored: Sequence[str] = (),
        defaults: Mapping[str, Any] | None = None,
    ) -> LoadRequest:
        """Return the load request for `model`, with its own options overridden by those `given`.

        `ignored` are sentences about other ignored parts of the request, and `defaults` the options that
        neither the model nor the request sets. Raises ScopeError for `replicas`, which are for all clients,
        unless the caller manages the server.
        """
        if given.get("replicas") is not None:
            caller().require("manage", "changing the number of replicas")
        options = Options.merge(defaults, model.params, given)
        return LoadRequest(model, options, keep_alive_s, (model.params, given), ignored)

    def num_ctx(self, order: LoadRequest) -> int:
        """Return the tokens of context a request may use, whatever its model was loaded with."""
        wanted = order.options.num_ctx
        return self.settings.context_length if wanted is None else wanted

    def plan(self, order: LoadRequest) -> LoadPlan:
        options, model = order.options, order.model
        draft = str(self._named(options.draft).runnable_path()) if options.draft else ""
        projector = projector_for(model.projector_paths, model.runnable_path())
        return LoadPlan.of(
            options,
            self.settings.context_length,
            draft,
            self.settings.engine,
            str(projector or ""),
            model.adapters,
        )

    @contextlib.asynccontextmanager
    async def runner(
        self,
        order: LoadRequest,
        on_progress: ProgressCallback | None = None,
        priority: Priority = "interactive",
    ) -> AsyncIterator[Runner]:
        """Hold the runner of the model in `order` while the context is open.

        `on_progress` is called with the progress of loading.
        """
        plan, keep_s = self.plan(order), order.keep_alive_s
        async with self.fleet.use(
            order.model,
            plan,
            keep_s,
            client=order.client,
            priority=priority,
            on_progress=on_progress,
            give_way=order.give_way,
        ) as runner:
            yield runner

    async def load(self, order: LoadRequest) -> list[str]:
        """Load the model for its keep-alive time, and return warnings."""
        async with self.runner(order) as runner:
            return warnings(order, runner)

    async def unload(self, model: StoredModel) -> None:
        """Unload the model. Raises ScopeError if the caller's key does not allow it."""
        caller().require("manage", "unloading a model")
        await self.fleet.unload(str(model.model_path))

    async def render(self, order: LoadRequest, request: Generate) -> Prompted:
        """Return the rendered prompt of `request` without generating."""
        with _template_errors(order, request):
            async with self.runner(order) as runner:
                options = replace(request.options, num_ctx=self.num_ctx(order))
                return await runner.render(replace(request, options=options))

    async def tokenize(
        self, model: StoredModel, text: str, *, add_special: bool, parse_special: bool
    ) -> list[int]:
        """Return the tokens of `text`."""
        async with self._any_runner(model) as runner:
            return await runner.tokenize(text, add_special=add_special, parse_special=parse_special)

    async def detokenize(self, model: StoredModel, tokens: list[int]) -> Detokenized:
        """Return the text of `tokens`."""
        async with self._any_runner(model) as runner:
            return await runner.detokenize(tokens)

    @contextlib.asynccontextmanager
    async def _any_runner(self, model: StoredModel) -> AsyncIterator[Runner]:
        """Hold a runner of `model`, with whatever options it was loaded."""
        path = str(model.runnable_path())
        plan = next((entry.plan for entry in self.fleet.loaded() if entry.path == path), None)
        plan = plan or self.plan(self.order(model, {}))
        async with self.fleet.use(model, plan, client=caller().client) as runner:
            yield runner

    async def generate(
        self, order: LoadRequest, requests: Sequence[Generate], *, echo: bool = False
    ) -> AsyncGenerator[Part, None]:
        """Yield the parts of the answers to all `requests`; each answer ends with `Finished`.

        With `echo`, each answer begins with its prompt. Either all requests ask for `Progress`, or none.
        Closing the generator stops the generation.
        """
        choices = sum(request.samples for request in requests)
        with (
            self.metrics.observation(order.model.name, order.arrived_ns, choices) as observation,
            self.requests.running(order.model.name, order.arrived_ns) as running,
        ):
            async with contextlib.AsyncExitStack() as held:
                lease = RunnerLease(
                    lambda on_progress: self.runner(order, on_progress, requests[0].priority),
                    held,
                    running,
                    order.arrived_ns,
                )
                if requests[0].progress:
                    async with contextlib.aclosing(lease.steps()) as steps:
                        async for step in steps:
                            yield step
                runner = await lease.runner()
                observation.loaded()
                running.loaded()
                loaded_ns = time.perf_counter_ns()
                num_ctx = self.num_ctx(order)
                first = accumulate((request.samples for request in requests), initial=0)
                known = (echo, num_ctx, loaded_ns, observation, running)
                answers = [
                    _Answers(order, request, number, *known).parts(runner)
                    for request, number in zip(requests, first, strict=False)
                ]
                with _template_errors(order, *requests):
                    async with contextlib.aclosing(merge(answers)) as parts:
                        async for part in parts:
                            yield part


@dataclass
class _Sample:
    """The state of one answer."""

    begun: bool = False
    scores: list[TokenLogprob | None] = field(default_factory=list)  # of the prompt
    tokens: list[int] = field(default_factory=list)
    unsent: list[int] = field(default_factory=list)  # tokens whose text is still held back


class _Answers:
    """The answers to one request, numbered from `first`."""

    def __init__(
        self,
        order: LoadRequest,
        request: Generate,
        first: int,
        echo: bool,
        num_ctx: int,
        loaded_ns: int,
        observation: Observation,
        running: Running,
    ) -> None:
        self._order = order
        self._request = request
        self._first = first
        self._echo = echo
        self._num_ctx = num_ctx
        self._loaded_ns = loaded_ns
        self._observation = observation
        self._running = running
        self._samples = [_Sample() for _ in range(request.samples)]
        self._prompt = Prompted(id=0, text="", tokens=[])  # until it is rendered

    async def parts(self, runner: Runner) -> AsyncGenerator[Part, None]:
        options = replace(self._request.options, num_ctx=self._num_ctx)
        request = replace(self._request, options=options, client=self._order.client)
        async with contextlib.aclosing(runner.generate(request, self._running.thinks)) as events:
            while (event := await self._next(events)) is not None:
                if isinstance(event, Prompted):
                    self._prompt = event
                    if event.broken is not None:
                        self._observation.prefix_broken(event.broken)
                    yield replace(event, sample=self._first) if self._first else event
                    continue
                if isinstance(event, Evaluated):
                    yield Progress.of(event, self._first)
                    continue
                sample, number = self._samples[event.sample], self._first + event.sample
                if isinstance(event, Scored):
                    sample.scores += event.logprobs
                    continue
                if self._echo and not sample.begun:
                    prompt = self._prompt
                    yield Echo(prompt.text, sample.scores[prompt.begin :], prompt.first, number)
                sample.begun = True
                if isinstance(event, Chunk):
                    self._observation.chunk(number, event)
                    self._running.generated(len(event.tokens))
                    sample.tokens += event.tokens
                    sample.unsent += event.tokens
                    if event.text or event.thinking or event.calls or event.logprobs:
                        tokens, sample.unsent = sample.unsent, []
                        is_changed = self._first or len(tokens) > len(event.tokens)
                        yield replace(event, sample=number, tokens=tokens) if is_changed else event
                else:
                    self._observation.done(number, event)
                    broken = [] if self._prompt.broken is None else [str(self._prompt.broken)]
                    found = [*warnings(self._order, runner), *broken, *_diverged(event)]
                    yield self._finished(event, number, found)

    async def _next(self, events: AsyncGenerator[_Event, None]) -> _Event | None:
        with self._running.waiting():
            return await anext(events, None)

    def _finished(self, done: Done, number: int, warnings: Sequence[str]) -> Finished:
        arrived_ns = self._order.arrived_ns
        return Finished(
            done=done,
            total_duration=time.perf_counter_ns() - arrived_ns,
            load_duration=max(self._loaded_ns - arrived_ns, 1),
            context=self._prompt.tokens + self._samples[done.sample].tokens,
            unsent=self._samples[done.sample].unsent,
            sample=number,
            warnings=warnings,
        )


async def merge(streams: Sequence[AsyncGenerator[T, None]]) -> AsyncGenerator[T, None]:
    """Yield the items of all `streams`, which run at the same time; an error in one ends all.

    They run ahead of the reader by at most `_AHEAD` items. Closing this generator, or cancelling the task in
    it, closes them.
    """
    if len(streams) == 1:  # the usual case needs no task of its own
        async with contextlib.aclosing(streams[0]) as items:
            async for item in items:
                yield item
        return
    arrived: asyncio.Queue[T | asyncio.Task[None]] = asyncio.Queue()
    room = asyncio.Semaphore(_AHEAD)

    async def pump(stream: AsyncGenerator[T, None]) -> None:
        async with contextlib.aclosing(stream):
            async for item in stream:
                await room.acquire()
                arrived.put_nowait(item)

    tasks = [asyncio.create_task(pump(stream)) for stream in streams]
    for task in tasks:
        task.add_done_callback(arrived.put_nowait)
    try:
        left = len(tasks)
        while left:
            arrival = await arrived.get()
            if isinstance(arrival, asyncio.Task):
                arrival.result()
                left -= 1
            else:
                room.release()
                yield arrival
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

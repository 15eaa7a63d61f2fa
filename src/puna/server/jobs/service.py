"""What every API is made of: finding a model, holding its runner, generating."""

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
from puna.protocol import Chunk, Done, Evaluated, Generate, Prompted, Scored, TokenLogprob
from puna.server.fleet.fleet import Fleet
from puna.server.fleet.loading import ProgressCallback
from puna.server.fleet.resident import LoadPlan, Runner
from puna.server.http.connections import caller
from puna.server.http.logs import facts
from puna.server.jobs.running import Progress, RunnerLease, Running, RunningRequests
from puna.server.jobs.turns import WorkSlots, in_own_thread
from puna.server.metrics import Metrics, Observation
from puna.server.settings import Settings
from puna.store import Store, StoredModel

T = TypeVar("T")

#: Items that may wait to be taken.
_AHEAD = 64
#: Pulls and pushes that run at the same time, in all, of one client, and of one registry; more wait.
_TRANSFERS = 32
_OF_CLIENT = 8
_OF_HOST = 4
#: Models that are converted or quantised at the same time, each with all processors.
_CREATIONS = 2
#: Short changes of the store, and looks at files, that may wait for its lock or for a disk.
_STORE_WORK = 8


@dataclass(frozen=True)
class LoadRequest:
    """Which model to load for whom, with which `options`, and how long to keep it after its last use."""

    model: StoredModel
    options: Options
    keep_alive_s: float | None = None
    given: Sequence[Mapping[str, Any]] = ()  # what the options were read from
    ignored: Sequence[str] = ()  # what else of the request changes nothing
    arrived_ns: int = field(default_factory=time.perf_counter_ns)
    client: str = field(default_factory=lambda: caller().client)


@dataclass(frozen=True)
class Echo:
    """The prompt, given back before the rest of an answer. Without scores, `logprobs` is empty.

    A begin token added to the text is left out. A first token that follows nothing has no log-probability,
    and `first` is its text.
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
    sample: int = 0
    thought: int = 0  # tokens of thinking alone
    warnings: Sequence[str] = ()


#: What `Service.generate` yields. `sample` numbers the answers to all prompts of a request: first all samples
#: of the first prompt, then those of the second, and so on.
Part = Progress | Prompted | Echo | Chunk | Finished
_Event = Prompted | Evaluated | Scored | Chunk | Done


def warnings(order: LoadRequest, runner: Runner) -> list[str]:
    """Return the warnings of a request's answers: its model's own, and what of the request is ignored.

    The log's line of the request tells what is ignored, too.
    """
    ignored = [*order.ignored, *Options.ignored(*order.given, engine=runner.info.engine)]
    facts().ignored = "; ".join(ignored)
    return [*runner.info.warnings, *ignored]


@contextlib.contextmanager
def template_errors(*, came: bool) -> Iterator[None]:
    """Turn errors of a template that `came` with a request into errors of the request."""
    try:
        yield
    except TemplateError as error:
        if came:
            raise RequestError(str(error)) from error
        raise


def _template_errors(order: LoadRequest, *requests: Generate) -> contextlib.AbstractContextManager[None]:
    """Turn errors of a template into errors of the request unless it is the model's own."""
    return template_errors(came=any(one.template not in ("", order.model.template) for one in requests))


class Service:
    """The store, the fleet and the settings, and what the routes do with them."""

    def __init__(self, store: Store, fleet: Fleet, settings: Settings, metrics: Metrics) -> None:
        self.store = store
        self.fleet = fleet
        self.settings = settings
        self.metrics = metrics
        self.requests = RunningRequests()
        longest = settings.max_queue
        self.transfers = WorkSlots(_TRANSFERS, of_client=_OF_CLIENT, of_kind=_OF_HOST, longest_queue=longest)
        self.creations = WorkSlots(
            _CREATIONS, of_client=_CREATIONS, of_kind=_CREATIONS, longest_queue=longest
        )
        self._store_work = asyncio.Semaphore(_STORE_WORK)

    async def in_store(self, work: Callable[[], T]) -> T:
        """What `work` returns or raises, which may have to wait for the store's lock or read whole files.

        It goes on to its end when the client leaves, and has its place until then.
        """
        await self._store_work.acquire()
        working = in_own_thread(work)
        working.add_done_callback(lambda _: self._store_work.release())
        return await asyncio.shield(working)

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

    def order(
        self,
        model: StoredModel,
        given: Mapping[str, Any],
        keep_alive_s: float | None = None,
        ignored: Sequence[str] = (),
    ) -> LoadRequest:
        """The order of a request: its options are the model's own under those `given`.

        `ignored` says what else of the request changes nothing.
        """
        options = Options.merge(model.params, given)
        return LoadRequest(model, options, keep_alive_s, (model.params, given), ignored)

    def num_ctx(self, order: LoadRequest) -> int:
        """Tokens of context that a request may have, whatever its model was loaded for."""
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
    async def runner(self, order: LoadRequest, hear: ProgressCallback | None = None) -> AsyncIterator[Runner]:
        """The runner of the model that `order` names, for as long as the block runs; `hear` of its load."""
        plan, keep_s = self.plan(order), order.keep_alive_s
        async with self.fleet.use(order.model, plan, keep_s, client=order.client, hear=hear) as runner:
            yield runner

    async def load(self, order: LoadRequest) -> list[str]:
        """Bring the model into memory and leave it there for its keep-alive time. Returns warnings."""
        async with self.runner(order) as runner:
            return warnings(order, runner)

    async def unload(self, model: StoredModel) -> None:
        """Take the model out of memory. Raises ScopeError if the caller's key is not for that."""
        caller().require("manage", "unloading a model")
        await self.fleet.unload(str(model.model_path))

    async def render(self, order: LoadRequest, request: Generate) -> Prompted:
        """The prompt alone, without generating."""
        with _template_errors(order, request):
            async with self.runner(order) as runner:
                options = replace(request.options, num_ctx=self.num_ctx(order))
                return await runner.render(replace(request, options=options))

    async def generate(
        self, order: LoadRequest, requests: Sequence[Generate], *, echo: bool = False
    ) -> AsyncGenerator[Part, None]:
        """Yield the parts of the answers to all `requests`; each answer ends with `Finished`.

        With `echo` each begins with its prompt. Either all requests want `Progress`, or none does. Closing
        the generator stops the generation.
        """
        choices = sum(request.samples for request in requests)
        with (
            self.metrics.observation(order.model.name, order.arrived_ns, choices) as observation,
            self.requests.running(order.model.name, order.arrived_ns) as running,
        ):
            async with contextlib.AsyncExitStack() as held:
                getting = RunnerLease(lambda hear: self.runner(order, hear), held, running, order.arrived_ns)
                if requests[0].progress:
                    async with contextlib.aclosing(getting.steps()) as steps:
                        async for step in steps:
                            yield step
                runner = await getting.runner()
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
                    async with contextlib.aclosing(merged(answers)) as parts:
                        async for part in parts:
                            yield part


@dataclass
class _Sample:
    """What is known of one answer so far."""

    begun: bool = False
    scores: list[TokenLogprob | None] = field(default_factory=list)  # of the prompt
    tokens: list[int] = field(default_factory=list)
    thought: int = 0  # of the tokens


class _Answers:
    """The answers to one request, numbered from `first` on."""

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
        self._prompt = Prompted(id=0, text="", tokens=[])  # until it is known

    async def parts(self, runner: Runner) -> AsyncGenerator[Part, None]:
        options = replace(self._request.options, num_ctx=self._num_ctx)
        request = replace(self._request, options=options, client=self._order.client)
        async with contextlib.aclosing(runner.generate(request)) as events:
            while (event := await self._next(events)) is not None:
                if isinstance(event, Prompted):
                    self._prompt = event
                    yield event
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
                    if event.thinking and not (event.text or event.calls):
                        sample.thought += len(event.tokens)
                    if event.text or event.thinking or event.calls or event.logprobs:
                        yield replace(event, sample=number) if self._first else event
                else:
                    self._observation.done(number, event)
                    yield self._finished(event, number, warnings(self._order, runner))

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
            sample=number,
            thought=self._samples[done.sample].thought,
            warnings=warnings,
        )


async def merged(streams: Sequence[AsyncGenerator[T, None]]) -> AsyncGenerator[T, None]:
    """The items of all `streams`, which run at the same time; an error of one ends all.

    They run ahead of who takes the items by a few of them, no more. Closing it, or cancelling the task in it,
    closes them.
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
            came = await arrived.get()
            if isinstance(came, asyncio.Task):
                came.result()
                left -= 1
            else:
                room.release()
                yield came
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

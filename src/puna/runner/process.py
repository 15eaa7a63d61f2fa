"""The runner process, which owns one loaded model and speaks `puna.protocol` with its parent."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from pathlib import Path
from queue import SimpleQueue
from typing import Literal, NoReturn, TypeVar, get_args

import msgspec

from puna.chat.templates.model_facts import ModelFacts, facts_at
from puna.chat.templates.renderer.client import Renderer
from puna.conversation.chat_model import ChatModel
from puna.engine.engine import Engine
from puna.engine.room import EngineSizes
from puna.errors import InsufficientMemoryError, OutOfMemoryError, PunaError, RequestError, RunnerError, shown
from puna.kvcache.cache import Picturing
from puna.kvcache.contents import Contents
from puna.kvcache.types import KVTypes
from puna.machine import allow_memory, is_out_of_memory, memory_is_short, process_memory
from puna.model.load import LoadedModel, LoadSettings, load_model, load_stage
from puna.model.parallel.model import ParallelModel
from puna.model.split.model import SplitModel
from puna.ops import default_backend, missing_kernels
from puna.options import PUNA, AdapterFile, drafts_itself
from puna.protocol import (
    IN_DOUBT,
    OUT_OF_MEMORY,
    BlockingSocket,
    Cancel,
    Channel,
    Detokenize,
    Embed,
    Failed,
    FinishThinking,
    Frame,
    Generate,
    Grow,
    Grown,
    Inspect,
    Inspected,
    Load,
    Loaded,
    LoadingProgress,
    Ping,
    Pong,
    Refused,
    Render,
    ReportPrefixes,
    SplitLoad,
    StageCost,
    Tokenize,
    ToRunner,
    Transcribe,
    Watch,
    Watched,
    WireMessage,
)
from puna.runner.stage import StageProcess, joined

T = TypeVar("T")

#: Whether the text of a request takes long to prepare.
Kind = Literal["short", "long"]

Prepare = Callable[[], None]


class Preparing:
    """Threads that prepare requests for the engine in the order of arrival.

    Each kind of request has its own thread, so that a text of megabytes does not delay short ones.
    """

    def __init__(self, cancel: Callable[[int], None], on_death: Callable[[BaseException], object]) -> None:
        """Use `cancel` to stop a request in the engine; `on_death` gets errors that must end the process."""
        self._cancel = cancel
        self._on_death = on_death
        self._lock = threading.Lock()
        self._cancelled: dict[int, bool] = {}  # of the requests in preparation, by id
        self._queues: dict[Kind, SimpleQueue[tuple[int, Prepare]]] = {}
        for kind in get_args(Kind):
            queue = self._queues[kind] = SimpleQueue()
            thread = threading.Thread(target=self._work, args=(queue,), name=f"puna-{kind}", daemon=True)
            thread.start()

    def add(self, request_id: int, prepare: Prepare, kind: Kind) -> None:
        """Queue `prepare`, which passes the request to the engine or answers it."""
        with self._lock:
            self._cancelled[request_id] = False
        self._queues[kind].put((request_id, prepare))

    def cancel(self, request_id: int) -> None:
        """Stop a request, whether it is still being prepared or already in the engine."""
        with self._lock:
            if request_id in self._cancelled:
                self._cancelled[request_id] = True  # if already begun, it is stopped once it is in the engine
                return
        self._cancel(request_id)

    def _work(self, queue: SimpleQueue[tuple[int, Prepare]]) -> None:
        try:
            while True:
                request_id, prepare = queue.get()
                if not self._cancelled[request_id]:
                    prepare()
                with self._lock:
                    cancelled = self._cancelled.pop(request_id)
                if cancelled:
                    self._cancel(request_id)
                del prepare  # frees the text while this thread waits
        except BaseException as error:
            self._on_death(error)


log = logging.getLogger("puna.runner")

_PROGRESS_INTERVAL_S = 0.05

#: Larger frames are not decoded by the thread that answers pings.
_SMALL_BYTES = 1 << 16

#: How long a thread may run Python before it yields to the engine's thread, whose short steps wait for the
#: interpreter several times. Python's default of 5 ms would make steps many times as long while a prompt is
#: tokenised.
_SWITCH_INTERVAL_S = 1e-4

#: Time for saving prompts at the end, before the parent kills the process.
_SAVING_S = 4.0


def serve(sock: BlockingSocket) -> None:
    """Load a model on request, then answer requests until the parent hangs up."""
    channel = _Parent(sock, ToRunner)
    try:
        model = _await_model(channel)
    except Exception as error:
        if is_out_of_memory(error):
            _leave(error)
        raise
    if model is None:
        return
    if isinstance(model, StageProcess):
        model.serve(channel, on_death=_leave)
        return
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    model.engine.start(on_death=_leave)
    preparing = Preparing(model.cancel, on_death=_leave)
    try:
        while (frame := channel.receive()) is not None:
            with _failing_alone(frame.id, channel):
                _take(frame, model, preparing, channel)
    except (MemoryError, SystemError) as error:
        _leave(error)
    model.engine.save_prompts(_SAVING_S)
    # The engine's thread may be in a long step; the system gets the memory back either way.
    os._exit(0)


class _Parent(Channel[ToRunner]):
    """The connection to the server. When it breaks, the process ends, because there is nothing left to serve.

    Any thread may be the first to notice: the engine's may send before the main thread receives.
    """

    def send(self, message: WireMessage) -> None:
        try:
            super().send(message)
        except OSError as error:
            _end_alone(error)

    def receive(self) -> Frame[ToRunner] | None:
        try:
            return super().receive()
        except OSError as error:
            _end_alone(error)


def _end_alone(error: OSError) -> NoReturn:
    if is_out_of_memory(error):  # the system has no memory for buffers
        _leave(error)
    log.info("the connection broke: %s", error)
    os._exit(0)


def _leave(error: BaseException) -> NoReturn:
    """End the process at once, with a status that tells the parent why."""
    status = OUT_OF_MEMORY if is_out_of_memory(error) or memory_is_short() else IN_DOUBT
    with contextlib.suppress(BaseException):  # logging may run out of memory too
        log.error("the process ends: %s: %s", type(error).__name__, error)
    os._exit(status)


def _await_model(channel: _Parent) -> ChatModel | StageProcess | None:
    """Wait for a model that can be loaded; return None if the parent hangs up or a load fails for good."""
    while (frame := channel.receive()) is not None:
        message = frame.message()
        if not isinstance(message, Load):
            raise RequestError(f"the first message must be Load, not {type(message).__name__}")
        allow_memory(message.allowed)
        try:
            if message.split is not None and message.split.number:
                return _load_stage(message, message.split, channel)
            return _load(message, channel)
        except InsufficientMemoryError as error:  # the parent may free memory and try again
            channel.send(Refused(message=str(error), needed=error.needed, available=error.available))
        except PunaError as error:
            channel.send(Failed.of(0, error))
            return None
    return None


@contextlib.contextmanager
def _adapters_named(adapters: Iterable[AdapterFile]) -> Iterator[None]:
    """Replace the paths of adapters by their names in errors raised in this context."""
    try:
        yield
    except PunaError as error:
        message = str(error)
        for each in adapters:
            name = f"adapter {shown(each.name)}"
            message = message.replace(each.path, name).replace(Path(each.path).name, name)
        error.args = (message,)
        raise


def _load(request: Load, channel: _Parent) -> ChatModel:
    default_backend().set_threads(request.num_thread)
    facts = facts_at(Path(request.path)) or ModelFacts()
    renderer = Renderer()
    if not facts.embeds:
        renderer.start()  # while the weights are read
    with _adapters_named(request.adapters):
        loaded = load_model(
            request.path,
            _settings(request),
            draft=request.draft,
            projector=request.projector,
            adapters=request.adapters,
            ops=None if request.split is None else default_backend(),
            progress=_reporting(channel),
        )
    if request.split is not None:
        loaded = joined(loaded, request.split, on_loss=_leave)
    elif isinstance(loaded.model, ParallelModel):
        loaded.model.ranks.on_loss = _leave
    engine = Engine(
        loaded,
        EngineSizes(
            context=request.num_ctx,
            parallel=request.parallel,
            batch_size=request.num_batch,
            cache_types=KVTypes.parse(request.kv_cache_type),
        ),
        speculate=request.speculate,
        growable=True,
    )
    model = ChatModel(engine, facts, renderer)
    channel.send(_loaded(engine))
    return model


def _load_stage(request: Load, split: SplitLoad, channel: _Parent) -> StageProcess:
    ops = default_backend()
    ops.set_threads(request.num_thread)
    with _adapters_named(request.adapters):
        loaded = load_stage(
            request.path,
            _settings(request),
            adapters=request.adapters,
            ops=ops,
            progress=_reporting(channel),
        )
    stage = StageProcess(loaded, split, request.reserved)
    channel.send(stage.loaded())
    return stage


def _settings(request: Load) -> LoadSettings:
    return LoadSettings(
        context=request.num_ctx,  # 0: chosen by the engine
        parallel=request.parallel,
        batch_size=request.num_batch,
        reserved=request.reserved,
        cache_types=KVTypes.parse(request.kv_cache_type),
        prediction_heads=drafts_itself(request.speculate) and not request.draft,
        layers=None if request.split is None else request.split.layers,
        engine=request.engine,
        placement=request.placement,
    )


def _reporting(channel: _Parent) -> Callable[[int, int], None]:
    """Return a function that sends loading progress at most once per `_PROGRESS_INTERVAL_S`."""
    last = 0.0

    def report(done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if done == total or now - last > _PROGRESS_INTERVAL_S:
            last = now
            channel.send(LoadingProgress(done=done, total=total))

    return report


def _loaded(engine: Engine) -> Loaded:
    loaded = engine.loaded
    own = loaded.model.engine == PUNA
    return Loaded(
        context_length=engine.context,
        parallel=engine.parallel,
        weight_bytes=engine.weight_bytes,
        cache_bytes=_cache_bytes(engine),
        kernels=loaded.kernels if own else "ggml",
        engine=loaded.model.engine,
        vram_bytes=_vram_bytes(engine),
        device=_device(loaded),
        on_gpu=loaded.layers_on_gpu,
        fitting=loaded.fitting,
        gpus=loaded.gpus,
        max_context=engine.room.max_context,
        trained_context=loaded.trained_context,
        exact_context=loaded.model.exact_context,
        warnings=_warnings(loaded),
    )


def _device(loaded: LoadedModel) -> str:
    """Return where Puna's own engine computes the model, as `GPU 0 (20 of 32 layers) and CPU (12)`."""
    if isinstance(loaded.model, ParallelModel):
        return f"{' and '.join(loaded.model.devices)} (tensor parallel)"
    counts = loaded.layers_on
    if len(counts) < 2:
        return loaded.ops.device if loaded.model.engine == PUNA else ""
    first, *others = [f"{ops.device} ({count}" for ops, count in counts.items()]
    first += f" of {sum(counts.values())} layers"
    return f"{', '.join(f'{each})' for each in (first, *others[:-1]))} and {others[-1]})"


def _cache_bytes(engine: Engine) -> int:
    """Return the most that caches can take in all ranks; only rank 0 has that of a draft model."""
    return engine.cache_bytes + engine.room.cache_bytes * (engine.loaded.ranks - 1)


def _vram_bytes(engine: Engine) -> int:
    """Return the bytes on GPUs: with Puna's own engine also of caches and of the draft model."""
    loaded = engine.loaded
    if not loaded.layers_on_gpu:
        return loaded.vram_bytes
    draft = engine.weight_bytes - loaded.weight_bytes
    return loaded.vram_bytes + draft + round(_cache_bytes(engine) * loaded.cache_share_on_gpu)


def _warnings(loaded: LoadedModel) -> tuple[str, ...]:
    on_host = loaded.model.engine == PUNA and not loaded.layers_on_gpu
    problem = missing_kernels() if on_host else ""
    return (problem, *loaded.warnings) if problem else loaded.warnings


def _take(frame: Frame[ToRunner], model: ChatModel, preparing: Preparing, channel: _Parent) -> None:
    """Answer quick messages at once, and leave the others to threads that do not delay pings."""
    if frame.size_bytes > _SMALL_BYTES:
        _prepare(frame, model, preparing, channel, "long")
        return
    match frame.message():
        case Generate() | Embed() | Transcribe() | Render() | Tokenize() | Detokenize():
            _prepare(frame, model, preparing, channel, "short")
        case Cancel(id=request_id):
            preparing.cancel(request_id)
        case FinishThinking(id=request_id):
            model.finish_thinking(request_id)
        case Ping() as ping:
            channel.send(_pong(ping, model))
        case Grow() as grow:
            _grow(grow, model.engine, channel)
        case Inspect() as inspect:
            engine = model.engine
            _between_steps(
                inspect.id,
                engine,
                lambda: _contents(engine),
                lambda caches: Inspected(id=inspect.id, caches=caches),
                channel,
            )
        case Watch() as watch:
            engine = model.engine
            _between_steps(
                watch.id,
                engine,
                engine.live_state,
                lambda state: Watched(id=watch.id, state=state),
                channel,
            )
        case ReportPrefixes() as report:
            _between_steps(
                report.id,
                model.engine,
                lambda: model.engine.prefix_reports.report(report),
                lambda found: found,
                channel,
            )
        case Load():
            raise RequestError("a model is already loaded in this process")


def _prepare(
    frame: Frame[ToRunner], model: ChatModel, preparing: Preparing, channel: _Parent, kind: Kind
) -> None:
    def prepare() -> None:
        with _failing_alone(frame.id, channel):
            match frame.message():
                case Generate() | Embed() | Transcribe() as request:
                    model.submit(request, channel.send)
                case Render(request=request, blocks=blocks):
                    request = msgspec.structs.replace(request, id=frame.id)
                    model.render(request, channel.send, blocks=blocks)
                case Tokenize() as text:
                    channel.send(model.tokenize(text))
                case Detokenize() as tokens:
                    channel.send(model.detokenize(tokens))

    preparing.add(frame.id, prepare, kind)


@contextlib.contextmanager
def _failing_alone(request_id: int, channel: _Parent) -> Iterator[None]:
    """Turn errors in this context, including bugs, into the failure of one request.

    Raises MemoryError or SystemError when the process cannot continue.
    """
    try:
        yield
    except SystemError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            if memory_is_short():
                raise MemoryError from error
            channel.send(Failed.of(request_id, OutOfMemoryError()))
        elif isinstance(error, PunaError):
            channel.send(Failed.of(request_id, error))
        else:
            log.exception("request %d failed", request_id)
            reason = f"internal error in the model runner: {type(error).__name__}: {error}"
            channel.send(Failed.of(request_id, RunnerError(reason)))


def _pong(message: Ping, chat: ChatModel) -> Pong:
    engine = chat.engine
    started, model = engine.step_started, engine.loaded.model
    return Pong(
        id=message.id,
        active=chat.active,
        running=chat.running,
        step_age_s=time.monotonic() - started if started is not None else 0.0,
        cache_bytes=engine.provided_bytes + engine.cache.provided_bytes * (engine.loaded.ranks - 1),
        cells=engine.cache.counts(),
        evicted=engine.evicted,
        memory_bytes=process_memory(),
        stages=[StageCost(**vars(cost)) for cost in model.other_stages.costs]
        if isinstance(model, SplitModel)
        else [],
    )


def _between_steps(
    id: int, engine: Engine, work: Callable[[], T], reply: Callable[[T], WireMessage], channel: _Parent
) -> None:
    """Reply with the result of `work`, done on the engine's thread; meanwhile this one answers pings."""

    def answer(done: Future[T]) -> None:
        if (error := done.exception()) is not None:
            known = error if isinstance(error, PunaError) else RunnerError(str(error))
            channel.send(Failed.of(id, known))
        else:
            channel.send(reply(done.result()))

    engine.ask(work).add_done_callback(answer)


def _grow(message: Grow, engine: Engine, channel: _Parent) -> None:
    """Grow the context on the engine's thread, between two steps."""
    allow_memory(message.allowed)

    def grown(_: None) -> Grown:
        return Grown(
            id=message.id,
            context_length=engine.context,
            cache_bytes=_cache_bytes(engine),
            vram_bytes=_vram_bytes(engine),
        )

    _between_steps(message.id, engine, lambda: engine.grow(message.num_ctx, message.reserved), grown, channel)


def _contents(engine: Engine) -> list[Contents]:
    return engine.cache.contents() if isinstance(engine.cache, Picturing) else []

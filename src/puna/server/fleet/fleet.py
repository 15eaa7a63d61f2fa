"""The models in memory: one runner each, loaded one after another, and ended when unused."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import AsyncIterator, Callable, Iterator

from puna.errors import CrashLoopError, InsufficientMemoryError, RunnerError
from puna.protocol import Priority
from puna.runner.client import ProgressCallback
from puna.server.fleet.events import (
    ModelEvents,
    ModelFailed,
    ModelLoaded,
    ModelLoading,
    ModelState,
    ModelUnloaded,
    UnloadReason,
)
from puna.server.fleet.loading import Crashes, Loading, Loads, Queue, watch
from puna.server.fleet.resident import Launcher, LoadPlan, ResidentModel, Runner, victim, victims
from puna.server.fleet.status import look
from puna.server.http.replies import error_text
from puna.server.metrics import Metrics
from puna.server.settings import DEFAULT_PARALLEL, Settings
from puna.store import StoredModel

#: An idle runner that does not answer within this time, or the step timeout if shorter, is replaced.
PING_TIMEOUT_S = 10.0

_LEAVING = "the server is shutting down"

_log = logging.getLogger(__name__)


class Fleet:
    """The runners of loaded models, lent to requests. All methods belong to the event loop's thread.

    A runner is identified by the path of its model file, so names that share a file share the runner.
    """

    def __init__(self, settings: Settings, metrics: Metrics, launcher: Launcher) -> None:
        self._launcher = launcher
        self._settings = settings
        self._metrics = metrics
        self._crashes = Crashes()
        self._loaded: dict[str, ResidentModel] = {}
        self._loads: dict[tuple[str, LoadPlan], Loading] = {}
        self._load_turns = Loads()
        self._timers: dict[ResidentModel, asyncio.TimerHandle] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._queue = Queue(settings.max_queue)
        self._closed = False
        self.events = ModelEvents(self._states)

    # --- requests ---

    @contextlib.asynccontextmanager
    async def use(
        self,
        model: StoredModel,
        plan: LoadPlan,
        keep_alive_s: float | None = None,
        *,
        client: str = "",
        priority: Priority = "interactive",
        on_progress: ProgressCallback | None = None,
        give_way: Callable[[], object] | None = None,
    ) -> AsyncIterator[Runner]:
        """Hold a runner for `model`, loaded by `plan`, while the context is open.

        `on_progress` is called with the progress of the load, if there is one, and `give_way` once another
        model waits until this one has left memory. Raises the error of loading,
        ServerBusyError when too many requests wait, and CrashLoopError when the model's runner has died too
        often to be started again now.
        """
        self._queue.enter(client)
        try:
            entry = await self._acquire(model, plan, keep_alive_s, client, priority, on_progress)
        except BaseException:
            self._queue.leave(client)
            raise
        try:
            if entry.runner is None:  # ended between the load and now
                raise RunnerError(_LEAVING)
            self._look_after(entry)
            with entry.giving_way(give_way):
                yield entry.runner
        except RunnerError:
            if self._closed:
                raise RunnerError(_LEAVING) from None
            raise
        finally:
            self._queue.leave(client)
            self._release(entry)

    async def unload(self, path: str) -> None:
        """End the runner of the model file `path`, at once if it is idle, else after its requests."""
        entry = self._loaded.get(path)
        if entry is None:
            return
        entry.keep_alive_s, entry.leaving = 0.0, "requested"
        entry.touch()
        if entry.runner is not None and entry.users == 0 and (ending := self._end(entry)) is not None:
            await asyncio.shield(ending)

    def loaded(self) -> list[ResidentModel]:
        """Return the models in memory or being loaded, those that expire last first."""
        living = [entry for entry in self._loaded.values() if entry.runner is None or entry.runner.alive]
        return sorted(living, key=lambda entry: -entry.expires_s)

    def waiting(self) -> dict[str, int]:
        """Return how many requests wait for a load, by the name of the model."""
        counts: dict[str, int] = {}
        for load in self._loads.values():
            counts[load.name] = counts.get(load.name, 0) + load.waiters
        return counts

    async def close(self) -> None:
        """End all runners; streams in progress get a RunnerError."""
        self._closed = True
        for load in list(self._loads.values()):
            load.task.cancel()
        await asyncio.gather(*(load.task for load in self._loads.values()), return_exceptions=True)
        for entry in list(self._loaded.values()):
            entry.leaving = "shutdown"
            self._end(entry)
        await asyncio.gather(*self._ending, return_exceptions=True)

    # --- inside ---

    def _states(self) -> list[ModelState]:
        return [
            ModelState(entry.model.name, entry.loading if entry.runner is None else None)
            for entry in self.loaded()
        ]

    async def _acquire(
        self,
        model: StoredModel,
        plan: LoadPlan,
        keep_alive_s: float | None,
        client: str,
        priority: Priority,
        on_progress: ProgressCallback | None,
    ) -> ResidentModel:
        path = str(model.runnable_path())
        while True:
            if self._closed:
                raise RunnerError(_LEAVING)
            entry = self._loaded.get(path)
            if entry is not None and entry.ready and entry.can_grow_to(plan):
                await self._grow(entry, plan)
            fresh = entry is None or not entry.ready or not entry.serves(plan)
            if entry is None or fresh:
                self._queue.check(client, self._waiting())
                entry = await self._wait_for_load(model, path, plan, client, priority, on_progress)
            else:
                if entry.full:
                    self._queue.check(client, self._waiting() + 1)
                entry.users += 1
            self._stop_timer(entry)
            entry.scale(plan)
            if keep_alive_s is not None:
                entry.keep_alive_s, entry.leaving = keep_alive_s, "idle"
            entry.touch()
            if fresh or entry.users > 1 or await self._answers(entry):
                return entry
            self._release(entry)

    async def _grow(self, entry: ResidentModel, plan: LoadPlan) -> None:
        """Give a loaded model the context of `plan`, if memory allows."""
        entry.users += 1
        try:
            await entry.grow(plan, await self._promised(except_for=entry))
        finally:
            self._release(entry)

    def _waiting(self) -> int:
        """Return how many requests wait for a load or for their turn."""
        waiting = sum(load.waiters for load in self._loads.values())
        return waiting + sum(entry.queued for entry in self._loaded.values())

    def _release(self, entry: ResidentModel) -> None:
        entry.users -= 1
        entry.touch()
        if entry.users == 0:
            if not entry.ready or entry.keep_alive_s <= 0 or self._closed:
                self._end(entry)
            elif not math.isinf(entry.keep_alive_s):
                loop = asyncio.get_running_loop()
                self._timers[entry] = loop.call_later(entry.keep_alive_s, self._end, entry)

    async def _answers(self, entry: ResidentModel) -> bool:
        """Whether an idle runner still answers; mark it for replacement if it does not."""
        runner = entry.runner
        assert runner is not None
        try:
            await runner.ping(min(PING_TIMEOUT_S, self._settings.step_timeout_s))
        except RunnerError as error:
            _log.warning("the runner of %s does not answer (%s); it is replaced", entry.model.name, error)
            runner.kill(str(error))
            entry.retiring = True
            return False
        except BaseException:
            self._release(entry)
            raise
        return True

    async def _wait_for_load(
        self,
        model: StoredModel,
        path: str,
        plan: LoadPlan,
        client: str,
        priority: Priority,
        on_progress: ProgressCallback | None,
    ) -> ResidentModel:
        """Return the model loaded by one task for all waiting requests, with one more user: the caller."""
        refusal = self._crashes.refusal(path, time.monotonic())
        if refusal is not None:
            raise CrashLoopError(refusal)
        key = (path, plan)
        load = self._loads.get(key)
        if load is None:
            load = self._loads[key] = Loading(model.name)
            load.task = asyncio.create_task(self._load(load, model, path, plan))
        if on_progress is not None:
            load.report_to(on_progress)
        self._load_turns.join(load, client, priority)
        try:
            entry = await asyncio.shield(load.task)
            entry.users += 1
            return entry
        except asyncio.CancelledError:
            waiter = asyncio.current_task()
            if load.task.cancelled() and waiter is not None and not waiter.cancelling():
                raise RunnerError(_LEAVING) from None
            raise
        finally:
            self._load_turns.leave(load, client, priority)
            if load.waiters == 0:
                if self._loads.get(key) is load:
                    del self._loads[key]
                self._give_up(load.task)

    def _give_up(self, task: asyncio.Task[ResidentModel]) -> None:
        """Cancel a load that no request waits for, or release the model it has loaded."""

        def drop(done: asyncio.Task[ResidentModel]) -> None:
            if not done.cancelled() and done.exception() is None:
                self._release(done.result())

        if task.done():
            drop(task)
        else:
            task.add_done_callback(drop)
            task.cancel()

    async def _load(self, load: Loading, model: StoredModel, path: str, plan: LoadPlan) -> ResidentModel:
        """Return the loaded model with one user. Other loads have their turns while models are unloaded."""
        began_s = time.monotonic()
        entry = ResidentModel(model=model, path=path, plan=plan, keep_alive_s=self._settings.keep_alive_s)
        entry.touch()
        runner: Runner | None = None
        try:
            while True:
                await self._ended()
                async with self._load_turns.turn(load):
                    known = self._loaded.get(path)
                    if known is not None and known.ready and known.can_grow_to(plan):
                        await self._grow(known, plan)
                    if known is not None and known.ready and known.serves(plan):
                        known.users += 1
                        return known
                    leaving = [known] if known is not None else self._surplus()
                    if not leaving:
                        with self._listed(entry):
                            runner = runner or await self._launcher.launch()
                            if await self._read(runner, entry, leaving, load):
                                self._note_loaded(entry, runner, time.monotonic() - began_s)
                                runner = None
                                return entry
                await asyncio.gather(
                    *(self._retire(other, "replaced" if other is known else "room") for other in leaving)
                )
        except asyncio.CancelledError:
            self.events.say(ModelUnloaded(model.name, "abandoned"))
            raise
        except Exception as error:
            self._metrics.load_failed(model.name)
            self.events.say(ModelFailed(model.name, error_text(error)))
            if isinstance(error, RunnerError):
                self._crashed(entry, error, after_success=False)
            raise
        finally:
            if runner is not None:
                self._hang_up(runner)

    @contextlib.contextmanager
    def _listed(self, entry: ResidentModel) -> Iterator[None]:
        """List the model while it loads, and afterwards if it has a runner."""
        self._loaded[entry.path] = entry
        try:
            yield
        finally:
            if entry.runner is None:
                del self._loaded[entry.path]

    def _note_loaded(self, entry: ResidentModel, runner: Runner, load_s: float) -> None:
        entry.runner = runner
        entry.users += 1
        entry.load_s, entry.loaded_s = load_s, time.monotonic()
        self._metrics.loaded(entry.model.name, load_s)
        self.events.say(
            ModelLoaded(entry.model.name, load_s, entry.size_bytes, entry.runner.info.context_length)
        )
        _log.info(
            "loaded %s in %.1f s on %s: %d MiB, %d tokens of context, %d in parallel",
            entry.model.name,
            load_s,
            runner.info.device or runner.info.engine,
            entry.size_bytes >> 20,
            runner.info.context_length,
            runner.info.parallel,
        )

    async def _read(
        self, runner: Runner, entry: ResidentModel, leaving: list[ResidentModel], load: Loading
    ) -> bool:
        """Load the model, with fewer sequences if memory is short.

        Returns False if memory must first be freed by models that end: those that already do, and those added
        to `leaving`.
        """
        parallel = self._settings.parallel or DEFAULT_PARALLEL
        while True:
            try:
                await self._load_once(runner, entry, parallel, load)
                return True
            except InsufficientMemoryError as error:
                if not self._ending:
                    leaving += await self._in_the_way(entry, error)
                if self._ending or leaving:
                    return False
                if parallel == 1 or self._settings.parallel is not None:
                    raise
                parallel = 1

    async def _load_once(self, runner: Runner, entry: ResidentModel, parallel: int, loading: Loading) -> None:
        def on_progress(done: int, total: int) -> None:
            entry.loading = done / total if total else 0.0
            loading.progressed(done, total)
            self.events.say(ModelLoading(entry.model.name, done, total))

        load = entry.load(self._settings, parallel, reserved=await self._promised(except_for=entry))
        timeout_s = self._settings.load_timeout_s
        await runner.load(load, on_progress, stall_timeout_s=None if math.isinf(timeout_s) else timeout_s)

    async def _promised(self, except_for: ResidentModel) -> int:
        """Return the bytes by which the caches of other loaded models may still grow."""
        others = [other for other in self._loaded.values() if other is not except_for]
        return sum(one.promised_bytes for one in await look(others))

    async def _in_the_way(self, entry: ResidentModel, error: InsufficientMemoryError) -> list[ResidentModel]:
        """Return the models to unload so that `entry` can be loaded; empty if that would not be enough."""
        others = [other for other in self._loaded.values() if other is not entry]
        freed = {one.model.path: one.memory_bytes + one.promised_bytes for one in await look(others)}
        chosen = victims(others, freed, max(error.needed - error.available, 1))
        for other in chosen:
            _log.info("unloading %s to make room for %s", other.model.name, entry.model.name)
        return chosen

    def _surplus(self) -> list[ResidentModel]:
        """Return the models to unload so that one more may be in memory."""
        others = list(self._loaded.values())
        chosen = []
        while len(others) >= self._settings.max_loaded and (other := victim(others)) is not None:
            _log.info("unloading %s to make room", other.model.name)
            others.remove(other)
            chosen.append(other)
        return chosen

    async def _retire(self, entry: ResidentModel, reason: UnloadReason) -> None:
        """Unload the model once its requests have ended."""
        entry.retiring, entry.leaving = True, reason
        for give_way in [*entry.yielding]:
            give_way()
        if entry.users == 0:
            self._end(entry)
        await entry.gone.wait()

    def _end(self, entry: ResidentModel) -> asyncio.Task[None] | None:
        """Forget the model at once, and end its runner if it still has one."""
        self._stop_timer(entry)
        entry.gone.set()
        if self._loaded.get(entry.path) is entry:
            del self._loaded[entry.path]
            runner = entry.runner
            if runner is not None and not runner.alive:
                entry.leaving = "crashed"
                self._crashed(entry, runner.death(), after_success=runner.tally.finished > 0)
        if entry.watch is not None:
            entry.watch.cancel()
        runner, entry.runner = entry.runner, None
        if runner is None:
            return None
        _log.info("unloaded %s", entry.model.name)
        self.events.say(ModelUnloaded(entry.model.name, entry.leaving))
        return self._hang_up(runner)

    def _hang_up(self, runner: Runner) -> asyncio.Task[None]:
        """End a runner in the background; only loads that need its memory wait for it."""
        task = asyncio.create_task(runner.close())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
        return task

    def _crashed(self, entry: ResidentModel, error: RunnerError, *, after_success: bool) -> None:
        self._metrics.crashed(entry.model.name)
        now_s = time.monotonic()
        count = self._crashes.crashed(entry.path, str(error), now_s, after_success=after_success)
        _log.warning("the runner of %s died, %d in a row: %s", entry.model.name, count, error)

    def _look_after(self, entry: ResidentModel) -> None:
        """Have the runner watched while it has users."""
        if entry.runner is None or math.isinf(self._settings.step_timeout_s):
            return
        if entry.watch is None or entry.watch.done():
            watching = watch(entry.runner, lambda: entry.users > 0, self._settings.step_timeout_s)
            entry.watch = asyncio.create_task(watching)

    async def _ended(self) -> None:
        """Wait until the runners that are ending now have freed their memory."""
        if self._ending:
            await asyncio.wait(set(self._ending))

    def _stop_timer(self, entry: ResidentModel) -> None:
        timer = self._timers.pop(entry, None)
        if timer is not None:
            timer.cancel()

"""The fleet's choice of models in memory, with fake runners that are not processes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from puna.errors import InsufficientMemoryError, RunnerError
from puna.protocol import Load, Loaded, Pong, Priority
from puna.runner.client import Tally
from puna.server.fleet.fleet import Fleet
from puna.server.fleet.resident import Launcher, LoadPlan
from puna.server.metrics import Metrics
from puna.server.settings import Settings
from puna.store import StoredModel
from tests.waiting import PATIENCE_S

PLAN = LoadPlan(num_ctx=64)
#: Context length in tokens that the models were trained for.
TRAINED = 1024


class FakeRunner:
    """A fake of what the fleet uses; loading a model named in `large` fails once for lack of memory."""

    def __init__(self, large: set[str]) -> None:
        self.info = Loaded(context_length=0, parallel=1, weight_bytes=0, cache_bytes=0)
        self.tally = Tally()
        self.alive = True
        self.memory_bytes = 100
        self.path = ""
        self.scaled: list[tuple[int, int]] = []
        self._large = large

    async def load(self, load: Load, on_progress: object = None, *, stall_timeout_s: object = None) -> None:
        await asyncio.sleep(0)
        if load.path == "broken":
            raise RunnerError("it fell over")
        if load.path in self._large:
            self._large.discard(load.path)
            raise InsufficientMemoryError("too little memory", needed=150, available=100)
        self.path = load.path
        self.info = Loaded(
            context_length=min(load.num_ctx, TRAINED),
            parallel=1,
            weight_bytes=1,
            cache_bytes=0,
            max_context=512,
            trained_context=TRAINED,
        )

    async def grow(self, num_ctx: int, reserved: int) -> None:
        await asyncio.sleep(0)
        if num_ctx > 256:
            raise InsufficientMemoryError("too little memory")
        self.info = msgspec.structs.replace(self.info, context_length=num_ctx)

    async def ping(self, timeout_s: float = 10.0) -> Pong:
        if not self.alive:
            raise RunnerError("gone")
        return Pong(
            id=1, active=0, running=0, step_age_s=0, cache_bytes=0, cells=[], evicted=0, memory_bytes=0
        )

    def scale(self, least: int, most: int) -> None:
        self.scaled.append((least, most))

    def kill(self, reason: str) -> None:
        self.alive = False

    async def close(self) -> None:
        self.alive = False

    def death(self) -> RunnerError:
        return RunnerError("it fell over")


class FakeLauncher:
    def __init__(self) -> None:
        self.launched: list[FakeRunner] = []
        self.large: set[str] = set()

    async def launch(self) -> FakeRunner:
        self.launched.append(FakeRunner(self.large))
        return self.launched[-1]

    @property
    def living(self) -> list[str]:
        return sorted(runner.path for runner in self.launched if runner.alive)


def model(name: str) -> StoredModel:
    return cast("StoredModel", SimpleNamespace(name=name, runnable_path=lambda: Path(name)))


def with_fleet(use: Callable[[Fleet, FakeLauncher], Awaitable[None]], **settings: Any) -> None:
    async def scenario() -> None:
        launcher = FakeLauncher()
        fleet = Fleet(replace(Settings(), **settings), Metrics(), cast(Launcher, launcher))
        try:
            await use(fleet, launcher)
        finally:
            await fleet.close()
        assert launcher.living == []

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE_S))


async def ask(
    fleet: Fleet,
    name: str,
    keep_alive_s: float | None = None,
    plan: LoadPlan = PLAN,
    client: str = "",
    priority: Priority = "interactive",
) -> None:
    async with fleet.use(model(name), plan, keep_alive_s, client=client, priority=priority) as runner:
        assert runner.alive
        await asyncio.sleep(0)


def test_concurrent_requests_share_one_load() -> None:
    async def use(fleet: Fleet, launcher: FakeLauncher) -> None:
        await asyncio.gather(*(ask(fleet, "a") for _ in range(5)))
        await ask(fleet, "a")
        assert len(launcher.launched) == 1
        assert [entry.path for entry in fleet.loaded()] == ["a"]

    with_fleet(use)


def test_another_context_causes_no_reload_while_memory_suffices() -> None:
    async def use(fleet: Fleet, launcher: FakeLauncher) -> None:
        for num_ctx in (64, 128, 32, 256, 64):
            await ask(fleet, "a", plan=LoadPlan(num_ctx=num_ctx))
        assert len(launcher.launched) == 1
        assert fleet.loaded()[0].context_length == 256
        await ask(fleet, "a", plan=LoadPlan(num_ctx=300))  # more than memory allows
        assert len(launcher.launched) == 2

    with_fleet(use)


def test_concurrent_requests_with_different_contexts_share_one_load() -> None:
    async def use(fleet: Fleet, launcher: FakeLauncher) -> None:
        plans = [LoadPlan(num_ctx=num_ctx) for num_ctx in (64, 128, 32, 256)]
        await asyncio.gather(*(ask(fleet, "a", plan=plan) for plan in plans))
        assert len(launcher.launched) == 1
        assert fleet.loaded()[0].context_length == 256

    with_fleet(use)


def test_requesting_more_than_the_trained_context_causes_no_reload() -> None:
    async def use(fleet: Fleet, launcher: FakeLauncher) -> None:
        for num_ctx in (TRAINED, 5 * TRAINED, 100 * TRAINED, 2 * TRAINED, TRAINED, 64):
            await ask(fleet, "a", plan=LoadPlan(num_ctx=num_ctx))
        assert len(launcher.launched) == 1

    with_fleet(use)


def test_newest_wish_decides_about_replicas_without_a_reload() -> None:
    async def use(fleet: Fleet, launcher: FakeLauncher) -> None:
        for replicas in ((1, 4), None, (2, 2), None):
            await ask(fleet, "a", plan=LoadPlan(num_ctx=64, replicas=replicas))
        [runner] = launcher.launched
        assert runner.scaled == [(1, 4), (2, 2)]
        assert fleet.loaded()[0].plan.replicas == (2, 2)

    with_fleet(use)


def test_model_with_the_shortest_keep_alive_makes_room_for_another() -> None:
    async def use(fleet: Fleet, launcher: FakeLauncher) -> None:
        for name, keep_alive_s in (("a", 50), ("b", 10), ("c", 100)):
            await ask(fleet, name, keep_alive_s)
        assert launcher.living == ["a", "c"]

    with_fleet(use, max_loaded=2)


def test_another_model_is_unloaded_if_that_frees_enough_memory() -> None:
    async def use(fleet: Fleet, launcher: FakeLauncher) -> None:
        await ask(fleet, "a")
        launcher.large.add("b")
        await ask(fleet, "b")
        assert launcher.living == ["b"]

    with_fleet(use)


def test_load_waiting_for_a_busy_model_lets_others_load() -> None:
    async def use(fleet: Fleet, launcher: FakeLauncher) -> None:
        async with fleet.use(model("a"), PLAN):
            other = asyncio.create_task(ask(fleet, "a", plan=LoadPlan(num_ctx=64, num_thread=1)))
            while fleet.waiting() == {}:
                await asyncio.sleep(0)
            await ask(fleet, "b")
            assert not other.done()
        await other
        assert launcher.living == ["a", "b"]

    with_fleet(use)


def test_model_with_keep_alive_zero_is_unloaded_after_its_last_request() -> None:
    async def use(fleet: Fleet, launcher: FakeLauncher) -> None:
        await asyncio.gather(ask(fleet, "a", 0), ask(fleet, "a", 0))
        while launcher.living:
            await asyncio.sleep(0)
        assert len(launcher.launched) == 1

    with_fleet(use)


@pytest.mark.parametrize("name", ["a", "broken"])
def test_model_unloaded_while_loading_serves_its_request_first(name: str) -> None:
    async def use(fleet: Fleet, launcher: FakeLauncher) -> None:
        pending = asyncio.create_task(ask(fleet, name))
        while not fleet.loaded():
            await asyncio.sleep(0)
        await fleet.unload(name)
        assert [entry.path for entry in fleet.loaded()] == [name]
        with pytest.raises(RunnerError, match="fell over") if name == "broken" else nullcontext():
            await pending
        while launcher.living:
            await asyncio.sleep(0)
        assert (fleet.loaded(), len(launcher.launched)) == ([], 1)

    with_fleet(use)


def test_model_is_listed_before_its_process_starts() -> None:
    async def use(fleet: Fleet, launcher: FakeLauncher) -> None:
        listed: list[str] = []
        launch = launcher.launch

        async def look_and_launch() -> FakeRunner:
            listed.extend(entry.path for entry in fleet.loaded())
            return await launch()

        launcher.launch = look_and_launch  # type: ignore[method-assign]
        await ask(fleet, "a")
        assert listed == ["a"]

    with_fleet(use)


def test_dead_runner_is_replaced() -> None:
    async def use(fleet: Fleet, launcher: FakeLauncher) -> None:
        await ask(fleet, "a")
        launcher.launched[0].alive = False
        await ask(fleet, "a")
        assert len(launcher.launched) == 2

    with_fleet(use)


def test_failed_launch_is_an_error_of_the_request() -> None:
    async def use(fleet: Fleet, launcher: FakeLauncher) -> None:
        async def fail() -> FakeRunner:
            raise RunnerError("no process can be started")

        launcher.launch = fail  # type: ignore[method-assign]
        with pytest.raises(RunnerError, match="no process can be started"):
            await ask(fleet, "a")
        assert fleet.loaded() == []

    with_fleet(use)


async def with_many_loads(fleet: Fleet, launcher: FakeLauncher) -> list[asyncio.Task[None]]:
    """Start ten loads for one client, and wait until the first has begun."""
    tasks = [asyncio.create_task(ask(fleet, f"m{number}", client="many")) for number in range(10)]
    while not launcher.launched:
        await asyncio.sleep(0)
    return tasks


@pytest.mark.parametrize("name", ["another", "m9"])
def test_client_loading_many_models_does_not_delay_another(name: str) -> None:
    async def use(fleet: Fleet, launcher: FakeLauncher) -> None:
        many = await with_many_loads(fleet, launcher)
        await ask(fleet, name, client="one")
        await asyncio.gather(*many)
        order = [runner.path for runner in launcher.launched]
        assert order.index(name) <= 2
        assert len(order) == 10 + (name == "another")

    with_fleet(use, max_loaded=20)


def test_loads_of_batch_requests_come_after_those_that_interactive_ones_wait_for() -> None:
    async def use(fleet: Fleet, launcher: FakeLauncher) -> None:
        batch = [ask(fleet, f"b{number}", client=f"{number}", priority="batch") for number in range(4)]
        # The other client waits for more loads than those, one of which is theirs, too.
        await asyncio.gather(*batch, *(ask(fleet, name, client="one") for name in ("a0", "b3", "a1")))
        assert [runner.path for runner in launcher.launched] == ["b0", "b3", "a0", "a1", "b1", "b2"]

    with_fleet(use, max_loaded=20)


def test_client_that_cancelled_many_loads_is_not_penalised() -> None:
    async def use(fleet: Fleet, launcher: FakeLauncher) -> None:
        for task in await with_many_loads(fleet, launcher):
            task.cancel()
        tasks = [asyncio.create_task(ask(fleet, f"n{number}", client="other")) for number in range(10)]
        await asyncio.sleep(0)
        await ask(fleet, "m9", client="many")
        await asyncio.gather(*tasks)
        order = [runner.path for runner in launcher.launched]
        assert order.index("m9") <= order.index("n1")

    with_fleet(use, max_loaded=20)


@pytest.mark.parametrize("steps", range(12))
def test_load_cancelled_at_any_moment_passes_its_turn_on(steps: int) -> None:
    async def use(fleet: Fleet, launcher: FakeLauncher) -> None:
        tasks = await with_many_loads(fleet, launcher)
        for _ in range(steps):
            await asyncio.sleep(0)
        for task in tasks[:5]:
            task.cancel()
        await asyncio.gather(*tasks[5:], ask(fleet, "another", client="one"))

    with_fleet(use, max_loaded=20)


def test_keep_alive_restarts_when_a_request_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 1000.0
    clock = SimpleNamespace(monotonic=lambda: now_s)
    monkeypatch.setattr("puna.server.fleet.resident.time", clock)

    async def use(fleet: Fleet, launcher: FakeLauncher) -> None:
        nonlocal now_s
        async with fleet.use(model("a"), PLAN, 60):
            (entry,) = fleet.loaded()
            assert entry.expires_s == 1060
            now_s = 1500  # busy beyond its expiry
            assert fleet.loaded() == [entry]
        assert entry.expires_s == 1560

    with_fleet(use)


def test_models_that_expire_last_are_listed_first() -> None:
    async def use(fleet: Fleet, launcher: FakeLauncher) -> None:
        for name, keep_alive_s in (("short", 10), ("forever", float("inf")), ("long", 100)):
            await ask(fleet, name, keep_alive_s)
        assert [entry.model.name for entry in fleet.loaded()] == ["forever", "long", "short"]

    with_fleet(use)

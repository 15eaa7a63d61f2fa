"""Fair turns between clients, and the order and cancellation of work that waits for the renderer."""

from __future__ import annotations

import threading
from bisect import insort
from collections import Counter
from queue import SimpleQueue

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from puna import turns as module
from puna.errors import RunnerError
from puna.turns import ClientRotation, PartQueue, RenderQueue, Turn

PATIENCE_S = 60

#: A client's new sequence, whether it first withdraws its waiting ones, and how many are served afterwards.
ARRIVALS = st.lists(
    st.tuples(st.sampled_from("abcd"), st.sampled_from([False, False, False, True]), st.integers(0, 3)),
    min_size=1,
    max_size=60,
)


@given(ARRIVALS)
@settings(max_examples=200)
def test_next_sequence_waits_for_at_most_one_of_each_other_client(
    arrivals: list[tuple[str, bool, int]],
) -> None:
    turns = ClientRotation()
    waiting: list[tuple[Turn, int, str]] = []
    served: list[int] = []
    ahead: dict[int, dict[int, str]] = {}  # sequences waiting ahead of a client's only one

    def serve() -> None:
        turn, number, client = waiting.pop(0)
        turns.served(client, turn)
        served.append(number)

    for number, (client, gives_up, count) in enumerate(arrivals):
        if gives_up and any(other == client for _, _, other in waiting):
            waiting = [entry for entry in waiting if entry[2] != client]
            turns.emptied(client)
        if all(other != client for _, _, other in waiting):
            ahead[number] = {before: other for _, before, other in waiting}
        insort(waiting, (turns.take(client), number, client))
        for _ in range(min(count, len(waiting))):
            serve()
    while waiting:
        serve()
    for number, before in ahead.items():
        if number in served:
            first = Counter(before[other] for other in served[: served.index(number)] if other in before)
            assert all(count == 1 for count in first.values())


def test_single_client_is_served_in_order_of_arrival() -> None:
    turns = ClientRotation()
    taken = [turns.take("") for _ in range(5)]
    for turn in taken[:3]:
        turns.served("", turn)
    taken += [turns.take("") for _ in range(5)]
    assert taken == sorted(set(taken))


def test_departed_clients_are_forgotten() -> None:
    turns = ClientRotation()
    for number in range(1000):
        turns.served(f"{number}", turns.take(f"{number}"))
        turns.served("always", turns.take("always"))
    assert len(turns._latest) <= 2


class World:
    """A queue in which one turn can be held up, and the results of the others."""

    def __init__(self) -> None:
        self.cancelled: list[int] = []
        self.turns = RenderQueue(self.cancelled.append)
        self.done: SimpleQueue[int | str] = SimpleQueue()
        self.began = threading.Event()
        self.go_on = threading.Event()

    def add(self, request_id: int, template: bytes) -> None:
        self.turns.add(
            request_id,
            template,
            lambda: self.done.put(request_id),
            lambda: self.done.put(f"gave up {request_id}"),
        )

    def hold(self, request_id: int = 99) -> None:
        """Take a turn that lasts until `go_on`, so that no other begins."""

        def work() -> None:
            self.began.set()
            assert self.go_on.wait(PATIENCE_S)

        self.turns.add(request_id, b"held", work, lambda: None)
        assert self.began.wait(PATIENCE_S)

    def order(self, count: int) -> list[int | str]:
        self.go_on.set()
        return [self.done.get(timeout=PATIENCE_S) for _ in range(count)]


@pytest.fixture
def world() -> World:
    return World()


def test_a_template_known_to_be_quick_goes_before_unknown_and_slow_ones(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter([0.0, 2.0, 2.0, 2.001])  # two turns: one takes two seconds, one a millisecond
    monkeypatch.setattr(module.time, "monotonic", lambda: next(times))
    world.add(1, b"slow")
    world.add(2, b"quick")
    assert world.order(2) == [1, 2]
    world.go_on.clear()
    monkeypatch.undo()
    world.hold()
    for request_id, template in [(1, b"slow"), (2, b"unknown"), (3, b"quick"), (4, b"other"), (5, b"quick")]:
        world.add(request_id, template)
    assert world.order(5) == [3, 5, 2, 4, 1]


def test_requests_with_the_same_template_keep_their_order(world: World) -> None:
    world.hold()
    for request_id in range(6):
        world.add(request_id, b"same")
    assert world.order(6) == list(range(6))


def test_a_waiting_request_is_forgotten_when_cancelled(world: World) -> None:
    world.hold()
    for request_id in range(4):
        world.add(request_id, b"same")
    world.turns.cancel(2)
    assert world.order(3) == [0, 1, 3]
    assert world.cancelled == []


def test_a_request_cancelled_during_its_turn_is_stopped_afterwards(world: World) -> None:
    world.hold(7)
    world.turns.cancel(7)
    assert world.cancelled == []
    world.add(1, b"other")
    assert world.order(1) == [1]
    assert world.cancelled == [7]
    world.turns.cancel(1)
    assert world.cancelled == [7, 1]


def test_closing_fails_waiting_requests(world: World) -> None:
    world.hold()
    world.add(1, b"x")
    closing = threading.Thread(target=world.turns.close)
    closing.start()
    assert world.done.get(timeout=PATIENCE_S) == "gave up 1"
    world.go_on.set()
    closing.join(PATIENCE_S)
    with pytest.raises(RunnerError, match="shutting down"):
        world.add(2, b"x")


def test_work_that_raises_is_given_up_and_does_not_block_the_queue(world: World) -> None:
    def work() -> None:
        raise MemoryError

    world.turns.add(1, b"broken", work, lambda: world.done.put("gave up 1"))
    world.add(2, b"good")
    assert world.order(2) == ["gave up 1", 2]


def test_slow_work_does_not_block_other_threads() -> None:
    done: SimpleQueue[int] = SimpleQueue()
    go_on = threading.Event()
    turns = RenderQueue([].append, threads=2)
    turns.add(1, b"slow", lambda: done.put(int(go_on.wait(PATIENCE_S))), lambda: None)
    for number in (2, 3):
        turns.add(number, b"quick", lambda number=number: done.put(number), lambda: None)  # type: ignore[misc]
    assert [done.get(timeout=PATIENCE_S) for _ in range(2)] == [2, 3]
    go_on.set()
    assert done.get(timeout=PATIENCE_S) == 1
    turns.close()


def test_a_stoppable_turn_is_stopped_and_then_cancelled() -> None:
    began, stopped, cancelled = threading.Event(), threading.Event(), threading.Event()
    turns = RenderQueue(lambda _: cancelled.set(), stop=lambda _: stopped.set())

    def work() -> None:
        began.set()
        assert stopped.wait(PATIENCE_S)
        assert not cancelled.is_set()

    turns.add(1, b"", work, lambda: None)
    assert began.wait(PATIENCE_S)
    turns.cancel(1)
    assert cancelled.wait(PATIENCE_S)
    turns.close()


class Parts:
    """Work of `count` parts, each of which waits for the test."""

    def __init__(self, world: PartWorld, name: str, count: int) -> None:
        self._world, self._name, self._left = world, name, count
        self._stopped = False

    @property
    def done(self) -> bool:
        return not self._left

    def advance(self) -> None:
        self._world.began.put(self._name)
        self._world.turns.acquire()
        if self._stopped:
            raise RuntimeError("stopped")
        self._left -= 1

    def finish(self) -> None:
        self._world.ended.put((self._name, "finished"))

    def fail(self, error: Exception) -> None:
        self._world.ended.put((self._name, str(error)))

    def stop(self) -> None:
        self._stopped = True
        self._world.turns.release()


class PartWorld:
    """A queue of work in parts, and which parts have begun."""

    def __init__(self, threads: int = 1) -> None:
        self.began: SimpleQueue[str] = SimpleQueue()
        self.ended: SimpleQueue[tuple[str, str]] = SimpleQueue()
        self.cancelled: list[int] = []
        self.turns = threading.Semaphore(0)
        self.queue = PartQueue("parts", self.cancelled.append, threads=threads)

    def add(self, number: int, name: str, count: int, *, client: str = "", batch: bool = False) -> None:
        self.queue.add(number, Parts(self, name, count), client=client, batch=batch)

    def next(self) -> str:
        """Let the part at work end, and return whose part begins then."""
        self.turns.release()
        return self.began.get(timeout=PATIENCE_S)


def test_parts_of_clients_take_turns_and_batch_work_waits() -> None:
    world = PartWorld()
    world.add(1, "first", 1)
    assert world.began.get(timeout=PATIENCE_S) == "first"
    world.add(2, "batch", 1, client="c", batch=True)
    world.add(3, "a1", 2, client="a")
    world.add(4, "a2", 1, client="a")
    world.add(5, "b1", 2, client="b")
    order = [world.next() for _ in range(6)]
    assert Counter(order[:4]) == {"a1": 1, "b1": 2, "a2": 1} or Counter(order[:4]) == {"a1": 2, "b1": 2}
    assert order[-1] == "batch"
    world.turns.release()
    ended = [world.ended.get(timeout=PATIENCE_S) for _ in range(5)]
    assert {how for _, how in ended} == {"finished"}
    world.queue.close()


def test_several_threads_do_parts_at_the_same_time() -> None:
    world = PartWorld(threads=2)
    for number in range(3):
        world.add(number, str(number), 1)
    assert {world.began.get(timeout=PATIENCE_S) for _ in range(2)} == {"0", "1"}
    assert world.next() == "2"
    world.turns.release(2)
    assert {world.ended.get(timeout=PATIENCE_S)[0] for _ in range(3)} == {"0", "1", "2"}
    world.queue.close()


def test_a_part_at_work_is_stopped_when_its_request_is_cancelled_or_the_queue_closes() -> None:
    world = PartWorld()
    world.add(1, "cancelled", 3)
    world.began.get(timeout=PATIENCE_S)
    world.add(2, "waits", 3)
    world.add(3, "gone", 3)
    world.queue.cancel(3)
    world.queue.cancel(1)
    assert world.began.get(timeout=PATIENCE_S) == "waits"
    assert world.cancelled == [1]
    world.queue.close()
    assert world.ended.get(timeout=PATIENCE_S) == ("waits", "the model was unloaded")
    assert world.ended.empty()
    world.queue.cancel(9)
    assert world.cancelled == [1, 9]
    with pytest.raises(RunnerError, match="shutting down"):
        world.add(4, "late", 1)

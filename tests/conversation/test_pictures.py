"""Requests waiting for their images: turns, cancellation and closing."""

from __future__ import annotations

import threading
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest

from puna.batch import Image
from puna.conversation.pictures import Pictures
from puna.errors import ImageError, PreparerError, RunnerError
from puna.protocol import Generate
from tests.waiting import PATIENCE_S


class World:
    """A `Pictures` whose preparer waits for `go_on`, and its results."""

    def __init__(self) -> None:
        self.decoded: list[bytes] = []
        self.cancelled: list[int] = []
        self.stopped = 0
        self.began = threading.Event()
        self.go_on = threading.Event()
        self.done: SimpleQueue[Any] = SimpleQueue()
        self.known: dict[int, Image] = {}
        images: Any = SimpleNamespace(preparer=self, find=self.known.get, add=self.add_known, stop=self.stop)
        self.pictures = Pictures(images, self.cancelled.append)

    def prepare(self, data: bytes, name: str, limits: Any, seconds: float) -> Any:
        self.began.set()
        assert self.go_on.wait(PATIENCE_S)
        self.decoded.append(data)
        if data.startswith(b"bad"):
            raise ImageError(f"{name} is damaged")
        if data.startswith(b"stopped"):
            raise PreparerError("ended")
        return SimpleNamespace(decoded_pixels=1, seconds=0.0, prepared=data)

    def stop(self) -> None:
        self.stopped += 1
        self.go_on.set()

    def close(self) -> None:
        self.go_on.set()

    def add_known(self, digest: int, prepared: Any) -> Image:
        return self.known.setdefault(digest, Image(digest, prepared, 1))

    def ask(self, number: int, client: str, *files: bytes, priority: Any = "interactive") -> None:
        self.pictures.add(
            Generate(id=number, client=client, priority=priority),
            list(files),
            lambda images: self.done.put((number, [image.pixels for image in images])),
            lambda error: self.done.put((number, str(error))),
        )

    def outcome(self) -> Any:
        return self.done.get(timeout=PATIENCE_S)


@pytest.fixture
def world() -> World:
    return World()


def test_clients_take_turns_however_many_images_one_has(world: World) -> None:
    world.ask(1, "many", b"a1", b"a2", b"a3", b"a4")
    assert world.began.wait(PATIENCE_S)
    world.ask(2, "many", b"b1", b"b2")
    world.ask(3, "few", b"c1")
    world.go_on.set()
    assert world.outcome() == (3, [b"c1"])
    assert {world.outcome()[0] for _ in range(2)} == {1, 2}
    assert world.decoded.index(b"c1") == 1


def test_batch_requests_come_after_the_others(world: World) -> None:
    world.ask(1, "held", b"a")
    assert world.began.wait(PATIENCE_S)
    world.ask(2, "batch", b"b", priority="batch")
    world.ask(3, "busy", b"c", b"d")
    world.go_on.set()
    assert [world.outcome()[0] for _ in range(3)] == [1, 3, 2]


def test_images_keep_their_order_and_known_ones_are_not_decoded_again(world: World) -> None:
    world.go_on.set()
    world.ask(1, "", b"a", b"b", b"a")
    assert world.outcome() == (1, [b"a", b"b", b"a"])
    world.ask(2, "", b"b", b"a")
    assert world.outcome() == (2, [b"b", b"a"])
    assert world.decoded == [b"a", b"b"]


def test_a_request_whose_images_are_known_does_not_wait(world: World) -> None:
    world.go_on.set()
    world.ask(1, "", b"a")
    world.outcome()
    world.go_on.clear()
    world.began.clear()
    world.ask(2, "", b"b")
    assert world.began.wait(PATIENCE_S)
    world.ask(3, "", b"a", b"a")
    assert world.outcome() == (3, [b"a", b"a"])
    world.go_on.set()
    assert world.outcome() == (2, [b"b"])


def test_a_damaged_image_fails_its_request_alone(world: World) -> None:
    world.go_on.set()
    world.ask(1, "", b"a", b"bad")
    world.ask(2, "", b"c")
    assert sorted(world.outcome() for _ in range(2)) == [(1, "image 2 of 2 is damaged"), (2, [b"c"])]


def test_a_waiting_request_is_forgotten_when_cancelled(world: World) -> None:
    world.ask(1, "", b"a")
    assert world.began.wait(PATIENCE_S)
    world.ask(2, "", b"b")
    world.ask(3, "", b"c")
    world.pictures.cancel(2)
    world.go_on.set()
    assert [world.outcome()[0] for _ in range(2)] == [1, 3]
    assert world.decoded == [b"a", b"c"]
    assert (world.cancelled, world.stopped) == ([], 0)


def test_decoding_stops_when_its_request_is_cancelled(world: World) -> None:
    world.ask(1, "", b"stopped", b"never")
    assert world.began.wait(PATIENCE_S)
    world.pictures.cancel(1)
    world.ask(2, "", b"b")
    assert world.outcome() == (2, [b"b"])
    assert world.decoded == [b"stopped", b"b"]
    assert world.stopped == 1


def test_request_whose_images_are_ready_is_cancelled_in_the_next_stage(world: World) -> None:
    world.go_on.set()
    world.ask(1, "", b"a")
    world.outcome()
    world.pictures.close()
    world.pictures.cancel(1)
    assert world.cancelled == [1]


def test_closing_fails_waiting_requests(world: World) -> None:
    world.ask(1, "", b"stopped")
    assert world.began.wait(PATIENCE_S)
    world.ask(2, "", b"b")
    world.pictures.close()
    assert {world.outcome() for _ in range(2)} == {(n, "the model was unloaded") for n in (1, 2)}
    with pytest.raises(RunnerError, match="shutting down"):
        world.ask(3, "", b"c")

"""Interrupts in the middle of a generation, as Ctrl-C and notebooks send them, and the bar of a load."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import puna
from tests.library.test_streams import CHAT, wait_for_idle_engine
from tests.tiny.llama import TinyLlama, tiny_llama_gguf
from tests.waiting import wait_until

ENDLESS = {"temperature": 0, "num_predict": -1}

pytestmark = pytest.mark.skipif(
    threading.current_thread() is not threading.main_thread(), reason="only a main thread is interrupted"
)


@contextmanager
def interrupted_while_it_waits() -> Iterator[None]:
    """Interrupt the block when it waits for an event of a request."""
    main, seen = threading.main_thread().ident or 0, [(0, 0)]

    def waits() -> bool:
        """Whether the main thread is in `Events.__next__`, at the same instruction as before."""
        frame = sys._current_frames()[main]
        seen.append((id(frame), frame.f_lasti))
        return frame.f_code.co_name == "__next__" and seen[-1] == seen[-2]

    def interrupt() -> None:
        wait_until(waits, "the main thread waiting for an event")
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        yield
    finally:
        thread.join()
        signal.signal(signal.SIGINT, before)


STREAMS: list[puna.Stream] = []


def begin_stream(model: puna.Model) -> None:
    """Read from a stream that is not dropped, as a variable of a notebook is not."""
    STREAMS.append(model.generate("hello", stream=True, **ENDLESS))
    next(STREAMS[-1])


@pytest.mark.parametrize(
    "use",
    [
        pytest.param(lambda model: model.generate("hello", **ENDLESS), id="generate"),
        pytest.param(lambda model: model.chat(CHAT, **ENDLESS), id="chat"),
        pytest.param(lambda model: model.generate_many(["a", "b", "c"], **ENDLESS), id="generate_many"),
        pytest.param(begin_stream, id="stream"),
    ],
)
def test_interrupt_ends_the_generation_and_leaves_the_model_usable(
    model: puna.Model, use: Callable[[puna.Model], Any]
) -> None:
    """Other generations take all slots, so that the one that is interrupted waits for its turn."""
    expected = model.generate("hello", temperature=0, num_predict=4).text
    others = [model.generate("hello", stream=True, **ENDLESS) for _ in range(4)]
    wait_until(lambda: model.engine.running == 4, "the other generations")
    with interrupted_while_it_waits(), pytest.raises(KeyboardInterrupt) as caught:
        use(model)
    sys.last_traceback = caught.tb  # as notebooks keep the frames of an error, and all that is in them
    try:
        wait_until(lambda: model.engine.active <= 4, "the end of the generation")
        assert model.engine.running == 4
    finally:
        del sys.last_traceback
        for other in others:
            other.close()
    wait_for_idle_engine(model)
    assert model.generate("hello", temperature=0, num_predict=4).text == expected
    assert all(list(stream) == [] for stream in STREAMS)  # they are over


def test_load_shows_a_bar_if_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tiny_llama_gguf(tmp_path / "tiny.gguf", TinyLlama())
    puna.load(path).close()
    assert capsys.readouterr() == ("", "")
    os.environ["FORCE_COLOR"] = "1"  # as on a terminal
    try:
        puna.load(path, progress=True).close()
    finally:
        del os.environ["FORCE_COLOR"]
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "Loading" in shown.err

"""Functions that are called between two steps."""

from __future__ import annotations

import threading

import pytest

from puna.engine.engine import Engine
from puna.engine.events import Generate
from puna.errors import NotSupportedError, RunnerError
from puna.model.load import LoadedModel
from puna.options import Options


def test_a_call_sees_the_cache_between_two_steps(tiny: LoadedModel) -> None:
    engine = Engine(tiny, context=64)
    options = Options(temperature=0, num_predict=8)
    engine.submit(Generate(id=1, prompt=[3, 1, 4], options=options, ignore_eos=True), lambda event: None)
    engine.step()
    contents = engine.call(engine.cache.contents)
    assert not contents.done()
    engine.step()
    assert [held.positions for held in contents.result(0)[0].sequences if held.cells] == [[0, 1, 2]]
    engine.close()


def test_a_calls_error_is_its_own(tiny: LoadedModel) -> None:
    engine = Engine(tiny, context=64)

    def fail() -> None:
        raise NotSupportedError("no")

    failed, cancelled, other = engine.call(fail), engine.call(fail), engine.call(lambda: 3)
    assert cancelled.cancel()
    engine.step()
    with pytest.raises(NotSupportedError, match="no"):
        failed.result(0)
    assert other.result(0) == 3
    engine.close()


def test_a_call_wakes_an_idle_engine(tiny: LoadedModel) -> None:
    engine = Engine(tiny, context=64)
    engine.start()
    assert engine.call(threading.current_thread).result(20).name == "puna-engine"
    engine.close()


def test_calls_end_with_the_engine(tiny: LoadedModel) -> None:
    engine = Engine(tiny, context=64)
    waiting = engine.call(lambda: 3)
    engine.close()
    with pytest.raises(RunnerError, match="the model was unloaded"):
        waiting.result(0)
    with pytest.raises(RunnerError, match="shutting down"):
        engine.call(lambda: 3)

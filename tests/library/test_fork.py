"""A loaded model in a forked process, and processes that load one of their own."""

from __future__ import annotations

import copy
import multiprocessing
import os
import pickle
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import puna
from puna.errors import UnavailableError

_TOO_LONG_S = 30  # a hang ends here


@pytest.mark.parametrize(
    "use",
    [
        lambda model, _: model.generate("hello", num_predict=1),
        lambda model, _: model.chat([{"role": "user", "content": "hello"}], num_predict=1),
        lambda model, _: model.embed("hello"),
        lambda model, path: model.save_prompt("hello", path),
        lambda model, path: model.load_prompt(path),
    ],
    ids=["generate", "chat", "embed", "save_prompt", "load_prompt"],
)
def test_forked_process_cannot_use_the_model_and_is_told_to_use_threads(
    model: puna.Model, use: Callable[[puna.Model, Path], Any], tmp_path: Path
) -> None:
    def child() -> str:
        try:
            use(model, tmp_path / "prompt")
        except UnavailableError as error:
            model.close()  # the threads are the parent's, and closing must not wait for them
            return str(error)
        return "used"

    before = model.generate("hello", num_predict=4, temperature=0).text
    assert "use threads" in _result_in_fork(child)
    assert model.generate("hello", num_predict=4, temperature=0).text == before


@pytest.mark.parametrize("take", [pickle.dumps, copy.copy, copy.deepcopy])
def test_model_that_is_pickled_or_copied_says_to_load_it_again(
    model: puna.Model, take: Callable[[puna.Model], object]
) -> None:
    with pytest.raises(TypeError, match=r"pass its name, and call puna\.load there"):
        take(model)


def _told_in_spawned_process() -> str:
    with puna.load("demo", parallel=1) as model:
        return model.generate("Once", num_predict=4, temperature=0).text


@pytest.mark.slow
def test_spawned_process_loads_a_model_of_its_own(model: puna.Model) -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        told = pool.apply(_told_in_spawned_process)
    with puna.load("demo", parallel=1) as demo:
        assert told == demo.generate("Once", num_predict=4, temperature=0).text


def _result_in_fork(child: Callable[[], str]) -> str:
    """Run `child` in a forked process and return its result, or nothing if it hangs."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            signal.alarm(_TOO_LONG_S)
            os.write(writing, child().encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as said:
        text = said.read()
    os.waitpid(pid, 0)
    return text

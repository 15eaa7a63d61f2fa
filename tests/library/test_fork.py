"""A loaded model in a forked process."""

from __future__ import annotations

import os
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

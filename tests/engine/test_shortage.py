"""An engine out of memory, or with a failed interpreter."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from puna.engine import engine as engines
from puna.engine.batching import BatchSlice
from puna.engine.executor import Rows
from puna.engine.scheduler import Pace
from puna.machine import is_out_of_memory
from puna.model.load import LoadedModel, load_model
from puna.protocol import Failed
from tests.engine.runs import Run
from tests.tiny.llama import TinyLlama, tiny_llama_gguf

TORCH = "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory"


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError(TORCH), RuntimeError("std::bad_alloc"), OSError(12, "no memory")]
)
def test_a_failed_allocation_is_recognised(error: Exception) -> None:
    assert is_out_of_memory(error)
    later = SystemError("returned NULL without setting an exception")
    later.__context__ = error  # as when one is raised while the other is handled
    assert is_out_of_memory(later)
    assert not is_out_of_memory(RuntimeError("shapes do not fit"))


@pytest.mark.parametrize(
    ("kind", "short", "ends"),
    [
        (MemoryError, False, False),
        (MemoryError, True, True),
        (RuntimeError, True, True),
        (SystemError, False, True),
    ],
)
def test_the_process_ends_when_it_is_no_longer_reliable(
    tiny: LoadedModel, monkeypatch: pytest.MonkeyPatch, kind: type[Exception], short: bool, ends: bool
) -> None:
    run, died, over = Run(tiny), [], threading.Event()
    error = kind(TORCH)  # created here, because a raised error keeps the engine alive
    monkeypatch.setattr(engines, "memory_is_short", lambda: short)

    def fail(shares: object) -> None:
        raise error

    def on_death(cause: BaseException) -> None:
        died.append(cause)
        over.set()

    run.engine._executor.execute = fail  # type: ignore[method-assign]
    run.submit(1, [1, 2, 3])
    run.engine.start(on_death)
    if ends:
        assert over.wait(20)
    else:
        run.engine.ask(lambda: None).result(20)  # the engine still answers
        run.engine.close()
    assert died == ([error] if ends else [])
    (event,) = run.events[1]
    assert isinstance(event, Failed)
    assert ("out of memory" in event.message) == (kind is not SystemError)


def test_prompts_that_need_too_much_memory_are_read_in_smaller_steps(tmp_path: Path) -> None:
    loaded = load_model(tiny_llama_gguf(tmp_path / "model.gguf", TinyLlama(context=512)))
    prompt = [1, *range(3, 250), *range(3, 60)]
    expected = Run(loaded, context=512)
    expected.submit(0, prompt, num_predict=5, temperature=0.0)
    expected.finish()
    run = Run(loaded, context=512, parallel=2)
    execute = run.engine._executor.execute

    def short(slices: list[BatchSlice]) -> list[Rows]:
        if sum(each.rows for each in slices) > 160:
            raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return execute(slices)

    run.engine._executor.execute = short  # type: ignore[method-assign]
    run.submit(1, [1, 5, 6], num_predict=30)
    run.engine.step()
    run.submit(0, prompt, num_predict=5, temperature=0.0)
    run.finish()
    assert run.tokens(0) == expected.tokens(0)
    assert run.done(1).eval_count == 30


def test_steps_are_halved_down_to_the_smallest() -> None:
    pace = Pace(1024)
    assert [pace.shrink(rows) for rows in (2048, 1000, 304, 172, 129, 128, 3)] == [0, 500, 152, 0, 128, 0, 0]


def test_a_prompt_for_which_there_is_no_memory_at_all_fails_alone(tiny: LoadedModel) -> None:
    run = Run(tiny, context=128, parallel=2)
    execute = run.engine._executor.execute

    def short(slices: list[BatchSlice]) -> list[Rows]:
        if any(each.rows > 1 for each in slices):
            raise MemoryError("the GPU is out of memory (cuMemCreate: CUDA_ERROR_OUT_OF_MEMORY)")
        return execute(slices)

    run.submit(1, [1, 5, 6], num_predict=30)
    run.engine.step()
    run.engine._executor.execute = short  # type: ignore[method-assign]
    run.submit(0, [1, *range(3, 100)])
    run.finish()
    (failed,) = run.events[0]
    assert isinstance(failed, Failed)
    assert "out of memory" in failed.message
    assert run.done(1).eval_count == 30

"""A context that grows while the model is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from puna import machine
from puna.engine.room import EngineSizes, build_cache
from puna.errors import ContextLengthError, InsufficientMemoryError, NotSupportedError
from puna.model.load import LoadedModel, load_model
from puna.protocol import Done
from tests.engine.runs import Run
from tests.tiny.whisper import TinyWhisper, tiny_whisper_gguf

PROMPT = [(7 * i) % 200 for i in range(60)]


def grow(run: Run, context: int, reserved: int = 0) -> None:
    """Grow the context between two steps, like the runner."""
    grown = run.engine.ask(lambda: run.engine.grow(context, reserved))
    run.engine.step()
    grown.result(timeout=0)


def said(run: Run, prompt: list[int], **settings: Any) -> tuple[list[int], Done]:
    run.events.clear()
    return run.one(prompt, **settings)


def test_a_grown_context_answers_like_one_that_started_as_long(tiny: LoadedModel) -> None:
    run = Run(tiny, context=32, parallel=2, growable=True)
    most = tiny.trained_context
    assert (run.engine.context, run.engine.room.max_context) == (32, most)
    assert [counts.capacity for counts in run.engine.cache.counts()] == [64]
    before = run.engine.cache_bytes
    with pytest.raises(ContextLengthError, match="60 tokens > 32"):
        run.submit(0, PROMPT, truncate=False)
    first, _ = said(run, PROMPT[:20], num_predict=30)  # it is shifted at 32
    grow(run, 100)
    assert run.engine.context == 100
    assert run.engine.cache_bytes > before
    assert [counts.capacity for counts in run.engine.cache.counts()] == [200]
    reference = Run(tiny, context=100, parallel=2)
    assert reference.engine.cache_bytes == run.engine.cache_bytes
    expected, expected_done = said(reference, PROMPT, num_predict=60, truncate=False)
    tokens, done = said(run, PROMPT, num_predict=60, truncate=False)
    assert (tokens, done.shifted) == (expected, expected_done.shifted)
    assert done.shifted > 0
    # A request may ask for less than is available.
    assert said(run, PROMPT[:20], num_predict=30, num_ctx=32, cache_prompt=False)[0] == first


def test_a_context_grows_only_within_memory_and_the_trained_length(
    tiny: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tiny, context=32, parallel=1, growable=True)
    before = (run.engine.context, run.engine.cache_bytes, run.engine.cache.counts())
    with monkeypatch.context() as patch:
        patch.setattr(machine, "available_memory", lambda: 1000)
        with pytest.raises(InsufficientMemoryError, match="a context of 64 tokens can take"):
            grow(run, 64)
    with pytest.raises(InsufficientMemoryError):
        grow(run, 64, reserved=2**50)
    assert before == (run.engine.context, run.engine.cache_bytes, run.engine.cache.counts())
    grow(run, 10_000)
    assert run.engine.context == tiny.trained_context
    fixed = Run(tiny, context=32, parallel=1)
    with pytest.raises(NotSupportedError, match="can grow to 32 tokens, not to 64"):
        grow(fixed, 64)


def test_cells_beyond_the_limit_are_not_used(tiny: LoadedModel) -> None:
    run = Run(tiny, context=32, parallel=1, growable=True)
    for start in range(8):
        said(run, [(start * 31 + i) % 200 for i in range(25)], num_predict=3)
    (counts,) = run.engine.cache.counts()
    assert counts.used <= counts.capacity == 32
    assert run.engine.evicted > 0


def test_few_windows_of_recordings_are_remembered(tmp_path: Path) -> None:
    hearing = load_model(tiny_whisper_gguf(tmp_path / "m.gguf", TinyWhisper(layers=1, decoder_layers=1)))
    _, rows = build_cache(hearing, EngineSizes(context=64, parallel=3, capacity=192))
    assert rows == 6

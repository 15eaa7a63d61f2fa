"""The engine with a split model: answers, vectors and what is reused are those of the whole one."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from puna.errors import ModelLostError
from puna.kvcache.types import F16_TYPES
from puna.model.load import LoadedModel, load_model
from puna.model.split import cache as split_cache
from puna.ops import default_backend
from puna.protocol import Failed
from tests.engine.adapted import adapted_llama, check_mixed
from tests.engine.conftest import KINDS
from tests.engine.drafting import draft_always
from tests.engine.runs import Run
from tests.model.split.splitting import split
from tests.processors import NOT_BUILT
from tests.tiny.decoders import tiny_decoder_gguf
from tests.tiny.heads import MODELS
from tests.tiny.heads_reference import Reference
from tests.waiting import wait_until


def heads(path: Path) -> Path:
    tiny: Any = dataclasses.replace(MODELS["glm4moe"], agreeing=True, own=False)
    return tiny_decoder_gguf(path, tiny, model=Reference(tiny).model)


MADE: dict[str, Callable[[Path], Path]] = {**KINDS, "heads": heads}


def story(loaded: LoadedModel) -> list[Any]:
    """Return what a crowded engine answers to prompts that share prefixes, some of which it evicts."""
    run = Run(loaded, parallel=3, context=64, capacity=120, batch_size=32)
    prompt = [1, *range(3, 30)]
    for number in range(4):
        run.submit(number, [*prompt, 31 + number], num_predict=12, temperature=0.8, seed=number)
    run.finish()
    run.submit(4, [*prompt, 31, 40], num_predict=30)
    run.submit(5, prompt[:20], num_predict=6, samples=2, temperature=1.0, seed=3)
    run.embed(6, prompt[:9], [1, 5])
    run.finish()
    run.submit(7, [1, *range(3, 60)], num_predict=20)  # until the context is full, and beyond
    run.finish()
    # How much is reused depends on what was evicted, and that on how long passes took. Caches that forget can
    # be resumed only where passes ended.
    comparable = loaded.model.sample_cache(F16_TYPES).resumes_anywhere
    found: list[Any] = [(run.tokens(n), comparable and run.done(n).cached > 0) for n in range(6)]
    found += [event.vector for event in run.embedded(6)]
    found += [run.tokens(7)]
    found += [run.engine.clock.totals.accepted > 0]
    run.engine.close()
    return found


@pytest.mark.skipif(default_backend().name != "cpu", reason=NOT_BUILT)
@pytest.mark.parametrize("kind", MADE)
def test_answers_are_those_of_the_whole_model(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(split_cache, "ROWS_TOGETHER", 8)
    path = MADE[kind](tmp_path / "model.gguf")
    draft_always(monkeypatch, random.Random(5))
    expected = story(load_model(path))
    draft_always(monkeypatch, random.Random(5))
    with split(path, [1]) as parts:
        assert story(parts.loaded)[:-1] == expected[:-1]
        assert not parts.failures
    assert kind != "heads" or expected[-1], "drafts of the heads are right"


def test_each_row_has_its_own_adapters_wherever_the_model_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(split_cache, "ROWS_TOGETHER", 8)
    path, files, merged = adapted_llama(tmp_path)
    whole = check_mixed((load_model(path, adapters=files), merged))
    for cuts in ([1], [2], [1, 2]):
        with split(path, cuts, files) as parts:
            assert check_mixed((parts.loaded, merged)) == whole
            assert not parts.failures


def test_loss_of_a_stage_fails_the_answer_and_all_later_ones(tmp_path: Path) -> None:
    with split(KINDS["plain"](tmp_path / "model.gguf"), [1]) as parts:
        run = Run(parts.loaded)
        run.submit(0, [1, 5, 6], num_predict=50)
        run.engine.step()
        parts.sockets[1].shutdown(2)
        run.finish()
        run.submit(1, [1, 5, 6], num_predict=5)
        run.finish()
        for number in range(2):
            [failed] = [event for event in run.events[number] if isinstance(event, Failed)]
            assert failed.kind == ModelLostError.__name__
            assert "stage 2 has ended" in failed.message or "stage 2 cannot be reached" in failed.message
        wait_until(lambda: len(parts.failures) == 1, "the loss to be noticed")

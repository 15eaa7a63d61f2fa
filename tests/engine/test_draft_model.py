"""A draft model changes no answer, whatever it drafts, and its cache follows the sequences."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from puna import demo
from puna.engine.drafting.draft_model import DraftModel
from puna.errors import RequestError
from puna.model.load import LoadedModel, load_model
from puna.ops import default_backend
from tests.engine.drafting import PROMPTS, compare, draft_always, drafted
from tests.engine.runs import Run
from tests.processors import NOT_BUILT
from tests.tiny.gemma3 import TinyGemma3, tiny_gemma3_gguf
from tests.tiny.lfm2 import tiny_lfm2_gguf
from tests.tiny.llama import TinyLlama, tiny_llama_gguf

pytestmark = pytest.mark.skipif(default_backend().name != "cpu", reason=NOT_BUILT)


@pytest.fixture(scope="session")
def other(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    """Return a model with the same tokens that mostly gives other answers."""
    path = tmp_path_factory.mktemp("other") / "other.gguf"
    return load_model(tiny_llama_gguf(path, TinyLlama(context=128, layers=1, seed=3)))


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    draft_always(monkeypatch, random.Random(5))


def leaked_by_draft(run: Run) -> int:
    """Return the draft model's cells in use when nothing runs and nothing is remembered."""
    draft_model = run.engine._drafter
    assert isinstance(draft_model, DraftModel)
    draft_model.release_finished()
    while draft_model._prefix_cache.evict():
        pass
    cells = draft_model._cache.cells  # type: ignore[attr-defined]
    cells.check()
    return int(cells.capacity - cells.free)


def test_drafts_of_the_model_itself_are_accepted(tiny: LoadedModel, always: None) -> None:
    run = compare(tiny, None, draft=tiny, temperature=0.0)
    tried, accepted = drafted(run)
    assert tried == accepted > 50
    assert run.leaked() == leaked_by_draft(run) == 0


def test_drafts_of_another_model_change_nothing(tiny: LoadedModel, other: LoadedModel, always: None) -> None:
    run = compare(tiny, None, draft=other)
    tried, accepted = drafted(run)
    assert tried > 50
    assert accepted < tried
    assert run.leaked() == leaked_by_draft(run) == 0


def test_drafts_that_are_sometimes_right_change_nothing(tiny: LoadedModel, always: None) -> None:
    """Sampled answers differ from the tokens that the same model finds likeliest."""
    tried, accepted = drafted(compare(tiny, None, draft=tiny, temperature=0.5, num_predict=40))
    assert 0 < accepted < tried


@pytest.mark.parametrize("shift", [True, False])
def test_the_draft_model_follows_shifts(tiny: LoadedModel, always: None, shift: bool) -> None:
    settings = {"context": 40, "num_predict": 60, "num_keep": 4, "temperature": 0.0}
    run = compare(tiny, None, draft=tiny, shift=shift, **settings)
    tried, accepted = drafted(run)
    assert accepted > 50
    # Shifted inputs saw other neighbours in the large model's cache than inputs evaluated again.
    assert shift or tried == accepted
    assert run.leaked() == leaked_by_draft(run) == 0


def test_few_cells_make_streams_wait_and_change_no_answer(tiny: LoadedModel, always: None) -> None:
    run = compare(tiny, None, draft=tiny, capacity=70, parallel=4)
    assert drafted(run)[1] > 0
    assert run.leaked() == leaked_by_draft(run) == 0


def test_the_draft_model_reads_a_long_prompt_in_parts(
    tiny: LoadedModel, always: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("puna.engine.drafting.draft_model._MAX_CATCH_UP", 5)
    expected = Run(tiny).one(PROMPTS[2] * 2, num_predict=20)[0]
    tokens, done = Run(tiny, draft=tiny).one(PROMPTS[2] * 2, num_predict=20)
    assert tokens == expected
    assert done.accepted == done.drafted > 5


def test_a_second_turn_reuses_the_draft_models_entry(tiny: LoadedModel, always: None) -> None:
    run = Run(tiny, draft=tiny)
    first, _ = run.one(PROMPTS[2], num_predict=20)
    draft_model = run.engine._drafter
    assert isinstance(draft_model, DraftModel)
    read = []
    forward = draft_model._forward
    draft_model._forward = lambda parts: (read.append(sum(len(keys) for _, keys in parts)), forward(parts))[1]  # type: ignore[method-assign]
    turn = [*tiny.tokenizer.encode(PROMPTS[2]), *first, 7, 8, 9, 10]
    run.submit(1, turn, num_predict=20)
    run.finish()
    assert run.tokens(1) == Run(tiny).one(turn, num_predict=20)[0]
    assert max(read) < 20 < len(turn)


def test_a_draft_model_with_a_shorter_context_stops_in_time(
    tiny: LoadedModel, tmp_path: Path, always: None
) -> None:
    short = load_model(tiny_llama_gguf(tmp_path / "short.gguf", TinyLlama(context=30)))
    tokens, done = Run(tiny, draft=short).one(PROMPTS[0], num_predict=40)
    assert tokens == Run(tiny).one(PROMPTS[0], num_predict=40)[0]
    assert 0 < done.drafted < 40


def test_a_failing_draft_model_is_no_longer_used(
    tiny: LoadedModel, other: LoadedModel, always: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(other.model, "forward", lambda batch, cache: 1 / 0)
    tokens, done = Run(tiny, draft=other).one(PROMPTS[0])
    assert tokens == Run(tiny).one(PROMPTS[0])[0]
    assert done.drafted == 0


def test_a_request_can_switch_drafts_off(tiny: LoadedModel, always: None) -> None:
    run = Run(tiny, draft=tiny)
    assert run.one(PROMPTS[0])[1].drafted > 0
    run.submit(1, PROMPTS[0], speculate="off")
    run.finish()
    assert run.done(1).drafted == 0


def test_a_request_for_a_draft_model_not_loaded_is_refused(tiny: LoadedModel) -> None:
    run = Run(tiny)
    with pytest.raises(RequestError, match=r'loaded without a draft model.*option "draft"'):
        run.submit(0, PROMPTS[0], speculate="draft")
    # But a default is not a demand.
    assert Run(tiny, speculate="draft").one(PROMPTS[0])[1].drafted == 0


def test_models_with_other_tokens_are_refused(tiny: LoadedModel) -> None:
    with pytest.raises(RequestError, match=r"demo\.gguf cannot be a draft model for tiny\.gguf: it has"):
        Run(tiny, draft=load_model(demo.path()))


def test_models_whose_cache_cannot_remove_drafts_are_refused(tmp_path: Path) -> None:
    gemma = load_model(tiny_gemma3_gguf(tmp_path / "gemma3.gguf", TinyGemma3(layers=3, pattern=3, window=6)))
    lfm2 = load_model(tiny_lfm2_gguf(tmp_path / "lfm2.gguf"))
    with pytest.raises(RequestError, match="cannot be a draft model: its cache cannot remove several"):
        Run(gemma, draft=gemma)
    with pytest.raises(RequestError, match="cannot be a draft model: its cache cannot remove several"):
        Run(lfm2, draft=lfm2)


def test_a_model_drafts_for_one_with_recurrent_layers(
    tiny: LoadedModel, recurrent: LoadedModel, always: None
) -> None:
    run = compare(recurrent, None, draft=tiny)
    assert drafted(run)[0] > 50
    assert run.leaked() == leaked_by_draft(run) == 0

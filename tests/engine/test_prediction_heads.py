"""A model that drafts with its prediction heads gives the same answers as without, whatever they draft."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from typing import Any

import pytest

from puna.engine.drafting.prediction_heads import PredictionHeads
from puna.errors import RequestError
from puna.model.load import LoadedModel, load_model
from puna.ops import default_backend
from tests.engine.drafting import PROMPTS, compare, draft_always, drafted
from tests.engine.runs import Run
from tests.processors import NOT_BUILT
from tests.tiny.decoders import tiny_decoder_gguf
from tests.tiny.eagle import AGREEING, WILD, Eagle3Reference, TinyEagle3, eagle3_files
from tests.tiny.heads import MODELS, mimo2_with
from tests.tiny.heads_reference import Reference
from tests.tiny.llama import TinyLlama, tiny_llama_gguf

pytestmark = pytest.mark.skipif(default_backend().name != "cpu", reason=NOT_BUILT)

#: Models with a plain cache, with recurrent layers, and with windows and two heads; and with a head in a file
#: of its own, with a plain cache and with windows.
KINDS = ("glm4moe", "qwen35", "mimo2", *WILD)


@pytest.fixture(scope="session", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session")
def agreeing(kind: str, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    """Return a model whose heads mostly predict its own tokens."""
    if kind in AGREEING:
        return loaded(AGREEING[kind], tmp_path_factory)
    return loaded(dataclasses.replace(MODELS[kind], agreeing=True, own=False), tmp_path_factory)


@pytest.fixture(scope="session")
def wild(kind: str, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    """Return a model with random heads."""
    return loaded(WILD.get(kind) or MODELS[kind], tmp_path_factory)


@pytest.fixture(scope="module")
def three_heads(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return loaded(mimo2_with(heads=3), tmp_path_factory)


def loaded(tiny: Any, folders: pytest.TempPathFactory) -> LoadedModel:
    folder = folders.mktemp("heads")
    if isinstance(tiny, TinyEagle3):
        target, head = eagle3_files(folder, tiny)
        return load_model(target, draft=head)
    return load_model(tiny_decoder_gguf(folder / "model.gguf", tiny, model=Reference(tiny).model))


def reference_of(kind: str) -> Reference | Eagle3Reference:
    return Eagle3Reference(WILD[kind]) if kind in WILD else Reference(MODELS[kind])


def mode_of(model: LoadedModel) -> str:
    """Return the mode of requests that want the heads' drafts."""
    return "mtp" if model.draft is None else "draft"


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    draft_always(monkeypatch, random.Random(5))


def heads_of(run: Run) -> PredictionHeads:
    drafter = run.engine._drafter
    assert isinstance(drafter, PredictionHeads)
    return drafter


@pytest.mark.slow
def test_heads_that_agree_change_no_answer_and_save_steps(agreeing: LoadedModel, always: None) -> None:
    run = compare(agreeing, None, mode=mode_of(agreeing), num_predict=40)
    tried, accepted = drafted(run)
    assert 50 < accepted < tried
    assert not heads_of(run)._broken
    assert run.leaked() == 0


def test_random_heads_change_no_answer(wild: LoadedModel, always: None) -> None:
    run = compare(wild, None, mode=mode_of(wild))
    tried, accepted = drafted(run)
    assert tried > 100
    assert accepted < tried / 4
    assert not heads_of(run)._broken
    assert run.leaked() == 0


@pytest.mark.parametrize("shift", [True, False])
def test_heads_follow_shifts(agreeing: LoadedModel, always: None, shift: bool) -> None:
    run = compare(agreeing, None, mode=mode_of(agreeing), context=40, num_predict=60, num_keep=4, shift=shift)
    assert any(run.done(number).shifted for number in range(6)) == shift
    assert drafted(run)[1] > 30
    assert not heads_of(run)._broken
    assert run.leaked() == 0


def test_few_cells_make_streams_wait_and_change_no_answer(agreeing: LoadedModel, always: None) -> None:
    run = compare(agreeing, None, mode=mode_of(agreeing), capacity=70, parallel=4)
    assert drafted(run)[1] > 0
    assert not heads_of(run)._broken
    assert run.leaked() == 0


def test_drafts_match_the_published_formula(
    kind: str, wild: LoadedModel, always: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drafts are made side by side and at several depths, whether or not earlier ones were right."""
    check_drafts(wild, reference_of(kind), monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("prompt", [PROMPTS[:2], ["a", "it"]], ids=["long", "short"])
def test_drafts_of_three_heads_match_the_published_formula(
    three_heads: LoadedModel, always: None, prompt: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second head continues from the first, including its cache, and the third from the second."""
    check_drafts(three_heads, Reference(mimo2_with(heads=3)), monkeypatch, prompt)


def check_drafts(
    loaded: LoadedModel,
    reference: Reference | Eagle3Reference,
    monkeypatch: pytest.MonkeyPatch,
    prompts: Sequence[str] = PROMPTS[:2],
) -> None:
    """Check all drafts for `prompts` against the reference; some must have at least four tokens."""
    run = Run(loaded)
    heads = heads_of(run)
    draft, found = heads.draft, []

    def noted(wanted: Any) -> list[list[int]]:
        drafts = draft(wanted)
        found.extend(
            ([item.token for item in sequence.inputs], tokens)
            for (sequence, _), tokens in zip(wanted, drafts, strict=True)
        )
        return drafts

    monkeypatch.setattr(heads, "draft", noted)
    for number, prompt in enumerate(prompts):
        run.submit(number, prompt, num_predict=12, temperature=float(number), seed=3)
    run.finish()
    assert max(len(tokens) for _, tokens in found) >= 4
    for inputs, tokens in found:
        assert tokens == reference.drafts(inputs, len(tokens))


def test_a_second_turn_reuses_the_heads_keys(agreeing: LoadedModel, always: None) -> None:
    run = Run(agreeing)
    first, _ = run.one(PROMPTS[2], num_predict=20)
    read: list[int] = []
    forward = heads_of(run)._forward

    def counted(head: int, parts: Any) -> Any:
        read.append(max(len(rows) for rows in parts))
        return forward(head, parts)

    heads_of(run)._forward = counted  # type: ignore[method-assign]
    turn = [*agreeing.tokenizer.encode(PROMPTS[2]), *first, 7, 8, 9, 10]
    run.submit(1, turn, num_predict=20)
    run.finish()
    assert run.tokens(1) == Run(agreeing, speculate="off").one(turn, num_predict=20)[0]
    assert run.done(1).cached > 20
    assert run.done(1).accepted > 5
    assert max(read) < 20 < len(turn)


def test_samples_stops_and_penalties_are_unchanged_by_heads(agreeing: LoadedModel, always: None) -> None:
    settings = {"samples": 3, "temperature": 0.9, "seed": 3, "num_predict": 24, "repeat_penalty": 1.2}
    runs = [Run(agreeing, speculate=mode) for mode in ("off", mode_of(agreeing))]
    plain = runs[0].one(PROMPTS[1], **settings)[0]
    stop = agreeing.tokenizer.decode(plain)[6:8]
    for run in runs:
        run.submit(1, PROMPTS[1], **settings, stop=[stop])
        run.finish()
    runs[1].submit(0, PROMPTS[1], **settings)
    runs[1].finish()
    for number in (0, 1):
        for sample in range(3):
            assert runs[0].tokens(number, sample) == runs[1].tokens(number, sample)
            assert runs[0].done(number, sample).stop == runs[1].done(number, sample).stop
    assert sum(runs[1].done(0, sample).accepted for sample in range(3)) > 0


def test_steps_are_replayed_beside_heads(agreeing: LoadedModel, always: None) -> None:
    run = compare(agreeing, None, mode=mode_of(agreeing), num_predict=40)
    assert any(step.proven for step in run.engine._executor._replay._steps.values())


def test_a_model_with_heads_uses_them_unless_told_otherwise(agreeing: LoadedModel, always: None) -> None:
    run = Run(agreeing)
    assert run.one(PROMPTS[0])[1].drafted > 0
    run.submit(1, PROMPTS[0], speculate="off")
    run.finish()
    assert run.done(1).drafted == 0
    other, missing = ("draft", "a draft model") if agreeing.draft is None else ("mtp", "prediction heads")
    with pytest.raises(RequestError, match=f"without {missing}"):
        run.submit(2, PROMPTS[0], speculate=other)


def test_a_request_for_heads_not_loaded_is_refused(tiny: LoadedModel) -> None:
    with pytest.raises(RequestError, match="loaded without prediction heads"):
        Run(tiny).submit(0, PROMPTS[0], speculate="mtp")
    # But a default is not a demand.
    assert Run(tiny, speculate="mtp").one(PROMPTS[0])[1].drafted == 0


def test_failing_heads_are_no_longer_used(
    agreeing: LoadedModel, always: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = Run(agreeing, speculate="off").one(PROMPTS[0])[0]
    run = Run(agreeing)
    monkeypatch.setattr(type(heads_of(run)._heads), "head_logits", lambda *_: 1 / 0)
    tokens, done = run.one(PROMPTS[0])
    assert tokens == expected
    assert done.drafted == 0


def test_rows_of_sequences_without_drafts_are_read_together(
    agreeing: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Heads keep up with a sequence for which drafting does not pay, a few rows at a time."""
    monkeypatch.setattr("puna.engine.drafting.speculation.Speculation.propose", lambda *_: None)
    monkeypatch.setattr("puna.engine.drafting.prediction_heads._READ_TOGETHER", 8)
    run = Run(agreeing)
    heads = heads_of(run)
    behind: list[int] = []
    observe = heads.observe

    def watched(slices: Any, rows: int) -> None:
        observe(slices, rows)
        behind.append(max(len(unread.states) for of in heads._unread.values() for unread in of))

    monkeypatch.setattr(heads, "observe", watched)
    run.one(PROMPTS[0], num_predict=30)
    assert 4 < max(behind) <= 9
    assert not heads._unread


def test_cancelled_requests_leave_the_others_unchanged(agreeing: LoadedModel, always: None) -> None:
    expected = Run(agreeing, speculate="off").one(PROMPTS[0], num_predict=30)[0]
    run = Run(agreeing)
    for number in range(2):
        run.submit(number, PROMPTS[number], num_predict=30)
    for _ in range(4):
        run.engine.step()
    run.engine.cancel(1)
    run.finish()
    assert run.tokens(0) == expected
    assert not heads_of(run)._broken
    assert not heads_of(run)._unread
    assert run.leaked() == 0


@pytest.fixture(scope="module")
def eagle(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return loaded(WILD["eagle3"], tmp_path_factory)


def test_memory_of_a_head_in_a_file_of_its_own_is_that_of_its_weights_and_one_more_layer(
    eagle: LoadedModel,
) -> None:
    run, plain = Run(eagle), load_model(eagle.path)
    assert eagle.draft is not None
    assert run.engine.weight_bytes == eagle.weight_bytes + eagle.draft.weight_bytes
    layers = [model.make_cache(sequences=1, context=64).layers for model in (eagle, plain)]
    assert [list(each) for each in layers] == [[0, 1, 2, 3, 4], [0, 1, 2, 3]]
    assert run.engine.cache_bytes - Run(plain).engine.cache_bytes == 4 * 64 * 2 * 3 * 12 * 4


def test_a_head_of_another_model_is_refused(
    eagle: LoadedModel, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("other")
    other = load_model(tiny_llama_gguf(folder / "other.gguf", TinyLlama(hidden=48)))
    with pytest.raises(RequestError, match=r"head.gguf cannot be a draft model for other.gguf: its hidden"):
        Run(dataclasses.replace(other, draft=eagle.draft))


def test_heads_in_files_of_their_own_take_turns_on_a_target(
    eagle: LoadedModel, always: None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A second one does not add another layer to the caches of the target."""
    other = loaded(dataclasses.replace(WILD["eagle3"], seed=320), tmp_path_factory)
    expected = Run(eagle, speculate="off").one(PROMPTS[0])[0]
    for draft in (other.draft, eagle.draft, eagle.draft):
        tokens, done = Run(dataclasses.replace(eagle, draft=draft)).one(PROMPTS[0])
        assert tokens == expected
        assert done.drafted > 0
    assert list(eagle.make_cache(sequences=1, context=64).layers) == [0, 1, 2, 3, 4]

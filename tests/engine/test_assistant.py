"""A model with an assistant gives the same answers as without, whatever the assistant drafts."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from puna.engine.drafting.assistant import Assistant
from puna.errors import RequestError
from puna.model.load import LoadedModel, load_model
from puna.model.models.gemma4_assistant import Gemma4Assistant
from puna.ops import default_backend
from tests.engine.drafting import PROMPTS, compare, draft_always, drafted
from tests.engine.runs import Run
from tests.processors import NOT_BUILT
from tests.tiny.assistants import AssistantReference, TinyAssistant, TinyTarget
from tests.tiny.decoders import tiny_decoder_gguf
from tests.tiny.gemmas import TinyGemma4

pytestmark = pytest.mark.skipif(default_backend().name != "cpu", reason=NOT_BUILT)

WILD = TinyAssistant(target=TinyTarget(seed=90), seed=91)
AGREEING = TinyAssistant(
    target=TinyTarget(seed=92, agreeing=True, settings={"num_kv_shared_layers": 2}, layer_inputs=16),
    seed=93, agreeing=True,
)  # fmt: skip


def loaded(folder: Path, tiny: TinyAssistant) -> LoadedModel:
    """Return a target with its assistant."""
    target = tiny_decoder_gguf(folder / "target.gguf", tiny.target)
    return load_model(target, draft=tiny_decoder_gguf(folder / "assistant.gguf", tiny))


@pytest.fixture(scope="module")
def wild(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return loaded(tmp_path_factory.mktemp("wild"), WILD)


@pytest.fixture(scope="module")
def agreeing(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    """Return a target whose assistant often predicts its tokens."""
    return loaded(tmp_path_factory.mktemp("agreeing"), AGREEING)


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    draft_always(monkeypatch, random.Random(5))


def assistant_of(run: Run) -> Assistant:
    drafter = run.engine._drafter
    assert isinstance(drafter, Assistant)
    return drafter


def check_whole(run: Run) -> None:
    """Check that the assistant works and keeps nothing of what has ended."""
    assert not assistant_of(run)._broken
    assert not assistant_of(run)._newest
    assert run.leaked() == 0


def test_assistants_that_agree_change_no_answer_and_save_steps(agreeing: LoadedModel, always: None) -> None:
    run = compare(agreeing, None, num_predict=30)
    tried, accepted = drafted(run)
    assert 50 < accepted < tried
    check_whole(run)


def test_random_assistants_change_no_answer(wild: LoadedModel, always: None) -> None:
    run = compare(wild, None)
    tried, accepted = drafted(run)
    assert tried > 100
    assert accepted < tried / 4
    check_whole(run)


@pytest.mark.parametrize("shift", [True, False])
def test_assistants_follow_shifts(agreeing: LoadedModel, always: None, shift: bool) -> None:
    run = compare(agreeing, None, context=40, num_predict=60, num_keep=4, shift=shift)
    assert any(run.done(number).shifted for number in range(6)) == shift
    assert drafted(run)[1] > 30
    check_whole(run)


def test_few_cells_make_streams_wait_and_change_no_answer(agreeing: LoadedModel, always: None) -> None:
    run = compare(agreeing, None, capacity=70, parallel=4)
    assert drafted(run)[1] > 0
    check_whole(run)


def test_drafts_match_transformers(wild: LoadedModel, always: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafts are made side by side and at several depths, whether or not earlier ones were right."""
    settings = [{"num_predict": 16, "temperature": float(number), "seed": 3} for number in range(2)]
    plain = Run(wild, speculate="off")
    for number, prompt in enumerate(PROMPTS[1:3]):
        plain.submit(number, prompt, **settings[number])
    plain.finish()
    prompts = [wild.tokenizer.encode(prompt) for prompt in PROMPTS[1:3]]
    answers = [[*prompt, *plain.tokens(number)] for number, prompt in enumerate(prompts)]
    run = Run(wild)
    assistant, dice = assistant_of(run), random.Random(4)
    draft, found = assistant.draft, []

    def improved(wanted: Any) -> list[list[int]]:
        """Return the answer's tokens, some of them wrong, after noting what was drafted."""
        better = []
        for (sequence, most), tokens in zip(wanted, draft(wanted), strict=True):
            inputs = [item.token for item in sequence.inputs]
            found.append((inputs, tokens))
            assert len(tokens) == most
            answer = next(each for each in answers if each[: len(inputs)] == inputs)
            right = answer[len(inputs) : len(inputs) + most]
            better.append([token if dice.random() < 0.7 else 5 for token in right])
        return better

    monkeypatch.setattr(assistant, "draft", improved)
    for number, prompt in enumerate(PROMPTS[1:3]):
        run.submit(number, prompt, **settings[number])
    run.finish()
    assert [run.tokens(number) for number in range(2)] == [plain.tokens(number) for number in range(2)]
    assert sum(run.done(number).accepted for number in range(2)) > 8
    assert max(len(tokens) for _, tokens in found) >= 4
    reference = AssistantReference(WILD.target.build(), WILD.build())
    for inputs, tokens in found:
        logits, _ = reference.draft(inputs, tokens[:-1])
        assert tokens == [int(each.argmax()) for each in logits]


def test_a_second_turn_drafts_from_the_first_token_on(agreeing: LoadedModel, always: None) -> None:
    run = Run(agreeing)
    first, _ = run.one(PROMPTS[2], num_predict=20)
    turn = [*agreeing.tokenizer.encode(PROMPTS[2]), *first, 7, 8, 9, 10]
    run.submit(1, turn, num_predict=20)
    run.finish()
    assert run.tokens(1) == Run(agreeing, speculate="off").one(turn, num_predict=20)[0]
    assert run.done(1).cached > 20
    assert run.done(1).accepted > 5


def test_samples_stops_and_penalties_are_unchanged(agreeing: LoadedModel, always: None) -> None:
    settings = {"samples": 3, "temperature": 0.9, "seed": 3, "num_predict": 24, "repeat_penalty": 1.1}
    runs = [Run(agreeing, speculate=mode) for mode in ("off", "draft")]
    for run in runs:
        run.submit(0, PROMPTS[1], **settings)
        run.finish()
    for sample in range(3):
        assert runs[0].tokens(0, sample) == runs[1].tokens(0, sample)
    assert sum(runs[1].done(0, sample).drafted for sample in range(3)) > 0


def test_cancelled_requests_leave_the_others_unchanged(agreeing: LoadedModel, always: None) -> None:
    expected = Run(agreeing, speculate="off").one(PROMPTS[0], num_predict=30)[0]
    run = Run(agreeing)
    run.submit(0, PROMPTS[0], num_predict=30)
    run.submit(1, PROMPTS[1], num_predict=30)
    for _ in range(4):
        run.engine.step()
    run.engine.cancel(1)
    run.finish()
    assert run.tokens(0) == expected
    check_whole(run)


def test_steps_are_replayed_beside_an_assistant(agreeing: LoadedModel, always: None) -> None:
    run = compare(agreeing, None, num_predict=40)
    assert any(step.proven for step in run.engine._executor._replay._steps.values())


def test_prompts_pass_through_layers_that_borrow_keys_in_one_row(
    agreeing: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An assistant needs no states of a prompt but the last."""
    rows: list[int] = []
    last = agreeing.model.layers[-1]  # type: ignore[attr-defined]
    forward = last.forward
    monkeypatch.setattr(last, "forward", lambda x, *rest: rows.append(len(x)) or forward(x, *rest))
    Run(agreeing).one(PROMPTS[2], num_predict=1)
    assert max(rows) == 1


def test_a_failing_assistant_is_no_longer_used(
    agreeing: LoadedModel, always: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = Run(agreeing, speculate="off").one(PROMPTS[0])[0]
    monkeypatch.setattr(Gemma4Assistant, "draft", lambda *_: 1 / 0)
    tokens, done = Run(agreeing).one(PROMPTS[0])
    assert tokens == expected
    assert done.drafted == 0


def test_a_request_can_switch_drafts_off(agreeing: LoadedModel, always: None) -> None:
    run = Run(agreeing)
    assert run.one(PROMPTS[0])[1].drafted > 0
    run.submit(1, PROMPTS[0], speculate="off")
    run.finish()
    assert run.done(1).drafted == 0


def test_an_assistant_of_another_model_is_refused(tmp_path: Path, wild: LoadedModel) -> None:
    other = load_model(tiny_decoder_gguf(tmp_path / "other.gguf", TinyGemma4(settings={"sliding_window": 9})))
    with pytest.raises(
        RequestError, match=r"assistant.gguf cannot be a draft model for other.gguf: it has no"
    ):
        Run(replace(other, draft=wild.draft))


def test_memory_of_an_assistant_is_its_weights(wild: LoadedModel) -> None:
    run = Run(wild)
    assert wild.draft is not None
    assert run.engine.weight_bytes == wild.weight_bytes + wild.draft.weight_bytes
    plain = Run(replace(wild, draft=None))
    assert run.engine.cache_bytes == plain.engine.cache_bytes

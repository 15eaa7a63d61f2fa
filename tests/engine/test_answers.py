"""Scores of a prompt, computed in parts and beside others, against one forward pass of the model."""

from __future__ import annotations

import pytest
import torch

from puna.batch import Batch
from puna.kvcache.types import KVTypes
from puna.model.load import LoadedModel
from puna.protocol import Chunk, Evaluated, Failed, Scored
from tests.engine.runs import Run
from tests.tiny.forward import logits_of

PROMPT = [(11 * i) % 200 for i in range(40)]


def expected(tiny: LoadedModel, tokens: list[int]) -> list[float]:
    """Return the log-probability of each token but the first."""
    cache = tiny.make_cache(sequences=1, context=64, types=KVTypes.parse("f32"))
    count = len(tokens)
    batch = Batch.of(tokens, list(range(count)), [0] * count, list(range(count)))
    cache.start_forward(batch)
    logits = logits_of(tiny.model, batch, cache)
    scores = torch.log_softmax(logits.double(), dim=-1)
    return [scores[i, token].item() for i, token in enumerate(tokens[1:])]


@pytest.mark.parametrize("settings", [{}, {"batch_size": 7}, {"batch_size": 1}])
def test_a_text_is_scored_and_nothing_generated(tiny: LoadedModel, settings: dict) -> None:
    run = Run(tiny, **settings)
    run.submit(1, PROMPT[:9], num_predict=20)
    run.engine.step()
    run.submit(0, PROMPT, prompt_logprobs=True, num_predict=0)
    run.finish()
    tokens, scores = zip(*run.scored(0), strict=True)
    assert list(tokens) == PROMPT
    assert scores[0] is None
    assert list(scores[1:]) == pytest.approx(expected(tiny, PROMPT), abs=1e-4)
    done = run.done(0)
    assert (done.reason, done.eval_count, done.prompt_eval_count) == ("length", 0, len(PROMPT))
    assert not any(isinstance(event, Chunk) for event in run.events[0])
    assert run.tokens(1) == Run(tiny).one(PROMPT[:9], num_predict=20)[0]


def test_a_scored_prompt_can_be_continued(tiny: LoadedModel) -> None:
    run = Run(tiny)
    run.submit(0, PROMPT, prompt_logprobs=True, top_logprobs=2, num_predict=5)
    run.finish()
    assert run.tokens(0) == Run(tiny).one(PROMPT, num_predict=5)[0]
    assert [type(event) for event in run.events[0][:2]] == [Scored, Chunk]
    scored = run.events[0][0]
    assert isinstance(scored, Scored)
    for token, logprob in list(zip(scored.tokens, scored.logprobs, strict=True))[1:]:
        assert logprob is not None
        assert bytes(logprob.bytes) == tiny.tokenizer.piece(token)
        assert len(logprob.top) == 2
        assert logprob.top[0].logprob >= logprob.logprob


def test_cached_prefixes_do_not_shorten_the_score(tiny: LoadedModel) -> None:
    run = Run(tiny)
    run.one(PROMPT)
    run.submit(1, PROMPT, prompt_logprobs=True, num_predict=0)
    run.finish()
    assert len(run.scored(1)) == len(PROMPT)
    run.submit(2, PROMPT, num_predict=1)  # the scored prompt is remembered
    run.finish()
    assert run.done(2).cached == len(PROMPT) - 1


def test_an_interrupted_score_reports_every_token_once(tiny: LoadedModel) -> None:
    run = Run(tiny, parallel=1, batch_size=8)
    run.submit(0, PROMPT, prompt_logprobs=True, num_predict=2, priority="batch")
    for _ in range(3):
        run.engine.step()
    run.submit(1, [1, 2, 3], cache_prompt=False)
    run.finish()
    assert run.ended == [1, 0]
    assert [token for token, _ in run.scored(0)] == PROMPT
    assert [score for _, score in run.scored(0)][1:] == pytest.approx(expected(tiny, PROMPT), abs=1e-4)


def test_a_single_token_has_no_log_probability(tiny: LoadedModel) -> None:
    run = Run(tiny)
    run.submit(0, [5], prompt_logprobs=True, num_predict=0)
    run.finish()
    assert run.scored(0) == [(5, None)]


def test_poisoned_logits_fail_a_score(tiny: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    forward = tiny.model.forward
    monkeypatch.setattr(tiny.model, "forward", lambda batch, cache: forward(batch, cache) * float("nan"))
    run = Run(tiny)
    run.submit(0, PROMPT, prompt_logprobs=True, num_predict=0)
    run.finish()
    assert isinstance(run.events[0][-1], Failed)
    assert run.leaked() == 0


def test_progress_is_sent_on_request(tiny: LoadedModel) -> None:
    run = Run(tiny, batch_size=16)

    def heard(number: int, prompt: list[int], **settings: object) -> list[tuple[int, int, int]]:
        run.submit(number, prompt, progress=True, num_predict=3, **settings)
        run.finish()
        steps = [event for event in run.events[number] if isinstance(event, Evaluated)]
        own = [event for event in run.events[number] if getattr(event, "sample", 0) == 0]
        assert own[: len(steps)] == steps, "all of it comes before the answer"
        assert all(step.duration > 0 for step in steps)
        return [(step.done, step.total, step.cached) for step in steps]

    assert heard(0, PROMPT) == [(16, 40, 0), (32, 40, 0), (40, 40, 0)]
    assert heard(1, PROMPT) == [(40, 40, 39)], "what is cached is evaluated already"
    assert heard(2, PROMPT[::-1], samples=2)[-1] == (40, 40, 0)
    run.submit(3, PROMPT, num_predict=3)
    run.finish()
    assert not any(isinstance(event, Evaluated) for event in run.events[3])

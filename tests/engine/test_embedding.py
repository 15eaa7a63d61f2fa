"""Embeddings on tiny models: the definition of vectors, whatever else the engine is doing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from puna.batch import Input
from puna.engine.prefix_cache import PrefixEntry
from puna.engine.sequence import EmbeddingInput
from puna.errors import ContextLengthError, RequestError, UnavailableError
from puna.model.load import LoadedModel, load_model
from puna.model.pooling import Pooling
from puna.protocol import Embed, Embedded, Failed
from tests.engine.runs import Run
from tests.model.models.parity import original
from tests.model.test_load import rewritten
from tests.tiny.llama import TinyLlama, tiny_llama_gguf
from tests.tiny.models import ARCHITECTURES

TEXTS = [[(11 * i + j * j) % 250 for j in range(5 + 9 * i)] for i in range(5)]
POOLINGS = list(Pooling)


def vectors(loaded: LoadedModel, *inputs: str | list[int], **settings: Any) -> Any:
    run = Run(loaded)
    run.embed(0, *inputs, **settings)
    run.finish()
    return run.vectors(0)


def same_bits(found: Any, expected: Any) -> bool:
    return bool(np.array_equal(found.view(np.int32), expected.view(np.int32)))


# --- vectors ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=ARCHITECTURES)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[LoadedModel, Any]:
    """Return our model and transformers' of one architecture."""
    config, write = ARCHITECTURES[request.param]
    theirs = original(config)
    path = write(tmp_path_factory.mktemp("embedding") / "model.gguf", config, model=theirs)
    return load_model(path), theirs


@pytest.mark.parametrize("pooling", POOLINGS)
def test_vectors_equal_pooled_reference_states(pair: tuple[LoadedModel, Any], pooling: str) -> None:
    ours, theirs = pair
    found = vectors(ours, *TEXTS, pooling=pooling, normalize=False)
    for vector, tokens in zip(found, TEXTS, strict=True):
        with torch.inference_mode():
            states = theirs.model(torch.tensor([tokens])).last_hidden_state[0]
        expected = {"mean": states.mean(0), "cls": states[0], "last": states[-1]}[pooling]
        assert np.abs(vector - expected.numpy()).max() < 1e-3


@pytest.mark.parametrize(
    ("pooling", "expected"), [("mean", range(4, 12)), ("cls", range(8)), ("last", range(8, 16))]
)
def test_each_pooling_of_two_rows_follows_its_definition(pooling: str, expected: range) -> None:
    events: list[Any] = []
    sequence = EmbeddingInput(
        request=Embed(id=1, inputs=[], normalize=False),
        sink=events.append,
        inputs=[Input(0), Input(1)],
        pooling=Pooling(pooling),
    )
    entry = PrefixEntry(0)
    sequence.start(entry)
    rows = np.arange(16, dtype=np.float32).reshape(2, 8)
    for begin in range(2):  # one after the other, as in different batches
        wanted = sequence.wanted(1)
        entry.evaluated += 1
        sequence.take(rows[begin : begin + 1][list(wanted)])
    sequence.finish()
    assert np.frombuffer(events[0].vector, np.float32).tolist() == list(expected)


def test_vectors_have_length_1_after_dimensions_are_cut(tiny: LoadedModel) -> None:
    plain = vectors(tiny, *TEXTS, normalize=False)
    assert np.abs(np.linalg.norm(plain, axis=1) - 1).min() > 0.1
    whole = vectors(tiny, *TEXTS)
    np.testing.assert_allclose(whole, plain / np.linalg.norm(plain, axis=1, keepdims=True), atol=1e-6)
    short = vectors(tiny, *TEXTS, dimensions=10)
    assert short.shape == (5, 10)
    np.testing.assert_allclose(np.linalg.norm(short, axis=1), 1, atol=1e-6)
    np.testing.assert_allclose(short[0] / short[0][0], plain[0][:10] / plain[0][0], rtol=1e-5)
    assert vectors(tiny, TEXTS[0], dimensions=64).shape == (1, 64)
    assert vectors(tiny, TEXTS[0], dimensions=-3).shape == (1, 64)


def test_text_and_its_tokens_give_the_same_vector(tiny: LoadedModel) -> None:
    found = vectors(tiny, "hello world", tiny.tokenizer.encode("hello world"), "")
    assert same_bits(found[0], found[1])
    assert same_bits(found[2], vectors(tiny, [tiny.tokenizer.bos_id])[0])


# --- models ----------------------------------------------------------------------------------------


def pooled_model(path: Path, pooling_type: int) -> LoadedModel:
    source = tiny_llama_gguf(path / "plain.gguf", TinyLlama(context=128))
    return load_model(rewritten(source, path / "pooled.gguf", **{"llama.pooling_type": pooling_type}))


@pytest.mark.parametrize(("pooling_type", "pooling"), [(0, "last"), (1, "mean"), (2, "cls"), (3, "last")])
def test_the_file_states_the_pooling(tmp_path: Path, pooling_type: int, pooling: str) -> None:
    loaded = pooled_model(tmp_path, pooling_type)
    assert same_bits(vectors(loaded, *TEXTS), vectors(loaded, *TEXTS, pooling=pooling))


def test_a_generative_model_gives_its_last_state(tiny: LoadedModel) -> None:
    assert same_bits(vectors(tiny, *TEXTS), vectors(tiny, *TEXTS, pooling="last"))


def test_a_reranker_does_not_embed(tmp_path: Path) -> None:
    loaded = pooled_model(tmp_path, 4)
    with pytest.raises(UnavailableError, match="this model does not support embeddings"):
        vectors(loaded, "hello")


def test_a_pooling_that_does_not_exist_is_refused(tiny: LoadedModel) -> None:
    with pytest.raises(RequestError, match="pooling 'max' is not supported; use one of mean, cls, last"):
        vectors(tiny, "hello", pooling="max")


# --- beside other requests ---------------------------------------------------------------------------


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("batch_size", [1, 3, 16])
def test_all_tokens_count_in_any_number_of_batches(tiny: LoadedModel, pooling: str, batch_size: int) -> None:
    expected = vectors(tiny, *TEXTS, pooling=pooling)
    run = Run(tiny, batch_size=batch_size)
    run.embed(0, *TEXTS, pooling=pooling)
    run.finish()
    assert len(run.rows) > 5
    assert same_bits(run.vectors(0), expected)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_a_vector_does_not_depend_on_its_neighbours(tiny: LoadedModel, pooling: str) -> None:
    together = vectors(tiny, *TEXTS, pooling=pooling)
    alone = [vectors(tiny, tokens, pooling=pooling)[0] for tokens in TEXTS]
    assert same_bits(together, np.array(alone))


def test_inputs_share_a_forward_pass(tiny: LoadedModel) -> None:
    run = Run(tiny)
    run.embed(0, *TEXTS)
    run.finish()
    assert run.rows == [sum(map(len, TEXTS))]
    assert [event.prompt_eval_count for event in run.embedded(0)] == [len(tokens) for tokens in TEXTS]


def test_texts_need_no_slots_for_generation(tiny: LoadedModel) -> None:
    run = Run(tiny, parallel=1, capacity=256)
    for number in range(3):
        run.submit(number, [100 + number, 1, 2], num_predict=5)
    run.embed(3, *([number, 7, 8] for number in range(20)))
    run.engine.step()
    assert run.rows == [3 + 20 * 3]
    assert len(run.vectors(3)) == 20
    run.finish()
    assert run.rows[1:] == [1] * 4 + ([3] + [1] * 4) * 2
    assert run.ended == [0, 1, 2]


def test_texts_take_turns_when_they_are_many(tiny: LoadedModel) -> None:
    texts = [[number, 7, 8] for number in range(50)]
    run = Run(tiny, parallel=2, remembered=16)
    run.embed(0, *texts)
    run.finish()
    assert run.rows == [8 * 3] * 6 + [2 * 3]
    assert same_bits(run.vectors(0), vectors(tiny, *texts))
    assert run.leaked() == 0


def test_texts_take_free_slots_where_nothing_can_be_remembered(tiny: LoadedModel) -> None:
    run = Run(tiny, parallel=2, remembered=0)
    run.submit(0, [1, 2], num_predict=3)
    run.embed(1, *TEXTS)
    run.finish()
    assert run.rows[0] == 2 + len(TEXTS[0])
    assert same_bits(run.vectors(1), vectors(tiny, *TEXTS))
    assert run.leaked() == 0


def test_batch_sequences_of_equal_kind_are_preempted(tiny: LoadedModel) -> None:
    run = Run(tiny, parallel=1, remembered=2, batch_size=4)
    run.submit(0, [1, 2], num_predict=12, priority="batch")
    run.engine.step()
    run.embed(1, TEXTS[1], priority="batch")
    run.engine.step()
    run.embed(2, TEXTS[0])
    run.engine.step()
    assert [sequence.id for sequence in run.engine.scheduler.running] == [0, 2]
    run.submit(3, [3, 4], num_predict=3)
    run.engine.step()
    assert 0 not in [sequence.id for sequence in run.engine.scheduler.running]
    run.finish()
    assert same_bits(run.vectors(1), vectors(tiny, TEXTS[1]))
    assert len(run.tokens(0)) > 8
    assert run.leaked() == 0


@pytest.mark.parametrize("pooling", POOLINGS)
def test_generations_and_embeddings_run_side_by_side(tiny: LoadedModel, pooling: str) -> None:
    tokens, _ = Run(tiny).one("once upon", num_predict=20)
    scores = Run(tiny)
    scores.submit(0, TEXTS[4], num_predict=0, prompt_logprobs=True)
    scores.finish()
    run = Run(tiny, batch_size=8)
    run.submit(0, "once upon", num_predict=20)
    run.engine.step()
    run.embed(1, *TEXTS, pooling=pooling)
    run.submit(2, TEXTS[4], num_predict=0, prompt_logprobs=True)
    for count in range(2, 8):
        run.engine.step()
        assert run.engine.scheduler.running[0].generated == count
    run.finish()
    assert run.tokens(0) == tokens
    assert run.scored(2) == scores.scored(0)
    assert same_bits(run.vectors(1), vectors(tiny, *TEXTS, pooling=pooling))
    assert run.leaked() == 0


@pytest.mark.parametrize("pooling", POOLINGS)
def test_a_preempted_input_starts_over(tiny: LoadedModel, pooling: str) -> None:
    run = Run(tiny, context=64, capacity=64, batch_size=8)
    text = TEXTS[4]
    run.embed(1, text, pooling=pooling, priority="batch")
    run.engine.step()
    run.engine.step()
    run.submit(0, TEXTS[3][:30], num_predict=30)
    run.engine.step()
    assert len(run.engine.scheduler.running) == 1
    run.finish()
    assert same_bits(run.vectors(1), vectors(tiny, text, pooling=pooling))
    assert run.leaked() == 0


def test_cancelling_ends_all_inputs(tiny: LoadedModel) -> None:
    run = Run(tiny, batch_size=4)
    run.embed(0, *TEXTS)
    run.engine.step()
    run.engine.cancel(0)
    run.finish()
    assert len(run.events[0]) < len(TEXTS)
    assert run.leaked() == 0


# --- cached prefixes -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("pooling", "cached"), [("mean", 0), ("cls", 0), ("last", 30)])
def test_only_last_pooling_reuses_cached_inputs(tiny: LoadedModel, pooling: str, cached: int) -> None:
    run = Run(tiny)
    run.submit(0, TEXTS[4][:30], num_predict=1)
    run.finish()
    run.embed(1, TEXTS[4], pooling=pooling)
    run.finish()
    assert [event.cached for event in run.embedded(1)] == [cached]
    assert same_bits(run.vectors(1), vectors(tiny, TEXTS[4], pooling=pooling))


def test_a_cached_prefix_changes_no_vector_of_any_model(pair: tuple[LoadedModel, Any]) -> None:
    ours, _ = pair
    run = Run(ours, batch_size=16)
    run.submit(0, TEXTS[4][:30], num_predict=3)
    run.finish()
    run.embed(1, TEXTS[4])
    run.finish()
    assert run.embedded(1)[0].cached == 30
    assert same_bits(run.vectors(1), vectors(ours, TEXTS[4]))


@pytest.mark.parametrize("pooling", POOLINGS)
def test_generation_reuses_an_embedded_prefix(tiny: LoadedModel, pooling: str) -> None:
    expected, _ = Run(tiny).one(TEXTS[4])
    run = Run(tiny)
    run.embed(1, TEXTS[4][:35], pooling=pooling)
    run.finish()
    tokens, done = run.one(TEXTS[4])
    assert (tokens, done.cached) == (expected, 35)


def test_many_embeddings_do_not_evict_conversations(tiny: LoadedModel) -> None:
    run = Run(tiny, parallel=2, remembered=3)
    run.one(TEXTS[3], num_predict=1)
    for number in range(1, 20):
        run.embed(number, [number, *TEXTS[2]])
        run.finish()
    run.submit(100, TEXTS[3], num_predict=1)
    run.finish()
    assert run.done(100).cached == len(TEXTS[3]) - 1


def test_a_common_prefix_is_evaluated_once(tiny: LoadedModel) -> None:
    begin = TEXTS[4][:40]
    run = Run(tiny, parallel=2)
    run.embed(0, *([*begin, number, 7] for number in range(6)))
    run.finish()
    assert sum(run.rows) == 40 + 6 * 2
    assert same_bits(run.vectors(0), vectors(tiny, *([*begin, n, 7] for n in range(6)), cache_prompt=False))


# --- inputs that do not fit -----------------------------------------------------------------------------


def test_inputs_that_are_too_long_are_cut_at_the_end(tiny: LoadedModel) -> None:
    text = " story" * 200
    run = Run(tiny, context=20)
    run.embed(0, text, [7] * 30, "hello")
    run.finish()
    tokens = tiny.tokenizer.encode(text)
    assert [event.truncated for event in run.embedded(0)] == [len(tokens) - 20, 10, 0]
    assert [event.prompt_eval_count for event in run.embedded(0)][:2] == [20, 20]
    assert same_bits(run.vectors(0), vectors(tiny, tokens[:20], [7] * 20, "hello"))


def test_the_token_that_ends_a_text_is_not_cut(tmp_path: Path) -> None:
    source = tiny_llama_gguf(tmp_path / "plain.gguf", TinyLlama(context=128))
    framing = load_model(
        rewritten(source, tmp_path / "framing.gguf", **{"tokenizer.ggml.add_eos_token": True})
    )
    tokens = framing.tokenizer.encode(" story" * 50)
    assert tokens[-1] == framing.tokenizer.eos_id
    run = Run(framing, context=20)
    run.embed(0, " story" * 50, tokens)
    run.finish()
    assert same_bits(run.vectors(0), vectors(framing, [*tokens[:19], tokens[-1]], tokens[:20]))
    assert run.embedded(0)[0].truncated == len(tokens) - 20


def test_without_truncation_long_inputs_are_refused(tiny: LoadedModel) -> None:
    run = Run(tiny, context=20)
    with pytest.raises(ContextLengthError, match="exceeds the context length: 21 tokens > 20"):
        run.embed(0, [7] * 20, [7] * 21, truncate=False)
    assert run.engine.active == 0


def test_a_context_without_room_for_any_text_is_refused(tiny: LoadedModel) -> None:
    run = Run(tiny, context=1)
    with pytest.raises(ContextLengthError, match="input after truncation exceeds maximum context length"):
        run.embed(0, "hello")


# --- failures ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_non_finite_vector_fails_alone(
    tiny: LoadedModel, monkeypatch: pytest.MonkeyPatch, value: float
) -> None:
    hidden = tiny.model.hidden

    def broken(batch: Any, cache: Any) -> np.ndarray:
        states = hidden(batch, cache)
        states[batch.tokens[batch.outputs] == 13] = value
        return states

    expected = vectors(tiny, TEXTS[1])
    monkeypatch.setattr(tiny.model, "hidden", broken)
    run = Run(tiny)
    run.embed(0, [1, 2, 13], TEXTS[1])
    run.finish()
    bad, good = sorted(run.events[0], key=lambda event: event.sample)
    assert isinstance(bad, Failed)
    assert (bad.kind, bad.message) == ("EmbeddingError", "embedding contains NaN or Inf values")
    assert isinstance(good, Embedded)
    assert good.vector == expected[0].tobytes()
    assert run.leaked() == 0

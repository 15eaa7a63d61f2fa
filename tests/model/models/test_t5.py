"""T5 against Hugging Face transformers, on tiny random models in float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from puna.batch import Batch
from puna.engine.engine import Engine
from puna.engine.room import EngineSizes
from puna.errors import ContextLengthError, ModelError, UnavailableError
from puna.kvcache.cache import Cache
from puna.model.load import LoadedModel, load_model
from puna.ops import Backend
from puna.options import Options
from puna.protocol import Chunk, Done, Embed, Event, Generate
from tests.engine.runs import Run
from tests.model.models.parity import FLOATS, check_close, original, random_tokens
from tests.tiny.forward import logits_of
from tests.tiny.t5 import TinyT5, tiny_t5_gguf

MODELS = {
    "t5": TinyT5(gated=False, tied=True),
    "flan": TinyT5(seed=1, start=3),
    "umt5": TinyT5(layers=3, decoder_layers=2, every_layer=True, buckets=32, seed=2),
}
#: Longer than any bucket of distances.
LONG = 200


@pytest.fixture(scope="module", params=MODELS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, ops: Backend):
    """Return our model and transformers', of one configuration."""
    config = MODELS[request.param]
    path = tiny_t5_gguf(tmp_path_factory.mktemp("t5") / "model.gguf", config, model=original(config))
    return load_model(path, ops=ops), original(config)


def expected(theirs: Any, source: list[int], answer: list[int]) -> torch.Tensor:
    """Return log-probabilities after each token of `answer`, which begins with the start token."""
    with torch.inference_mode():
        ids = torch.tensor([source])
        logits = theirs(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            decoder_input_ids=torch.tensor([answer]),
            decoder_attention_mask=torch.ones(1, len(answer), dtype=torch.long),
        ).logits
        return torch.log_softmax(logits[0], -1)


def read(ours: LoadedModel, cache: Cache, parts: list[tuple[int, list[int] | None, list[int]]]) -> list[Any]:
    """Return log-probabilities of each part: a sequence, the prompt it starts with, and answer tokens."""
    tokens, positions, sequences, payloads = [], [], [], []
    for sequence, source, answer in parts:
        begin = cache.length(sequence)
        if source is not None:
            (first,) = ours.model.inputs(source)
            payloads.append((len(tokens), first.payload))
        tokens += answer
        positions += range(begin, begin + len(answer))
        sequences += [sequence] * len(answer)
    batch = Batch.of(tokens, positions, sequences, list(range(len(tokens))))
    batch.payloads = payloads
    with torch.inference_mode():
        cache.start_forward(batch)
        found = torch.log_softmax(logits_of(ours.model, batch, cache), -1)
    return list(found.split([len(answer) for _, _, answer in parts]))


@pytest.mark.parametrize(
    "steps", [[LONG], [7, LONG - 7], [1] * 12 + [LONG - 12]], ids=["whole", "two", "steps"]
)
def test_log_probabilities_agree_for_answers_whole_and_in_parts(
    pair: tuple[LoadedModel, Any], steps: list[int]
) -> None:
    ours, theirs = pair
    source, answer = (
        random_tokens(ours, LONG, 1),
        [ours.model.options.start, *random_tokens(ours, LONG - 1, 2)],
    )
    other, others = random_tokens(ours, 9, 3), [ours.model.options.start, *random_tokens(ours, 40, 4)]
    cache = ours.make_cache(sequences=3, context=256, types=FLOATS)
    found, at = [], 0
    for step in steps:
        parts = [(2, None if at else source, answer[at : at + step])]
        if at == 0 and len(steps) > 1:
            parts.insert(0, (0, other, others[:20]))
        elif at == steps[0]:
            parts.append((0, None, others[20:]))
        mine = read(ours, cache, parts)
        found.append(mine[-1 if at == 0 else 0])
        at += step
    check_close(ours, torch.cat(found), expected(theirs, source, answer))


def test_the_prompt_changes_the_results(pair: tuple[LoadedModel, Any]) -> None:
    """The test above would prove nothing without this."""
    ours, _ = pair
    cache = ours.make_cache(sequences=2, context=256, types=FLOATS)
    answer = random_tokens(ours, 10, 2)
    first, second = read(ours, cache, [(0, [5, 6, 7], answer), (1, [5, 6, 8], answer)])
    assert (first - second).abs().amax(1).min() > 1e-3


@pytest.mark.slow
def test_greedy_answers_agree_token_for_token(pair: tuple[LoadedModel, Any]) -> None:
    ours, theirs = pair
    prompts = [[3, 1, 4, 1, 5], list(range(40)), [200], [250, 7] * 60]
    engine = Engine(ours, EngineSizes(context=256, parallel=3, batch_size=16, cache_types=FLOATS))
    produced: dict[int, list[int]] = {number: [] for number in range(len(prompts))}
    ended: dict[int, Done] = {}

    def sink(event: Event) -> None:
        if isinstance(event, Chunk):
            produced[event.id] += event.tokens
        elif isinstance(event, Done):
            ended[event.id] = event

    for number, prompt in enumerate(prompts):
        options = Options(temperature=0, num_predict=24)
        engine.submit(Generate(id=number, prompt=prompt, options=options, ignore_eos=True), sink)
    while engine.step():
        pass
    for number, prompt in enumerate(prompts):
        answer, ids = [ours.model.options.start], torch.tensor([prompt])
        with torch.inference_mode():
            states = theirs.get_encoder()(ids, attention_mask=torch.ones_like(ids))
            while len(answer) < 25:
                logits = theirs(
                    encoder_outputs=states,
                    attention_mask=torch.ones_like(ids),
                    decoder_input_ids=torch.tensor([answer]),
                ).logits
                answer.append(int(logits[0, -1].argmax()))
        assert produced[number] == answer[1:]
        assert ended[number].prompt_eval_count == len(prompt)


@pytest.fixture(scope="module")
def flan(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    config = MODELS["flan"]
    return load_model(tiny_t5_gguf(tmp_path_factory.mktemp("t5") / "m.gguf", config, model=original(config)))


def test_a_prompt_that_is_too_long_is_cut_or_refused(flan: LoadedModel) -> None:
    run = Run(flan, batch_size=16, context=32)
    run.submit(0, list(range(50)), num_predict=4)
    run.finish()
    assert run.done(0).prompt_eval_count == 32
    assert run.done(0).truncated == 18


def test_an_answer_longer_than_its_context_keeps_the_prompt(flan: LoadedModel) -> None:
    run = Run(flan, batch_size=16, context=16)
    run.submit(0, [5, 6, 7], num_predict=40, num_keep=0)
    run.finish()
    assert run.done(0).shifted > 0
    assert len(run.tokens(0)) == 40


def test_a_context_without_room_for_an_answer_is_refused(flan: LoadedModel) -> None:
    engine = Engine(flan, EngineSizes(context=1, parallel=1, cache_types=FLOATS))
    with pytest.raises(ContextLengthError, match="num_ctx is 1"):
        engine.submit(Generate(prompt="a"), lambda event: None)


def test_requests_that_make_no_sense_for_t5_are_refused(flan: LoadedModel) -> None:
    engine = Engine(flan, EngineSizes(context=32, parallel=1, cache_types=FLOATS))
    with pytest.raises(UnavailableError, match="does not support embeddings"):
        engine.submit(Embed(inputs=["a"]), lambda event: None)
    with pytest.raises(UnavailableError, match="no log-probabilities"):
        engine.submit(Generate(prompt="a", prompt_logprobs=True), lambda event: None)


ENCODERS = {"gated": TinyT5(decoder=False, seed=5), "plain": TinyT5(decoder=False, gated=False, seed=6)}


@pytest.mark.parametrize("name", ENCODERS)
def test_vectors_are_the_mean_of_the_encoders_states(tmp_path: Path, ops: Backend, name: str) -> None:
    theirs = original(ENCODERS[name])
    ours = load_model(tiny_t5_gguf(tmp_path / "e.gguf", ENCODERS[name], model=theirs), ops=ops)
    texts = [random_tokens(ours, count, count) for count in (1, 17, LONG)]
    run = Run(ours, batch_size=512, context=256)
    run.embed(0, *texts, normalize=False)
    run.finish()
    for vector, text in zip(run.vectors(0), texts, strict=True):
        with torch.inference_mode():
            ids = torch.tensor([text])
            states = theirs(ids, attention_mask=torch.ones_like(ids)).last_hidden_state[0]
        check_close(ours, torch.tensor(vector), states.mean(0))


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({"attention.relative_buckets_count": None}, "relative_buckets_count' is missing"),
        ({"attention.relative_buckets_count": 3}, "relative_buckets_count' is 3, but should be 4 to"),
        ({"decoder_start_token_id": 10_000}, "decoder_start_token_id' is 10000, of"),
        ({"decoder_block_count": 4}, "decoder_block_count' is 4, but there are tensors of only 3"),
        ({"block_count": 1}, "block_count' is 1, but there are tensors of layer 1"),
        ({"attention.key_length": 16}, "key_length'.* but tensor 'enc.blk.0.attn_k.weight' has"),
    ],
    ids=str,
)
def test_invalid_metadata_is_named(tmp_path: Path, metadata: dict[str, Any], words: str) -> None:
    config = MODELS["flan"]
    path = tiny_t5_gguf(tmp_path / "bad.gguf", config, model=original(config), metadata=metadata)
    with pytest.raises(ModelError, match=words):
        load_model(path)

"""LFM2 and LFM2-MoE against Hugging Face transformers, on tiny random models in float32."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from puna.batch import Batch
from puna.engine.engine import Engine
from puna.engine.room import EngineSizes
from puna.errors import ModelError
from puna.kvcache.cache import Cache
from puna.model.load import LoadedModel, load_model
from puna.ops import Backend
from puna.options import Options
from puna.protocol import Chunk, Done, Event, Generate
from tests.model.models.parity import (
    FLOATS,
    check_close,
    check_greedy,
    original,
    our_log_probabilities,
    random_tokens,
    reference_log_probabilities,
)
from tests.tiny.forward import logits_of
from tests.tiny.lfm2 import TinyLfm2, tiny_lfm2_gguf

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
MODELS = {
    "convolutions and attention": TinyLfm2(),
    "four taps, attention last": TinyLfm2(layers="caca", taps=4, tied=False, seed=1),
    "odd sizes, yarn": TinyLfm2(
        layers="ac", hidden=80, heads=3, kv_heads=1, head_dim=32, rope_scaling=YARN, seed=2
    ),
    "biases": TinyLfm2(
        layers="cac", taps=2, conv_bias=True, heads_per_layer=True, final_norm="output_norm", seed=3
    ),
    "experts": TinyLfm2(experts=8, seed=4),
    "experts, not normalised": TinyLfm2(
        layers="ca",
        taps=4,
        experts=4,
        experts_used=3,
        dense_layers=0,
        normalize=False,
        expert_scale=1.5,
        seed=5,
    ),
    "experts, no bias": TinyLfm2(layers="ac", experts=4, expert_bias=False, seed=6),
    "experts, bias by its old name": TinyLfm2(layers="ac", experts=4, expert_bias_name="exp_probs_b", seed=7),
}
SMALL = ["convolutions and attention", "four taps, attention last", "experts"]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory, ops: Backend):
    """Return our model and transformers' by name of a configuration, each made once."""
    made: dict[str, tuple[LoadedModel, Any]] = {}

    def get(name: str) -> tuple[LoadedModel, Any]:
        if name not in made:
            theirs = original(MODELS[name])
            path = tmp_path_factory.mktemp("lfm2") / "model.gguf"
            made[name] = load_model(tiny_lfm2_gguf(path, MODELS[name], model=theirs), ops=ops), theirs
        return made[name]

    return get


@pytest.fixture(params=MODELS, ids=[name.replace(" ", "-") for name in MODELS])
def pair(request: pytest.FixtureRequest, pairs: Any) -> tuple[LoadedModel, Any]:
    return pairs(request.param)


@pytest.fixture(params=SMALL, ids=[name.replace(" ", "-") for name in SMALL])
def small(request: pytest.FixtureRequest, pairs: Any) -> tuple[LoadedModel, Any]:
    return pairs(request.param)


def evaluate(ours: LoadedModel, cache: Cache, parts: dict[int, list[int]]) -> dict[int, torch.Tensor]:
    """Return the logits of several sequences whose next tokens are read in one batch."""
    sequences = [sequence for sequence, part in parts.items() for _ in part]
    positions = [cache.length(sequence) + i for sequence, part in parts.items() for i in range(len(part))]
    tokens = [token for part in parts.values() for token in part]
    batch = Batch.of(tokens, positions, sequences, list(range(len(tokens))))
    with torch.inference_mode():
        cache.start_forward(batch)
        logits = logits_of(ours.model, batch, cache)
    return dict(zip(parts, logits.split([len(part) for part in parts.values()]), strict=True))


def check_agree(logits: torch.Tensor, theirs: Any, tokens: list[int]) -> None:
    """Check that `logits` are those of the last of `tokens`."""
    exact = reference_log_probabilities(theirs, tokens)[-len(logits) :]
    assert (torch.log_softmax(logits, dim=-1) - exact).abs().max() < 1e-3


@pytest.mark.parametrize("parts", [[70], [32, 32, 6], [69, 1], [1] * 8 + [62], [2, 1, 1, 3, 63]], ids=str)
def test_log_probabilities_agree(pair: tuple[LoadedModel, Any], parts: list[int]) -> None:
    ours, theirs = pair
    tokens = random_tokens(ours, 70, seed=11)
    found = our_log_probabilities(ours, tokens, parts)
    check_close(ours, found, reference_log_probabilities(theirs, tokens))


def test_sequences_in_the_same_batches_do_not_affect_each_other(small: tuple[LoadedModel, Any]) -> None:
    ours, theirs = small
    texts = {sequence: random_tokens(ours, 60, seed=20 + sequence) for sequence in (0, 1, 2)}
    cache = ours.make_cache(sequences=3, context=64, types=FLOATS)
    found: dict[int, list[torch.Tensor]] = {0: [], 1: [], 2: []}
    for sizes in ({0: 5, 2: 1}, {2: 20, 1: 1, 0: 1}, {1: 2, 0: 54}, {2: 1, 1: 57}, {2: 38}):
        begins = {sequence: cache.length(sequence) for sequence in sizes}
        parts = {s: texts[s][begins[s] : begins[s] + size] for s, size in sizes.items()}
        for sequence, logits in evaluate(ours, cache, parts).items():
            found[sequence].append(logits)
    for sequence, text in texts.items():
        check_agree(torch.cat(found[sequence]), theirs, text)


@pytest.mark.parametrize("ops", ["cpu"], indirect=True)
def test_bits_do_not_depend_on_cuts_and_neighbours(pairs: Any) -> None:
    ours, _ = pairs("four taps, attention last")
    tokens = random_tokens(ours, 50, seed=30)

    def logits(parts: list[int], beside: list[int]) -> torch.Tensor:
        cache = ours.make_cache(sequences=2, context=64, types=FLOATS)
        found, begin = [], 0
        for part, other in zip(parts, beside, strict=True):
            neighbour = {1: tokens[:other]} if other else {}
            batch = neighbour | {0: tokens[begin : begin + part]}
            found.append(evaluate(ours, cache, batch)[0])
            begin += part
        return torch.cat(found)

    whole = logits([50], [0])
    for parts, beside in (([1] * 50, [0] * 50), ([2, 1, 40, 7], [5, 1, 0, 3]), ([49, 1], [0, 9])):
        assert torch.equal(logits(parts, beside).view(torch.int32), whole.view(torch.int32))


def test_prefixes_are_reused_from_the_last_checkpoint(small: tuple[LoadedModel, Any]) -> None:
    ours, theirs = small
    tokens, others = random_tokens(ours, 60, seed=40), random_tokens(ours, 20, seed=41)
    cache = ours.make_cache(sequences=2, context=64, types=FLOATS)
    evaluate(ours, cache, {0: tokens[:30]})
    evaluate(ours, cache, {0: tokens[30:32]})
    evaluate(ours, cache, {0: others})
    cache.copy_prefix(0, 1, 32)
    begin = cache.resume_point(1, 32)
    assert begin == 30
    cache.remove(1, begin)
    both = evaluate(ours, cache, {0: others[:5], 1: tokens[begin:]})
    check_agree(both[1], theirs, tokens)
    check_agree(both[0], theirs, tokens[:32] + others + others[:5])
    cache.copy_prefix(0, 1, 12)  # before the first checkpoint
    assert cache.resume_point(1, 12) == 0


def test_a_truncated_sequence_can_continue(small: tuple[LoadedModel, Any]) -> None:
    ours, theirs = small
    tokens, others = random_tokens(ours, 60, seed=50), random_tokens(ours, 9, seed=51)
    cache = ours.make_cache(sequences=1, context=128, types=FLOATS)
    evaluate(ours, cache, {0: tokens[:40]})
    evaluate(ours, cache, {0: others})
    cache.undo_forward()
    evaluate(ours, cache, {0: others[:3]})
    check_agree(evaluate(ours, cache, {0: others[3:]})[0], theirs, tokens[:40] + others)
    begin = cache.resume_point(0, 45)
    assert begin == 40
    cache.remove(0, begin)
    check_agree(evaluate(ours, cache, {0: tokens[40:]})[0], theirs, tokens)
    cache.remove(0, 0)
    check_agree(evaluate(ours, cache, {0: others})[0], theirs, others)


@pytest.mark.slow
def test_greedy_output_agrees_token_for_token(pair: tuple[LoadedModel, Any]) -> None:
    ours, theirs = pair
    check_greedy(ours, theirs)


def answer(engine: Engine, prompt: list[int], count: int, **options: int) -> tuple[list[int], Done]:
    """Return the tokens that an engine generates greedily after `prompt`, and its final event."""
    tokens: list[int] = []
    ended: list[Done] = []

    def sink(event: Event) -> None:
        if isinstance(event, Chunk):
            tokens.extend(event.tokens)
        else:
            assert isinstance(event, Done), event
            ended.append(event)

    chosen = Options(temperature=0, num_predict=count, **options)
    engine.submit(Generate(id=1, prompt=prompt, options=chosen, ignore_eos=True), sink)
    while engine.step():
        pass
    return tokens, ended[0]


def their_next(theirs: Any, tokens: list[int]) -> int:
    with torch.inference_mode():
        return int(theirs(torch.tensor([tokens])).logits[0, -1].argmax())


def their_answer(theirs: Any, prompt: list[int], count: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(their_next(theirs, tokens))
    return tokens[len(prompt) :]


def test_every_turn_of_a_conversation_reuses_the_previous_ones(small: tuple[LoadedModel, Any]) -> None:
    ours, theirs = small
    engine = Engine(ours, EngineSizes(context=128, parallel=2, batch_size=16, cache_types=FLOATS))
    opening, question = random_tokens(ours, 30, seed=60), random_tokens(ours, 8, seed=61)
    first, done = answer(engine, opening, 12)
    assert (first, done.cached) == (their_answer(theirs, opening, 12), 0)

    second_prompt = opening + first + question
    second, done = answer(engine, second_prompt, 12)
    assert done.cached == len(opening) + 11  # all but the last token, which was never evaluated
    assert second == their_answer(theirs, second_prompt, 12)

    changed = [
        *opening,
        (first[0] + 1) % 250,
        *question,
    ]  # the client edited the answer, dropped its thinking, ...
    third, done = answer(engine, changed, 12)
    assert done.cached == len(opening)  # up to where the prompt ended
    assert third == their_answer(theirs, changed, 12)
    engine.close()


def test_a_full_context_is_evaluated_again_without_the_dropped_inputs(small: tuple[LoadedModel, Any]) -> None:
    ours, theirs = small
    context, prompt, count = 40, random_tokens(ours, 30, seed=70), 45
    engine = Engine(ours, EngineSizes(context=context, batch_size=16, cache_types=FLOATS))
    found, done = answer(engine, prompt, count, num_keep=3)
    engine.close()
    keep = 3 + 1  # and the begin token of every text
    held, expected, dropped = list(prompt), [their_next(theirs, prompt)], 0
    while len(expected) < count:
        if len(held) == context:
            half = (context - keep) // 2
            del held[keep : keep + half]
            dropped += half
        held.append(expected[-1])
        expected.append(their_next(theirs, held))
    assert found == expected
    assert done.shifted == dropped > 0


@pytest.fixture(scope="module")
def plain() -> tuple[TinyLfm2, Any]:
    config = TinyLfm2(layers="ca", seed=8)
    return config, config.build()


EXPERTS = {"expert_count": 4, "expert_used_count": 2}


@pytest.mark.parametrize(
    ("metadata", "complaint"),
    [
        ({"block_count": None}, "'lfm2.block_count' is missing"),
        ({"embedding_length": 0}, "'lfm2.embedding_length' should be positive, but is 0"),
        ({"feed_forward_length": None}, "'lfm2.feed_forward_length' is missing"),
        ({"shortconv.l_cache": None}, "'lfm2.shortconv.l_cache' is missing"),
        ({"shortconv.l_cache": 1}, "'lfm2.shortconv.l_cache' is 1, which is too short for a convolution"),
        (
            {"shortconv.l_cache": [3, 4]},
            "'lfm2.shortconv.l_cache' should not differ between layers, but is [3, 4]",
        ),
        ({"attention.head_count": None}, "'lfm2.attention.head_count' is missing"),
        (
            {"attention.head_count": [4, 0]},
            "'lfm2.attention.head_count' should be positive, but is 0 for layer 1",
        ),
        ({"attention.head_count": "four"}, "'lfm2.attention.head_count' should be sizes, but has 'four'"),
        ({"attention.head_count_kv": None}, "'lfm2.attention.head_count_kv' is missing"),
        ({"attention.head_count_kv": [0, 2, 2]}, "'lfm2.attention.head_count_kv' has 3 values for 2 layers"),
        ({"attention.head_count_kv": [0, 0]}, "'lfm2.attention.head_count_kv' is 0 for all layers"),
        (
            {"attention.head_count_kv": [0, 1]},
            "attention.key_length' is 1 x 16, but tensor 'blk.1.attn_k.weight' has 32x64",
        ),
        ({"attention.head_count_kv": [0, -2]}, "'lfm2.attention.head_count_kv' should be sizes, but has -2"),
        ({"attention.head_count_kv": [0.0, 2.0]}, "'lfm2.attention.head_count_kv' should be sizes"),
        ({"attention.head_count_kv": [0, 3]}, "whose 4 query heads cannot share 3"),
        ({"attention.key_length": 0}, "'lfm2.attention.key_length' should be positive, but is 0"),
        ({"attention.sliding_window": 16}, "'lfm2.attention.sliding_window' is not supported"),
        ({"rope.dimension_count": 7}, "'lfm2.rope.dimension_count' should be even"),
        ({"rope.dimension_count": 18}, "'lfm2.rope.dimension_count' should be even and at most the 16"),
        ({"rope.freq_base": 0.0}, "'lfm2.rope.freq_base' should be above 0"),
        ({"rope.scaling.factor": -1.0}, "'lfm2.rope.scaling.factor' should be above 0"),
        ({"attention.layer_norm_rms_epsilon": 0.0}, "layer_norm_rms_epsilon' should be above 0"),
        ({"expert_count": 4}, "'lfm2.expert_used_count' is missing"),
        ({"expert_count": 4, "expert_used_count": 5}, "'lfm2.expert_used_count' is 5, but there are only 4"),
        ({**EXPERTS, "norm_top_k_prob": 3}, "'lfm2.norm_top_k_prob' should be true or false"),
        ({**EXPERTS, "expert_gating_func": 9}, "'lfm2.expert_gating_func' 9 is not supported"),
        (
            {"shortconv.l_cache": 5},
            "'lfm2.shortconv.l_cache' is 5, but tensor 'blk.0.shortconv.conv.weight' has 64x3",
        ),
    ],
    ids=str,
)
def test_invalid_metadata_is_refused(
    plain: tuple[TinyLfm2, Any], metadata: dict[str, Any], complaint: str, tmp_path: Path
) -> None:
    config, theirs = plain
    path = tiny_lfm2_gguf(tmp_path / "x.gguf", replace(config, metadata=metadata), model=theirs)
    with pytest.raises(ModelError) as caught:
        load_model(path)
    assert complaint in str(caught.value)
    assert str(path) in str(caught.value)

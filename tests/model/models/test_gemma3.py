"""Gemma 3 against Hugging Face transformers, on tiny random models in float32."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from puna.engine.engine import Engine
from puna.engine.room import EngineSizes
from puna.errors import ModelError, UnsupportedModelError
from puna.kvcache.types import KVTypes
from puna.model.layer_cache import Window
from puna.model.load import LoadedModel, load_model
from puna.ops import Backend
from puna.options import Options
from puna.protocol import Chunk, Done, Event, Generate
from tests.model.models.parity import (
    FLOATS,
    check_close,
    check_greedy,
    log_probabilities_after_reuse,
    original,
    our_log_probabilities,
    random_tokens,
    read,
    reference_log_probabilities,
)
from tests.tiny.gemma3 import TinyGemma3, tiny_gemma3_gguf

LINEAR = {"rope_type": "linear", "factor": 4.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}
SHORT_YARN = {**YARN, "beta_fast": 4.0, "beta_slow": 2.0}
MODELS = {
    "five windows to one": TinyGemma3(layers=7),
    "a window of two": TinyGemma3(window=2, pattern=2, seed=1),
    "a pattern of its own": TinyGemma3(
        layers=4, window=8, pattern=[False, True, True, False], kv_heads=1, seed=2
    ),
    "all windowed, values longer than keys": TinyGemma3(window=5, pattern=[True] * 2, more_values=8, seed=3),
    "linear on global layers": TinyGemma3(
        pattern=2, rope_scaling=LINEAR, local_base=500.0, base=5000.0, seed=4
    ),
    "yarn on global layers": TinyGemma3(pattern=2, rope_scaling=SHORT_YARN, base=5000.0, seed=5),
    "no windows, yarn, softcap": TinyGemma3(
        window=None, rope_scaling=SHORT_YARN, base=5000.0, softcap=1.5, llama_cpp=True, seed=6
    ),
    "yarn as it is usually": TinyGemma3(window=None, rope_scaling=YARN, base=5000.0, tied=False, seed=7),
    "odd sizes": TinyGemma3(
        hidden=96, feed_forward=80, heads=6, kv_heads=3, head_dim=24, window=7, pattern=2,
        local_base=700.0, softcap=30.0, llama_cpp=True, seed=8,
    ),
}  # fmt: skip


def slug(name: str) -> str:
    return name.replace(" ", "-")


def load(directory: Path, config: TinyGemma3, **metadata: Any) -> tuple[LoadedModel, Any]:
    """Return our model and transformers'; for `metadata` see `tiny_gemma3_gguf`."""
    theirs = original(config)
    path = tiny_gemma3_gguf(directory / "gemma3.gguf", config, model=theirs, metadata=metadata)
    return load_model(path), theirs


@pytest.fixture(scope="module", params=MODELS, ids=slug)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, ops: Backend):
    return load(tmp_path_factory.mktemp("gemma3"), MODELS[request.param])


@pytest.mark.parametrize("parts", [[70], [32, 32, 6], [1] * 70], ids=["whole", "chunks", "tokens"])
def test_log_probabilities_agree(pair: tuple[LoadedModel, Any], parts: list[int]) -> None:
    ours, theirs = pair
    tokens = random_tokens(ours, 70, 11)
    found = our_log_probabilities(ours, tokens, parts)
    check_close(ours, found, reference_log_probabilities(theirs, tokens))


def test_log_probabilities_agree_after_prefix_reuse(pair: tuple[LoadedModel, Any]) -> None:
    ours, theirs = pair
    tokens = random_tokens(ours, 70, 12)
    found = log_probabilities_after_reuse(ours, tokens, 50)
    assert len(found) == 20
    check_close(ours, found, reference_log_probabilities(theirs, tokens)[-20:])


def test_the_part_of_a_prefix_that_a_window_forgot_is_read_again(pair: tuple[LoadedModel, Any]) -> None:
    ours, theirs = pair
    tokens = random_tokens(ours, 70, 13)
    found = log_probabilities_after_reuse(ours, tokens, 50, chunk=10)
    assert len(found) == (
        70 if any(isinstance(layer.remembers, Window) for layer in ours.model.options.layers) else 20
    )
    check_close(ours, found, reference_log_probabilities(theirs, tokens)[-len(found) :])


@pytest.mark.slow
def test_greedy_output_agrees_token_for_token(pair: tuple[LoadedModel, Any]) -> None:
    ours, theirs = pair
    check_greedy(ours, theirs, count=25)


def test_a_sequence_can_resume_within_what_its_window_remembers(tmp_path: Path) -> None:
    ours, theirs = load(tmp_path, TinyGemma3(layers=3, pattern=3, window=8))
    tokens = random_tokens(ours, 60, 14)
    expected = reference_log_probabilities(theirs, tokens)
    cache = ours.make_cache(sequences=1, context=64, types=FLOATS)
    for begin in range(0, 60, 6):
        read(ours, cache, 0, tokens[begin : begin + 6])
    # The last pass began at 54 and kept what the input at 53 would see: positions from 46.
    assert [cache.resume_point(0, position) for position in (60, 59, 53, 52, 20)] == [60, 59, 53, 0, 0]
    cache.remove(0, 53)
    assert (read(ours, cache, 0, tokens[53:]) - expected[53:]).abs().max() < 1e-3
    begin = cache.resume_point(0, 30)
    cache.remove(0, begin)
    assert (read(ours, cache, 0, tokens[begin:]) - expected[begin:]).abs().max() < 1e-3


@pytest.mark.parametrize(
    "config",
    [
        TinyGemma3(layers=1, window=64, seed=20),
        TinyGemma3(layers=1, window=8, local_base=300.0, seed=21),
        TinyGemma3(layers=1, pattern=[False], base=1000.0, rope_scaling=LINEAR, seed=22),
        TinyGemma3(layers=1, pattern=[False], base=5000.0, rope_scaling=SHORT_YARN, seed=23),
    ],
    ids=["wide window", "narrow window", "linear", "yarn"],
)
def test_shifted_keys_and_values_equal_those_computed_anew(tmp_path: Path, config: TinyGemma3) -> None:
    """The model has one layer, so the remaining keys do not depend on what was removed."""
    ours, theirs = load(tmp_path, config)
    tokens = random_tokens(ours, 41, 15)
    cache = ours.make_cache(sequences=1, context=64, types=FLOATS)
    for begin in range(0, 40, 10):
        read(ours, cache, 0, tokens[begin : begin + 10])
    cache.remove(0, 5, 25)
    assert cache.length(0) == 20
    found = read(ours, cache, 0, tokens[40:])
    expected = reference_log_probabilities(theirs, [*tokens[:5], *tokens[25:]])
    assert (found[0] - expected[-1]).abs().max() < 1e-3


def test_full_contexts_shift_while_generating_with_quantised_keys_and_values(tmp_path: Path) -> None:
    ours, _ = load(tmp_path, TinyGemma3(layers=3, pattern=3, head_dim=32, window=8))
    engine = Engine(
        ours, EngineSizes(context=48, parallel=2, batch_size=16, cache_types=KVTypes.parse("q8_0,q4_0"))
    )
    events: dict[int, list[Event]] = {0: [], 1: []}
    for number, prompt in enumerate(([1, 2, 3], list(range(40)))):
        options = Options(temperature=0, num_predict=80)
        engine.submit(
            Generate(id=number, prompt=prompt, options=options, ignore_eos=True),
            lambda event: events[event.id].append(event),
        )
    while engine.step():
        pass
    for heard in events.values():
        assert sum(len(event.tokens) for event in heard if isinstance(event, Chunk)) == 80
        assert [event.shifted > 0 for event in heard if isinstance(event, Done)] == [True]


@pytest.mark.parametrize(("types", "allowed"), [("f16", 0.01), ("q8_0", 0.1), ("q4_0,q8_0", 1.0)])
def test_quantised_keys_and_values_change_little(tmp_path: Path, types: str, allowed: float) -> None:
    ours, theirs = load(tmp_path, TinyGemma3(layers=3, pattern=3, head_dim=32, window=8))
    tokens = random_tokens(ours, 40, 16)
    cache = ours.make_cache(sequences=1, context=64, types=KVTypes.parse(types))
    found = torch.cat([read(ours, cache, 0, tokens[:30]), read(ours, cache, 0, tokens[30:])])
    assert (found - reference_log_probabilities(theirs, tokens)).abs().mean() < allowed


def test_windowed_layers_hold_no_more_than_their_window_and_a_batch(tmp_path: Path) -> None:
    ours, _ = load(tmp_path, TinyGemma3(window=16, pattern=2))
    cache: Any = ours.make_cache(sequences=2, context=256, types=FLOATS)
    for _ in range(15):
        for sequence in range(2):
            read(ours, cache, sequence, [1] * 10)
    held = [each.cells.capacity - each.cells.free for each in cache.caches]
    assert held[1] == 300
    assert held[0] <= 2 * 16 + 10


@pytest.mark.parametrize(
    ("config", "metadata"),
    [
        (TinyGemma3(layers=26, seed=30), {"final_logit_softcapping": 2.0}),
        (TinyGemma3(layers=34, rope_scaling={**LINEAR, "factor": 8.0}, base=2000.0, seed=31), {}),
        pytest.param(
            TinyGemma3(layers=48, rope_scaling={**LINEAR, "factor": 8.0}, base=2000.0, seed=32),
            {"rope.scaling.type": "linear", "rope.scaling.factor": 1.0},
            marks=pytest.mark.slow,
        ),
        pytest.param(
            TinyGemma3(
                layers=62, rope_scaling={**LINEAR, "factor": 8.0}, base=2000.0, query_divisor=16,
                head_dim=32, seed=33,
            ),
            {},
            marks=pytest.mark.slow,
        ),
    ],
    ids=["1b", "4b", "12b", "27b"],
)  # fmt: skip
def test_settings_missing_from_published_files_are_filled_in(
    tmp_path: Path, config: TinyGemma3, metadata: dict[str, Any]
) -> None:
    """Files of 26 layers may have an unintended softcap; larger models scale by 8 without stating it."""
    said = {"rope.scaling.type": None, "rope.scaling.factor": None, **metadata}
    ours, theirs = load(tmp_path, replace(config, hidden=64, feed_forward=64), **said)
    tokens = random_tokens(ours, 24, 17)
    found = our_log_probabilities(ours, tokens, [24])
    check_close(ours, found, reference_log_probabilities(theirs, tokens))


def test_files_may_omit_settings_common_to_all_models(tmp_path: Path) -> None:
    config = TinyGemma3(head_dim=256, heads=1, kv_heads=1, layers=7)
    keys = [
        "attention.key_length", "attention.value_length", "attention.layer_norm_rms_epsilon",
        "attention.head_count_kv", "rope.local.freq_base", "rope.freq_base",
    ]  # fmt: skip
    ours, theirs = load(tmp_path, config, **dict.fromkeys(keys))
    tokens = random_tokens(ours, 40, 18)
    found = our_log_probabilities(ours, tokens, [40])
    check_close(ours, found, reference_log_probabilities(theirs, tokens))


PATTERN = "attention.sliding_window_pattern"


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({"attention.head_count_kv": 3}, "gemma3.attention.head_count_kv.*cannot share 3"),
        ({"attention.key_length": 0}, "gemma3.attention.key_length"),
        ({"attention.value_length": -1}, "gemma3.attention.value_length"),
        ({"attention.sliding_window": None}, "gemma3.attention.sliding_window"),
        ({"attention.sliding_window": -1}, "gemma3.attention.sliding_window"),
        ({"attention.sliding_window": "wide"}, "gemma3.attention.sliding_window"),
        ({PATTERN: [True] * 3}, f"gemma3.{PATTERN}.*each of the 2 layers"),
        ({PATTERN: [1, 2]}, f"gemma3.{PATTERN}"),
        ({PATTERN: "all"}, f"gemma3.{PATTERN}"),
        ({PATTERN: 0}, f"gemma3.{PATTERN}"),
        ({PATTERN: 1.5}, f"gemma3.{PATTERN}"),
        ({"final_logit_softcapping": -30.0}, "gemma3.final_logit_softcapping"),
        ({"final_logit_softcapping": float("nan")}, "gemma3.final_logit_softcapping"),
        ({"attention.layer_norm_rms_epsilon": 0.0}, "gemma3.attention.layer_norm_rms_epsilon"),
        ({"rope.local.freq_base": 0.0}, "gemma3.rope.local.freq_base"),
        ({"rope.freq_base": float("inf")}, "gemma3.rope.freq_base"),
        ({"rope.dimension_count": 7}, "gemma3.rope.dimension_count.*even and at most the 16"),
        ({"rope.dimension_count": 32}, "gemma3.rope.dimension_count"),
        ({"rope.scaling.factor": 0.0}, "gemma3.rope.scaling.factor"),
        ({"rope.scaling.type": "yarn", "rope.scaling.factor": -4.0}, "gemma3.rope.scaling.factor"),
        ({"rope.scaling.type": "yarn", "rope.scaling.beta_fast": 0.0}, "gemma3.rope.scaling.beta_fast"),
        (
            {"rope.scaling.type": "yarn", "rope.scaling.original_context_length": 0},
            "gemma3.rope.scaling.original_context_length",
        ),
    ],
    ids=str,
)
def test_invalid_metadata_is_named(tmp_path: Path, metadata: dict[str, Any], words: str) -> None:
    path = tiny_gemma3_gguf(tmp_path / "bad.gguf", TinyGemma3(pattern=[True, False]), metadata=metadata)
    with pytest.raises(ModelError, match=rf"bad\.gguf: .*{words}"):
        load_model(path)


def test_embedding_models_are_refused(tmp_path: Path) -> None:
    path = tiny_gemma3_gguf(tmp_path / "embed.gguf", TinyGemma3(), metadata={"pooling_type": 1})
    with pytest.raises(UnsupportedModelError, match="embedding models of gemma3 are not supported"):
        load_model(path)

"""Llama 4 against Hugging Face transformers, on tiny random models in float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from puna.batch import Batch
from puna.errors import ModelError
from puna.gguf import GGUFWriter, open_gguf
from puna.kvcache.types import KVTypes
from puna.model.layer_cache import ChunkedKeys, Everything
from puna.model.load import LoadedModel, load_model
from puna.model.models.llama4 import Llama4, Llama4LayerOptions
from puna.ops import Backend
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
from tests.tiny.converted import converted
from tests.tiny.forward import logits_of
from tests.tiny.llama import LLAMA3_ROPE
from tests.tiny.llama4 import TinyLlama4, tiny_llama4_gguf

MODELS = {
    "like Scout": TinyLlama4(),
    "like Maverick": TinyLlama4(expert_interval=2, qk_norm=False, experts=6, seed=1),
    "like MobileLLM": TinyLlama4(everything=True, experts=0, temperature_tuning=False, seed=2),
    "every second layer unrotated, odd chunks": TinyLlama4(no_rope_interval=2, layers=5, chunk=7, seed=3),
    "no layer rotated": TinyLlama4(no_rope_interval=1, layers=2, floor_scale=3, seed=4),
    "every layer rotated": TinyLlama4(no_rope_interval=9, layers=2, chunk=23, seed=5),
    "a chunk longer than the prompt": TinyLlama4(chunk=100, no_rope_interval=3, layers=3, seed=6),
    "no temperature tuning": TinyLlama4(temperature_tuning=False, no_rope_interval=2, layers=2, seed=7),
    "neither tuning nor norm, every third layer with experts": TinyLlama4(
        temperature_tuning=False, qk_norm=False, expert_interval=3, seed=8
    ),
    "llama 3 rope factors": TinyLlama4(rope_scaling=LLAMA3_ROPE, chunk=32, layers=3, seed=9),
    "linear rope scaling, biases": TinyLlama4(
        rope_scaling={"rope_type": "linear", "factor": 4.0}, biases=True, seed=10
    ),
    "several experts, gate and up joined": TinyLlama4(
        experts=5, experts_used=3, expert_tensors="joined", layers=2, no_rope_interval=2, seed=11
    ),
    "wide heads, one for all, tied embeddings": TinyLlama4(
        heads=3,
        kv_heads=1,
        head_dim=40,
        tied=True,
        expert_tensors="single",
        experts_used=2,
        layers=2,
        seed=12,
    ),
}
GREEDY = ("like Scout", "like Maverick", "every second layer unrotated, odd chunks", "every layer rotated")


def made(folder: Path, config: TinyLlama4) -> tuple[LoadedModel, Any]:
    theirs = original(config)
    return load_model(tiny_llama4_gguf(folder / "model.gguf", config, model=theirs)), theirs


def largest_difference(found: torch.Tensor, expected: torch.Tensor) -> float:
    assert found.shape == expected.shape
    return (found - expected).abs().max().item()


@pytest.fixture(scope="module", params=MODELS, ids=[name.replace(" ", "-") for name in MODELS])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, ops: Backend):
    """Return our model and transformers', of one configuration."""
    return made(tmp_path_factory.mktemp("llama4"), MODELS[request.param])


@pytest.fixture(scope="module")
def scout(tmp_path_factory: pytest.TempPathFactory) -> tuple[LoadedModel, Any]:
    """Return our model and transformers' with chunks of 16; heads fill a block of a quantised cache."""
    config = TinyLlama4(head_dim=32, no_rope_interval=2, layers=4, seed=20)
    return made(tmp_path_factory.mktemp("scout"), config)


@pytest.mark.parametrize(
    "parts", [[70], [32, 32, 6], [13, 16, 3, 38], [1] * 70], ids=["70", "32", "uneven", "1"]
)
def test_log_probabilities_agree(pair: tuple[LoadedModel, Any], parts: list[int]) -> None:
    ours, theirs = pair
    tokens = random_tokens(ours, 70, 11)
    found = our_log_probabilities(ours, tokens, parts)
    check_close(ours, found, reference_log_probabilities(theirs, tokens))


def test_log_probabilities_agree_after_prefix_reuse(pair: tuple[LoadedModel, Any]) -> None:
    ours, theirs = pair
    tokens = random_tokens(ours, 70, 12)
    expected = reference_log_probabilities(theirs, tokens)
    found = log_probabilities_after_reuse(ours, tokens, 50)
    assert len(found) == 20
    check_close(ours, found, expected[50:])
    again = log_probabilities_after_reuse(ours, tokens, 50, chunk=11)  # this leaves chunks behind
    assert len(again) in (20, 70)
    check_close(ours, again, expected[-len(again) :])


@pytest.mark.slow
@pytest.mark.parametrize("name", GREEDY)
def test_greedy_output_agrees_token_for_token(name: str, tmp_path: Path, ops: Backend) -> None:
    """The reference caches the last chunk - 1 positions, with the chunks in its mask."""
    check_greedy(*made(tmp_path, MODELS[name]))


@pytest.mark.parametrize(
    ("shared", "resumed"), [(75, 75), (64, 64), (63, 63), (48, 48), (47, 0), (5, 0)], ids=str
)
def test_a_prefix_is_resumed_where_its_chunk_is_whole(
    scout: tuple[LoadedModel, Any], shared: int, resumed: int
) -> None:
    """After 78 positions, chunks without any of the last 16 are gone: those before 48."""
    ours, theirs = scout
    tokens = random_tokens(ours, 70, 13) + random_tokens(ours, 10, 14)
    cache = ours.make_cache(sequences=2, context=256, types=FLOATS)
    read(ours, cache, 0, [*tokens[:78]])
    read(ours, cache, 0, [9])
    cache.copy_prefix(0, 1, shared)
    assert cache.resume_point(1, shared) == resumed
    assert cache.can_resume(1, shared) == (shared == resumed)
    cache.remove(1, resumed)
    found = read(ours, cache, 1, tokens[resumed:])
    assert largest_difference(found, reference_log_probabilities(theirs, tokens)[resumed:]) < 1e-3


def test_concurrent_streams_agree(scout: tuple[LoadedModel, Any]) -> None:
    """Three sequences share every batch, at different places of their chunks."""
    ours, theirs = scout
    texts = [random_tokens(ours, 70, 15), random_tokens(ours, 49, 16), random_tokens(ours, 58, 17)]
    cache = ours.make_cache(sequences=3, context=256, types=FLOATS)
    starts, steps = (30, 9, 18), 40
    for sequence, (text, start) in enumerate(zip(texts, starts, strict=True)):
        read(ours, cache, sequence, text[:start])
    expected = [reference_log_probabilities(theirs, text) for text in texts]
    for step in range(steps):
        positions = [start + step for start in starts]
        tokens = [text[position] for text, position in zip(texts, positions, strict=True)]
        batch = Batch.of(tokens, positions, [0, 1, 2], [0, 1, 2])
        with torch.inference_mode():
            cache.start_forward(batch)
            found = torch.log_softmax(logits_of(ours.model, batch, cache), dim=-1)
        wanted = torch.stack([one[position] for one, position in zip(expected, positions, strict=True)])
        assert largest_difference(found, wanted) < 1e-3


@pytest.mark.parametrize(
    "config",
    [
        TinyLlama4(layers=1, no_rope_interval=4, rope_scaling=LLAMA3_ROPE, chunk=16, seed=21),
        TinyLlama4(layers=1, no_rope_interval=4, qk_norm=False, chunk=7, seed=22),
        TinyLlama4(layers=1, no_rope_interval=1, seed=23),
        TinyLlama4(layers=1, everything=True, seed=24),
    ],
    ids=["rotated and normed", "rotated", "unrotated", "everything"],
)
def test_shifted_keys_and_values_equal_those_of_the_new_positions(tmp_path: Path, config: TinyLlama4) -> None:
    """Keys and values of the first layer do not depend on what was removed, so models have one layer.

    Shifted positions lie in other chunks, and queries have other temperatures.
    """
    ours, theirs = made(tmp_path, config)
    tokens = random_tokens(ours, 70, 18)
    cache = ours.make_cache(sequences=1, context=256, types=FLOATS)
    read(ours, cache, 0, tokens[:45])
    cache.remove(0, 5, 25)
    found = read(ours, cache, 0, tokens[45:])
    expected = reference_log_probabilities(theirs, [*tokens[:5], *tokens[25:]])
    assert largest_difference(found, expected[25:]) < 1e-3


@pytest.mark.parametrize(
    ("types", "bound"), [("f16", 1e-6), ("bf16", 3e-5), ("q8_0", 3e-4), ("q8_0,q4_0", 0.05), ("q4_0", 0.05)]
)
def test_other_types_of_keys_and_values_come_close(
    scout: tuple[LoadedModel, Any], types: str, bound: float
) -> None:
    """The median over positions is compared: where two experts nearly tie, rounding can choose the other."""
    ours, theirs = scout
    tokens = random_tokens(ours, 70, 19)
    cache = ours.make_cache(sequences=1, context=256, types=KVTypes.parse(types))
    found = torch.cat([read(ours, cache, 0, tokens[begin : begin + 10]) for begin in range(0, 70, 10)])
    expected = reference_log_probabilities(theirs, tokens)
    assert largest_difference(found, expected) > 1e-4  # the other types are really in use
    divergence = (expected.exp() * (expected - found)).sum(dim=1)
    assert divergence.median() < bound


def options_of(path: Path, values: dict[str, Any]) -> list[Llama4LayerOptions]:
    """Return each layer's options, read from these metadata."""
    writer = GGUFWriter(path, "llama4")
    for key, value in values.items():
        writer.add(key, value)
    for layer in range(values["block_count"]):
        writer.add_tensor(f"blk.{layer}.placeholder", np.zeros(1, np.float32))
    writer.write()
    with open_gguf(path) as file:
        return [layer for layer in Llama4.read_options(file).layers if isinstance(layer, Llama4LayerOptions)]


def test_missing_settings_default_to_the_published_ones(tmp_path: Path) -> None:
    from transformers import Llama4TextConfig

    published = Llama4TextConfig()
    said = {
        key: value
        for key, value in converted(original(TinyLlama4())).keys.items()
        if not key.startswith("rope.")
        and key
        not in ("use_qk_norm", "interleave_moe_layer_step", "no_rope_interval", "attention.key_length")
        and key
        not in [f"attention.{end}" for end in ("temperature_tuning", "scale", "floor_scale", "chunk_size")]
    }
    layers = options_of(tmp_path / "said.gguf", {**said, "block_count": 8})
    o = layers[0]
    assert o.rope is not None
    assert o.head_dim == o.rope.dims == published.head_dim
    assert o.rope.base == published.default_theta
    rotates = [(i + 1) % published.no_rope_layer_interval != 0 for i in range(8)]
    assert [layer.rope is not None for layer in layers] == rotates
    chunk = ChunkedKeys(published.attention_chunk_size)
    assert [layer.remembers for layer in layers] == [chunk if each else Everything() for each in rotates]
    assert published.interleave_moe_layer_step == 1
    assert all(layer.experts for layer in layers)
    assert published.attn_temperature_tuning
    assert o.qk_norm == published.use_qk_norm
    assert (o.temperature_scale, o.floor_scale) == (published.attn_scale, published.floor_scale)
    assert not options_of(tmp_path / "maverick.gguf", {**said, "expert_count": 128})[0].qk_norm
    assert options_of(tmp_path / "named.gguf", {**said, "attention.head_dim": 64})[0].head_dim == 64


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("block_count", 0),
        ("embedding_length", "large"),
        ("feed_forward_length", 0),
        ("attention.head_count", 0),
        ("attention.head_count_kv", 3),
        ("attention.key_length", -1),
        ("attention.chunk_size", 0),
        ("attention.temperature_tuning", 1),
        ("attention.scale", "much"),
        ("attention.floor_scale", 0),
        ("attention.floor_scale", -8.0),
        ("no_rope_interval", 0),
        ("use_qk_norm", "yes"),
        ("expert_count", -1),
        ("expert_used_count", 5),
        ("expert_used_count", 0),
        ("expert_feed_forward_length", 0),
        ("interleave_moe_layer_step", 0),
        ("rope.dimension_count", 7),
        ("rope.dimension_count", 18),
        ("rope.freq_base", 0.0),
        ("rope.scaling.factor", -4.0),
    ],
)
def test_invalid_metadata_is_refused_by_name(tmp_path: Path, key: str, value: Any) -> None:
    said = converted(original(TinyLlama4(expert_interval=2))).keys
    with pytest.raises(ModelError, match=rf"llama4\.{key}'"):
        options_of(tmp_path / "wrong.gguf", {**said, key: value})


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    config = TinyLlama4(layers=2)
    path = tiny_llama4_gguf(tmp_path / "model.gguf", config)
    data = path.read_bytes()
    path.write_bytes(data.replace(b"blk.1.ffn_up_shexp.weight", b"blk.1.ffn_up_shexq.weight"))
    with pytest.raises(ModelError, match=r"model\.gguf: tensor 'blk\.1\.ffn_up_shexp\.weight' is missing"):
        load_model(path)

"""Llama 3.2 Vision's language model against Hugging Face transformers, on tiny random models in float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from puna.batch import Batch, ImageStates
from puna.errors import CacheFullError, ModelError
from puna.kvcache.cache import Cache
from puna.model.load import LoadedModel, load_model
from puna.ops import Backend, backend_named
from tests.model.models.images import (
    Part,
    Text,
    batch_of,
    log_probabilities,
    read,
    reference_log_probabilities,
)
from tests.model.models.parity import FLOATS, check_close, check_greedy, original
from tests.model.test_load import rewritten
from tests.processors import NOT_BUILT
from tests.tiny.forward import logits_of
from tests.tiny.llama import LLAMA3_ROPE
from tests.tiny.mllama import IMAGE, TinyMllama, tiny_mllama_gguf

MODELS = {
    "the last layer looks at images": TinyMllama(),
    "llama 3 rope factors": TinyMllama(cross_layers=(1, 2), rope_scaling=LLAMA3_ROPE, seed=1),
    "one query per key": TinyMllama(layers=3, cross_layers=(1,), heads=4, kv_heads=4, seed=2),
    "one key for all, odd sizes": TinyMllama(
        layers=5, cross_layers=(1, 3), hidden=96, feed_forward=80, heads=6, kv_heads=1, rope_base=5e5, seed=3
    ),
}
#: Positions of images in a text, with the number of vision states of each.
PLACES = {
    "nowhere": {},
    "at the start": {0: 7},
    "in the middle": {11: 10},
    "in two places": {4: 3, 21: 9},
    "three in a row, then one": {6: 5, 7: 2, 8: 10, 30: 4},
    "at the end": {39: 6},
}


@pytest.fixture(scope="module", params=MODELS, ids=[name.replace(" ", "-") for name in MODELS])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, ops: Backend):
    """Return our model and transformers', of one configuration."""
    config = MODELS[request.param]
    theirs = original(config)
    path = tiny_mllama_gguf(tmp_path_factory.mktemp("mllama") / "model.gguf", config, model=theirs)
    return load_model(path, ops=ops), theirs


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory, ops: Backend) -> LoadedModel:
    return load_model(
        tiny_mllama_gguf(tmp_path_factory.mktemp("mllama") / "plain.gguf", TinyMllama()), ops=ops
    )


def texts(ours: LoadedModel, seed: int = 0) -> list[Text]:
    """Return a text of 40 tokens for each of `PLACES`."""
    hidden = ours.model.options.hidden_size
    return [Text.random(40, places, hidden=hidden, seed=seed + n) for n, places in enumerate(PLACES.values())]


def new_cache(ours: LoadedModel, sequences: int = len(PLACES)) -> Cache:
    return ours.make_cache(sequences=sequences, context=128, types=FLOATS)


@pytest.mark.parametrize("parts", [[40], [11, 1, 28], [16, 16, 8], [1] * 40], ids=str)
def test_log_probabilities_agree_for_texts_with_and_without_images(
    pair: tuple[LoadedModel, Any], parts: list[int]
) -> None:
    ours, theirs = pair
    given, cache = texts(ours), new_cache(ours)
    found: list[list[torch.Tensor]] = [[] for _ in given]
    begin = 0
    for count in parts:
        batch = [Part(sequence, text, begin, begin + count) for sequence, text in enumerate(given)]
        for sequence, answer in enumerate(read(ours, cache, batch)):
            found[sequence].append(answer)
        begin += count
    for text, answers in zip(given, found, strict=True):
        check_close(ours, torch.cat(answers), reference_log_probabilities(theirs, text))


def test_images_change_the_results(pair: tuple[LoadedModel, Any]) -> None:
    """The test above would prove nothing without this."""
    ours, _ = pair
    text = texts(ours)[2]
    other = Text(text.tokens, {place: states + 1 for place, states in text.images.items()})
    cache = new_cache(ours)
    first, second = read(ours, cache, [Part(0, text, 0, 40), Part(1, other, 0, 40)])
    torch.testing.assert_close(first[:11], second[:11])
    assert (first[11:] - second[11:]).abs().amax(dim=1).min() > 0.01


def test_only_the_requested_rows_are_returned(pair: tuple[LoadedModel, Any]) -> None:
    ours, _ = pair
    parts = [Part(sequence, text, 0, 40) for sequence, text in enumerate(texts(ours))]
    batch = batch_of(parts)
    every = log_probabilities(ours, new_cache(ours), batch)
    for wanted in ([3, 79, 90, 100, 199], [5], []):
        batch.outputs = np.array(wanted, np.int64)
        torch.testing.assert_close(log_probabilities(ours, new_cache(ours), batch), every[batch.outputs])


def test_image_tokens_are_read_but_never_predicted(plain: LoadedModel) -> None:
    batch = Batch.of([IMAGE, 5, IMAGE], [0, 1, 2], [0] * 3, [1, 2])
    cache = new_cache(plain)
    with torch.inference_mode():
        cache.start_forward(batch)
        logits = logits_of(plain.model, batch, cache)
    assert logits.shape == (2, IMAGE + 8)
    assert logits[:, :IMAGE].isfinite().all()
    assert (logits[:, IMAGE:] == -torch.inf).all()
    assert plain.tokenizer.vocab_size == IMAGE + 8


# Texts of 60 tokens with images at 5 and 30.
@pytest.mark.parametrize("shared", [20, 31, 30, 6, 5], ids=str)
def test_log_probabilities_agree_after_prefix_reuse(pair: tuple[LoadedModel, Any], shared: int) -> None:
    ours, theirs = pair
    hidden = ours.model.options.hidden_size
    text = Text.random(60, {5: 8, 30: 4}, hidden=hidden, seed=20)
    other = text.to(shared) + Text.random(20, {0: 3, 9: 10}, hidden=hidden, seed=21)
    cache = new_cache(ours)
    read(ours, cache, [Part(0, other, 0, len(other))])
    cache.copy_prefix(0, 1, shared)
    assert cache.can_resume(1, shared)
    cache.remove(0, 0)
    (found,) = read(ours, cache, [Part(1, text, shared, 60)])
    check_close(ours, found, reference_log_probabilities(theirs, text)[shared:])


@pytest.mark.slow
def test_greedy_output_agrees_token_for_token(pair: tuple[LoadedModel, Any]) -> None:
    ours, theirs = pair
    check_greedy(ours, theirs)


@pytest.mark.slow
def test_greedy_output_after_images_agrees_token_for_token(pair: tuple[LoadedModel, Any]) -> None:
    """Each token is also the most probable one for transformers, given those before it."""
    ours, theirs = pair
    given, cache = texts(ours, seed=30), new_cache(ours)
    batch = batch_of([Part(sequence, text, 0, 40) for sequence, text in enumerate(given)])
    batch.outputs = np.arange(39, len(batch), 40)
    for _ in range(25):
        chosen = log_probabilities(ours, cache, batch).argmax(dim=1).tolist()
        given = [text + Text([token]) for text, token in zip(given, chosen, strict=True)]
        batch = batch_of([Part(n, text, len(text) - 1, len(text)) for n, text in enumerate(given)])
    for text, places in zip(given, PLACES, strict=True):
        best = reference_log_probabilities(theirs, text).argmax(dim=1)
        assert best[39:-1].tolist() == text.tokens[40:], places


# With one self-attention and one cross-attention layer, no key depends on what was removed.
@pytest.mark.parametrize("removed", [(10, 25), (0, 25), (2, 4), (2, 40), (12, 31)], ids=str)
def test_a_shifted_text_equals_one_read_without_the_removed_part(
    tmp_path: Path, ops: Backend, removed: tuple[int, int]
) -> None:
    config = TinyMllama(layers=2, cross_layers=(1,), rope_scaling=LLAMA3_ROPE, seed=9)
    theirs = config.build()
    ours = load_model(tiny_mllama_gguf(tmp_path / "two.gguf", config, model=theirs), ops=ops)
    text = Text.random(50, {3: 5, 12: 7, 30: 4}, hidden=config.hidden, seed=40)
    kept = text.without(*removed)
    whole = kept + Text.random(12, {6: 3}, hidden=config.hidden, seed=41)
    cache = new_cache(ours)
    read(ours, cache, [Part(0, text, 0, 50)])
    cache.remove(0, *removed)
    assert cache.length(0) == len(kept)
    (found,) = read(ours, cache, [Part(0, whole, len(kept), len(whole))])
    check_close(ours, found, reference_log_probabilities(theirs, whole)[len(kept) :])


def test_images_are_removed_with_their_positions(plain: LoadedModel) -> None:
    cache = new_cache(plain)
    text, images = texts(plain)[4], cache.caches[1]
    read(plain, cache, [Part(0, text, 0, 40)])
    assert images.images(0) == [6, 7, 8, 30]
    free = images.cells.free
    cache.remove(0, 8)
    assert images.images(0) == [6, 7]
    assert images.cells.free == free + 14


def test_a_failed_pass_changes_nothing(plain: LoadedModel) -> None:
    text, other = texts(plain)[4], texts(plain)[1]
    touched, untouched = new_cache(plain), new_cache(plain)
    for cache in (touched, untouched):
        read(plain, cache, [Part(0, text, 0, 8)])
    batch = batch_of([Part(0, text, 8, 40), Part(1, other, 0, 40)])
    row, _ = batch.payloads[1]
    batch.payloads[1] = row, ImageStates(plain.ops.array(np.zeros((4, 3), np.float32)))  # of another model
    with pytest.raises((ValueError, RuntimeError)):
        log_probabilities(plain, touched, batch)
    touched.undo_forward()
    lengths = [(touched.length(n), touched.caches[1].images(n)) for n in (0, 1)]
    assert lengths == [(8, [6, 7]), (0, [])]
    parts = [Part(0, text, 8, 40), Part(1, other, 0, 40)]
    for after, expected in zip(read(plain, touched, parts), read(plain, untouched, parts), strict=True):
        assert torch.equal(after, expected)


def test_more_images_than_fit_are_refused(plain: LoadedModel) -> None:
    """The file states up to 10 states per image, so there is room for 40."""
    hidden = plain.model.options.hidden_size
    text = Text.random(8, {0: 10, 2: 10, 3: 10, 5: 10, 7: 1}, hidden=hidden, seed=50)
    cache = new_cache(plain)
    read(plain, cache, [Part(0, text, 0, 3)])
    with pytest.raises(
        CacheFullError, match=r"the image at position 7 has 1 entries, and sequence 0 holds 40"
    ):
        read(plain, cache, [Part(0, text, 3, 8)])
    assert [inner.length(0) for inner in cache.caches] == [3, 3]
    read(plain, cache, [Part(0, text, 3, 7)])


def test_results_do_not_depend_on_other_rows_of_the_batch(tmp_path: Path) -> None:
    pytest.importorskip("puna._native", reason=NOT_BUILT)
    ours = load_model(tiny_mllama_gguf(tmp_path / "model.gguf", TinyMllama()), ops=backend_named("cpu"))
    given = texts(ours)
    together = read(ours, new_cache(ours), [Part(n, text, 0, 40) for n, text in enumerate(given)])
    for number, text in enumerate(given):
        (alone,) = read(ours, new_cache(ours), [Part(number, text, 0, 40)])
        assert torch.equal(alone, together[number])


@pytest.mark.parametrize(
    ("key", "value", "complaint"),
    [
        (
            "attention.cross_attention_layers",
            None,
            "should list the layers that attend to images, but is None",
        ),
        ("attention.cross_attention_layers", 3, "should list the layers that attend to images, but is 3"),
        (
            "attention.cross_attention_layers",
            "1,3",
            "should list the layers that attend to images, but is '1,3'",
        ),
        ("attention.cross_attention_layers", [1, 4], "names layer 4, but there are layers 0 to 3"),
        ("attention.cross_attention_layers", [-1], "names layer -1"),
        ("attention.cross_attention_layers", [1.5], "names layer 1.5"),
        ("vision.patch_size", 0, "should be positive, but is 0"),
        ("vision.max_num_tiles", "many", "should be a size, but is 'many'"),
    ],
)
def test_invalid_metadata_is_named(tmp_path: Path, key: str, value: Any, complaint: str) -> None:
    path = tiny_mllama_gguf(tmp_path / "good.gguf", TinyMllama())
    bad = rewritten(path, tmp_path / "bad.gguf", architecture="mllama", **{f"mllama.{key}": value})
    with pytest.raises(ModelError, match=rf"bad\.gguf: .*'mllama\.{key}' {complaint}"):
        load_model(bad)


def test_a_model_without_cross_attention_layers_is_a_llama(tmp_path: Path) -> None:
    config = TinyMllama(layers=2, cross_layers=(), seed=5)
    theirs = config.build()
    ours = load_model(tiny_mllama_gguf(tmp_path / "none.gguf", config, model=theirs))
    text = Text.random(20, {}, hidden=config.hidden, seed=60)
    (found,) = read(ours, new_cache(ours), [Part(0, text, 0, 20)])
    check_close(ours, found, reference_log_probabilities(theirs, text))

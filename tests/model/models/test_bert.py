"""BERT against Hugging Face transformers, on tiny random models in float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from puna.batch import Batch
from puna.engine.engine import Engine
from puna.engine.room import EngineSizes
from puna.errors import ContextLengthError, ModelError, NotSupportedError, RequestError
from puna.model.load import LoadedModel, load_model
from puna.ops import Backend
from puna.options import Options
from puna.protocol import Generate
from tests.engine.runs import Run
from tests.model.models.parity import FLOATS, check_close, original, random_tokens
from tests.tiny import forward
from tests.tiny.bert import TinyBert, tiny_bert_gguf
from tests.tiny.words import VOCABULARY

MODELS = {"mean": TinyBert(), "cls": TinyBert(heads=2, layers=3, feed_forward=80, pooling_type=2, seed=1)}
TEXTS = [[(11 * i + j * j) % len(VOCABULARY) for j in range(3 + 9 * i)] for i in range(6)]


@pytest.fixture(scope="module", params=MODELS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, ops: Backend):
    """Return our model and transformers'."""
    config = MODELS[request.param]
    path = tmp_path_factory.mktemp("bert") / f"{request.param}.gguf"
    return load_model(tiny_bert_gguf(path, config, model=original(config)), ops=ops), original(config)


def states_of(theirs: Any, tokens: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        return theirs(torch.tensor([tokens])).last_hidden_state[0]


def embedded(loaded: LoadedModel, *inputs: str | list[int], batch_size: int = 16, **settings: Any) -> Any:
    run = Run(loaded, batch_size=batch_size)
    run.embed(0, *inputs, **settings)
    run.finish()
    return run.vectors(0)


def test_hidden_states_agree_for_texts_in_one_batch(pair: tuple[LoadedModel, Any]) -> None:
    ours, theirs = pair
    cache = ours.make_cache(sequences=3, context=64, types=FLOATS)
    texts = [random_tokens(ours, count, count) for count in (1, 40, 17)]
    for _ in range(2):  # the second time the slots have been used before
        batch = Batch.of(
            [token for text in texts for token in text],
            [position for text in texts for position in range(len(text))],
            [number for number, text in enumerate(texts) for _ in text],
            list(range(0, 58, 3)),
        )
        with torch.inference_mode():
            cache.start_forward(batch)
            found = forward.states_of(ours.model, batch, cache)
        expected = torch.cat([states_of(theirs, text) for text in texts])[::3]
        check_close(ours, found, expected)
        assert [cache.length(number) for number in range(3)] == [1, 40, 17]


@pytest.mark.parametrize("batch_size", [16, 512])
def test_vectors_match_the_pooled_reference(pair: tuple[LoadedModel, Any], batch_size: int) -> None:
    """Texts longer than a batch are read whole, too."""
    ours, theirs = pair
    for pooling in (None, "mean", "cls", "last"):
        found = embedded(ours, *TEXTS, pooling=pooling, normalize=False, batch_size=batch_size)
        for vector, tokens in zip(found, TEXTS, strict=True):
            states = states_of(theirs, tokens)
            chosen = pooling or ours.pooling
            expected = {"mean": states.mean(0), "cls": states[0], "last": states[-1]}[chosen]
            assert np.abs(vector - expected.numpy()).max() < 1e-3


def test_a_vector_does_not_depend_on_the_rest_of_its_batch(
    pair: tuple[LoadedModel, Any], ops: Backend
) -> None:
    ours, _ = pair
    together = embedded(ours, *TEXTS, batch_size=512)
    for vector, tokens in zip(together, TEXTS, strict=True):
        alone = embedded(ours, tokens)[0]
        if ops.name == "reference":
            assert np.allclose(alone, vector, atol=1e-5)
        else:
            assert np.array_equal(alone, vector)
    run = Run(ours, batch_size=512)
    for number in range(2):  # texts embedded before are evaluated again
        run.embed(number, *TEXTS)
        run.finish()
        assert np.array_equal(run.vectors(number), together)


def test_text_is_tokenised_between_cls_and_sep(pair: tuple[LoadedModel, Any]) -> None:
    ours, _ = pair
    tokens = [VOCABULARY.index(token) for token in ("[CLS]", "▁once", "▁upon", "▁a", "▁cat", "[SEP]")]
    assert ours.tokenizer.encode("Once upon a cat") == tokens
    assert np.array_equal(embedded(ours, "Once upon a cat"), embedded(ours, tokens))


def test_an_encoder_does_not_generate(pair: tuple[LoadedModel, Any]) -> None:
    ours, _ = pair
    engine = Engine(ours, EngineSizes(context=64))
    with pytest.raises(RequestError, match=r"\.gguf does not generate text; it embeds texts"):
        engine.submit(Generate(id=1, prompt="once", options=Options()), lambda event: None)
    with pytest.raises(NotSupportedError, match="does not predict tokens"):
        ours.model.logits(np.zeros((1, 64), np.float32))


def test_a_text_is_cut_to_the_trained_positions(pair: tuple[LoadedModel, Any]) -> None:
    ours, _ = pair
    long = "a " * 100
    framed = ours.tokenizer.encode(long)
    expected = embedded(ours, [*framed[:63], framed[-1]])
    assert np.array_equal(embedded(ours, long), expected)
    with pytest.raises(ContextLengthError):
        embedded(ours, long, truncate=False)


def test_an_embedded_text_cannot_be_continued(pair: tuple[LoadedModel, Any]) -> None:
    ours, _ = pair
    cache = ours.make_cache(sequences=1, context=64, types=FLOATS)
    cache.start_forward(Batch.of([1, 2], [0, 1], [0, 0], []))
    assert (cache.length(0), cache.resume_point(0, 2)) == (2, 0)
    with pytest.raises(NotSupportedError, match="reads a text whole"):
        cache.start_forward(Batch.of([3], [2], [0], []))
    with pytest.raises(NotSupportedError, match="reads a text whole"):
        cache.remove(0, 1)
    cache.undo_forward()
    assert cache.length(0) == 0


def test_a_file_without_a_pooling_averages_all_hidden_states(tmp_path: Path) -> None:
    config = MODELS["cls"]
    path = tiny_bert_gguf(
        tmp_path / "bert.gguf", config, model=original(config), metadata={"pooling_type": None}
    )
    assert load_model(path).pooling == "mean"


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({"context_length": 65}, "'bert.context_length' is 65, but there are only 64 position vectors"),
        ({"attention.causal": True}, "'bert.attention.causal' is true"),
        ({"attention.layer_norm_epsilon": 0.0}, "'bert.attention.layer_norm_epsilon' should be above 0"),
        ({"attention.head_count": 0}, "'bert.attention.head_count' should be positive, but is 0"),
    ],
    ids=str,
)
def test_invalid_metadata_is_named(tmp_path: Path, metadata: dict[str, Any], words: str) -> None:
    config = MODELS["mean"]
    path = tiny_bert_gguf(tmp_path / "bad.gguf", config, model=original(config), metadata=metadata)
    with pytest.raises(ModelError, match=rf"bad\.gguf: {words}"):
        load_model(path)

"""Encoders against Hugging Face transformers, on tiny random models in float32; see also test_bert.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from puna.batch import Batch
from puna.errors import ModelError
from puna.model.load import LoadedModel, load_model
from puna.ops import Backend
from tests.engine.runs import Run
from tests.model.models.parity import FLOATS, check_close, original, random_tokens
from tests.tiny import forward
from tests.tiny.encoders import (
    TinyEncoder,
    TinyJinaBertV3,
    TinyModernBert,
    TinyNomicBert,
    TinyNomicBertMoe,
    tiny_encoder_gguf,
)
from tests.tiny.jina import TinyJinaBertV2
from tests.tiny.words import VOCABULARY

MODELS: dict[str, TinyEncoder] = {
    "nomic-bert": TinyNomicBert(),
    "nomic-bert-moe": TinyNomicBertMoe(seed=5),
    "jina-bert-v3": TinyJinaBertV3(pooling_type=2, seed=1),
    "jina-bert-v2": TinyJinaBertV2(seed=6),
    "jina-bert-v2-apart": TinyJinaBertV2(seed=6, layout="apart"),
    "jina-bert-v2-code": TinyJinaBertV2(kind="code", seed=7),
    "jina-bert-v2-code-joined": TinyJinaBertV2(kind="code", seed=7, layout="joined"),
    "jina-bert-v2-plain": TinyJinaBertV2(kind="plain", pooling_type=2, seed=8),
    "modern-bert": TinyModernBert(seed=2),
    "modern-bert-silu": TinyModernBert(pooling_type=2, seed=3, activation="silu", window=7),
}
TEXTS = [[(11 * i + j * j) % len(VOCABULARY) for j in range(3 + 19 * i)] for i in range(6)]


@pytest.fixture(scope="module", params=MODELS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, ops: Backend):
    """Return our model and the reference."""
    config = MODELS[request.param]
    path = tmp_path_factory.mktemp("encoder") / f"{request.param}.gguf"
    return load_model(tiny_encoder_gguf(path, config, model=original(config)), ops=ops), original(config)


def states_of(theirs: Any, tokens: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        ids = torch.tensor([tokens])
        return theirs(ids, attention_mask=torch.ones_like(ids)).last_hidden_state[0]


def embedded(loaded: LoadedModel, *inputs: list[int], **settings: Any) -> Any:
    run = Run(loaded, batch_size=512, context=128)
    run.embed(0, *inputs, **settings)
    run.finish()
    return run.vectors(0)


def test_hidden_states_agree_for_texts_in_one_batch(pair: tuple[LoadedModel, Any]) -> None:
    ours, theirs = pair
    cache = ours.make_cache(sequences=3, context=128, types=FLOATS)
    texts = [random_tokens(ours, count, count) for count in (1, 90, 17)]
    batch = Batch.of(
        [token for text in texts for token in text],
        [position for text in texts for position in range(len(text))],
        [number for number, text in enumerate(texts) for _ in text],
        list(range(0, 108, 3)),
    )
    for _ in range(2):  # the second time the slots have been used before
        with torch.inference_mode():
            cache.start_forward(batch)
            found = forward.states_of(ours.model, batch, cache)
        expected = torch.cat([states_of(theirs, text) for text in texts])[::3]
        check_close(ours, found, expected)


def test_vectors_match_the_pooled_reference(pair: tuple[LoadedModel, Any]) -> None:
    ours, theirs = pair
    found = embedded(ours, *TEXTS, normalize=False)
    for vector, tokens in zip(found, TEXTS, strict=True):
        states = states_of(theirs, tokens)
        expected = states.mean(0) if ours.pooling == "mean" else states[0]
        assert np.abs(vector - expected.numpy()).max() < 1e-3


def test_a_vector_does_not_depend_on_the_rest_of_its_batch(
    pair: tuple[LoadedModel, Any], ops: Backend
) -> None:
    ours, _ = pair
    together = embedded(ours, *TEXTS)
    for vector, tokens in zip(together, TEXTS, strict=True):
        alone = embedded(ours, tokens)[0]
        if ops.name == "reference":
            assert np.allclose(alone, vector, atol=1e-5)
        else:
            assert np.array_equal(alone, vector)


@pytest.mark.parametrize("pattern", [2, [False, True, False]], ids=["every", "each"])
def test_the_file_states_which_layers_have_windows(tmp_path: Path, pattern: Any) -> None:
    config = TinyModernBert(seed=4)
    path = tmp_path / "modern.gguf"
    tiny_encoder_gguf(path, config, metadata={"attention.sliding_window_pattern": pattern})
    remembered = [layer.remembers.reach for layer in load_model(path).model.options.layers]  # type: ignore[union-attr]
    assert remembered == [None, 6, None]


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({"attention.causal": True}, "'modern-bert.attention.causal' is true"),
        ({"hidden_activation": "relu"}, "'modern-bert.hidden_activation' 'relu' is not supported"),
        ({"attention.sliding_window_pattern": 0}, "'modern-bert.attention.sliding_window_pattern' should be"),
        ({"rope.freq_base_swa": 0.0}, "'modern-bert.rope.freq_base_swa' should be above 0"),
    ],
    ids=str,
)
def test_invalid_metadata_is_named(tmp_path: Path, metadata: dict[str, Any], words: str) -> None:
    config = MODELS["modern-bert"]
    path = tiny_encoder_gguf(tmp_path / "bad.gguf", config, model=original(config), metadata=metadata)
    with pytest.raises(ModelError, match=rf"bad\.gguf: {words}"):
        load_model(path)


@pytest.mark.parametrize("missing", ["blk.1.attn_norm.weight", "output_norm.weight", "blk.0.ffn_norm.weight"])
def test_a_missing_norm_is_named(tmp_path: Path, missing: str) -> None:
    config = MODELS["modern-bert"]
    found = config.contents(original(config))
    del found.tensors[missing]
    path = found.write(tmp_path / "bad.gguf")
    with pytest.raises(ModelError, match=rf"bad\.gguf: tensor '{missing}' is missing"):
        load_model(path)

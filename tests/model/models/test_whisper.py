"""Whisper against Hugging Face transformers, on tiny random models in float32."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from puna.batch import Batch, Image, ImagePart
from puna.convert import convert
from puna.errors import ConversionError, ModelError
from puna.gguf import FileType, GGMLType
from puna.kvcache.cache import Cache
from puna.model.load import LoadedModel, load_model
from puna.ops import Backend
from puna.sample.transcript import TranscriptTokens
from tests.convert.checkpoints import save_tokenizer
from tests.model.models.parity import FLOATS, check_close, original, random_tokens
from tests.tiny.forward import encoded, logits_of
from tests.tiny.whisper import TinyWhisper, tiny_whisper_gguf

MODELS = {
    "small": TinyWhisper(),
    "turbo": TinyWhisper(
        layers=4, decoder_layers=1, bands=128, heads=8, decoder_heads=2, feed_forward=200, seed=1
    ),
    "odd": TinyWhisper(
        layers=1, decoder_layers=2, hidden=60, heads=3, decoder_heads=5, bands=40, positions=37, context=48,
        scale_embedding=True, seed=2,
    ),
}  # fmt: skip


@pytest.fixture(scope="module", params=MODELS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, ops: Backend):
    """Return our model and transformers', of one configuration."""
    config = MODELS[request.param]
    path = tiny_whisper_gguf(tmp_path_factory.mktemp("whisper") / "m.gguf", config, model=original(config))
    return load_model(path, ops=ops), original(config)


def features_of(ours: LoadedModel, seed: int) -> np.ndarray:
    assert ours.speech_encoder is not None
    o = ours.speech_encoder.options
    return np.random.default_rng(seed).normal(0, 0.5, (o.frames, o.bands)).astype(np.float32)


def read(
    ours: LoadedModel, cache: Cache, parts: list[tuple[int, np.ndarray | None, list[int]]]
) -> list[torch.Tensor]:
    """Return log-probabilities of each part: a sequence, the features it starts with, and tokens."""
    tokens, positions, sequences, payloads = [], [], [], []
    for sequence, features, answer in parts:
        begin = cache.length(sequence)
        if features is not None:
            states = encoded(ours, features)
            image = Image(1, features, len(states), states)
            payloads.append((len(tokens), ImagePart(image, 0, len(states))))
        tokens += answer
        positions += range(begin, begin + len(answer))
        sequences += [sequence] * len(answer)
    batch = Batch.of(tokens, positions, sequences, list(range(len(tokens))))
    batch.payloads = payloads
    with torch.inference_mode():
        cache.start_forward(batch)
        found = torch.log_softmax(logits_of(ours.model, batch, cache), -1)
    return list(found.split([len(answer) for _, _, answer in parts]))


def expected(theirs: Any, features: np.ndarray, answer: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        logits = theirs(
            input_features=torch.from_numpy(features.T[None]), decoder_input_ids=torch.tensor([answer])
        ).logits
        return torch.log_softmax(logits[0], -1)


@pytest.mark.parametrize("slice_rows", [512, 7])
def test_states_of_the_encoder_agree(pair: tuple[LoadedModel, Any], slice_rows: int) -> None:
    ours, theirs = pair
    features = features_of(ours, 0)
    with torch.inference_mode():
        states = theirs.model.encoder(torch.from_numpy(features.T[None])).last_hidden_state[0]
    check_close(ours, torch.from_numpy(encoded(ours, features, slice_rows)), states)


@pytest.mark.parametrize("steps", [[40], [1] * 12 + [28]], ids=["whole", "steps"])
def test_log_probabilities_agree_for_texts_whole_and_in_parts(
    pair: tuple[LoadedModel, Any], steps: list[int]
) -> None:
    ours, theirs = pair
    heard, answer = features_of(ours, 1), random_tokens(ours, 40, 2)
    other, others = features_of(ours, 3), random_tokens(ours, 30, 4)
    cache = ours.make_cache(sequences=3, context=48, types=FLOATS)
    found, at = [], 0
    for step in steps:
        parts = [(2, None if at else heard, answer[at : at + step])]
        if at == 0:
            parts.insert(0, (0, other, others[:20]))
        elif at == steps[0]:
            parts.append((0, None, others[20:]))
        mine = read(ours, cache, parts)
        found.append(mine[1 if at == 0 else 0])
        at += step
    check_close(ours, torch.cat(found), expected(theirs, heard, answer))


def test_the_recording_changes_the_results(pair: tuple[LoadedModel, Any]) -> None:
    """The test above would prove nothing without this."""
    ours, _ = pair
    cache = ours.make_cache(sequences=2, context=48, types=FLOATS)
    answer = random_tokens(ours, 10, 2)
    first, second = read(ours, cache, [(0, features_of(ours, 1), answer), (1, features_of(ours, 2), answer)])
    assert (first - second).abs().amax(1).min() > 1e-3


@pytest.mark.parametrize(
    ("kind", "allowed"),
    [(GGMLType.F16, 0.01), (GGMLType.Q8_0, 0.05), (GGMLType.Q6_K, 0.1), (GGMLType.Q4_0, 0.5)],
)
def test_quantized_types_load(tmp_path: Path, kind: GGMLType, allowed: float) -> None:
    config = TinyWhisper(hidden=256, feed_forward=256, decoder_feed_forward=256, layers=1, decoder_layers=1)
    theirs = original(config)
    ours = load_model(tiny_whisper_gguf(tmp_path / "m.gguf", config, model=theirs, kind=kind))
    heard, answer = features_of(ours, 1), random_tokens(ours, 12, 2)
    cache = ours.make_cache(sequences=1, context=48, types=FLOATS)
    [found] = read(ours, cache, [(0, heard, answer)])
    exact = expected(theirs, heard, answer)
    assert (found - exact).norm() < allowed * (exact - exact.mean()).norm()


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({"audio.block_count": None}, "audio.block_count' is missing"),
        ({"audio.block_count": 1}, "2 tensors|tensors are unknown"),
        ({"audio.attention.head_count": 7}, "head_count' is 7, which does not divide 64"),
        ({"audio.embedding_length": 32}, "embedding_length' is 32, but the decoder reads 64"),
        ({"audio.num_mel_bins": 5000}, "num_mel_bins' is 5000"),
        ({"audio.num_mel_bins": 81}, "a.conv1d.1.weight' has"),
        ({"alignment_heads": [0, 1, 3, 0]}, "has head 0 of layer 3, which does not exist"),
        ({"alignment_heads": [0, 4]}, "has head 4 of layer 0"),
        ({"alignment_heads": [0, 1, 2]}, "should be pairs of a layer and a head"),
        ({"alignment_heads": [0, 0] * 13}, "should be pairs"),
        ({"alignment_heads": 3}, "should be pairs"),
        ({"context_length": 65}, "context_length' is 65, but there are only 64 position"),
    ],
    ids=str,
)
def test_invalid_metadata_is_named(tmp_path: Path, metadata: dict[str, Any], words: str) -> None:
    config = MODELS["small"]
    path = tiny_whisper_gguf(tmp_path / "bad.gguf", config, model=original(config), metadata=metadata)
    with pytest.raises(ModelError, match=words):
        load_model(path)


def test_heads_that_follow_the_speech_come_from_the_checkpoint(tmp_path: Path) -> None:
    config = dataclasses.replace(MODELS["small"], alignment_heads=((2, 3), (0, 1)))
    stated = load_model(tiny_whisper_gguf(tmp_path / "m.gguf", config, model=original(config))).speech_encoder
    assert stated is not None
    assert stated.options.alignment_heads == config.alignment_heads
    unstated = load_model(
        tiny_whisper_gguf(tmp_path / "n.gguf", model=original(MODELS["small"]))
    ).speech_encoder
    assert unstated is not None
    assert unstated.options.alignment_heads == tuple((layer, head) for layer in (1, 2) for head in range(4))


@pytest.mark.parametrize("heads", [[[3, 0]], [[0]], [[0, "1"]], "all", [[0, True]]], ids=str)
def test_heads_that_the_model_lacks_are_not_converted(tmp_path: Path, heads: Any) -> None:
    config = MODELS["small"]
    folder = config.save(tmp_path / "whisper", original(config))
    (folder / "generation_config.json").write_text(json.dumps({"alignment_heads": heads}))
    with pytest.raises(ConversionError, match="alignment_heads are"):
        convert(folder, tmp_path / "m.gguf", FileType.F32)


def test_a_folder_as_it_was_first_published_is_converted(tmp_path: Path) -> None:
    """Timestamps were no tokens of its vocabulary, and weights may be there in another precision, too."""
    config = MODELS["small"]
    folder = config.save(tmp_path / "whisper", original(config))
    settings = json.loads((folder / "config.json").read_text())
    settings |= {
        "forced_decoder_ids": [[1, 290], [2, 293]], "begin_suppress_tokens": [220, 287], "max_length": 64,
        "num_hidden_layers": 2, "suppress_tokens": [1, 2, 7], "torch_dtype": "float32",
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(settings))
    (folder / "generation_config.json").unlink()
    save_tokenizer(folder, markers=config.markers[: -config.positions - 1])
    shutil.copy(folder / "model.safetensors", folder / "model.fp32-00001-of-00001.safetensors")
    convert(folder, tmp_path / "m.gguf", FileType.F32)
    ours = load_model(tmp_path / "m.gguf")
    tokens = TranscriptTokens.of(ours.tokenizer)
    assert (tokens.end, tokens.begin_time) == (config.id_of("endoftext"), config.id_of("0.00"))
    assert ours.speech_encoder is not None
    assert not ours.speech_encoder.options.multilingual  # by the size of its vocabulary
    heard, answer = features_of(ours, 1), random_tokens(ours, 20, 2)
    cache = ours.make_cache(sequences=1, context=48, types=FLOATS)
    [found] = read(ours, cache, [(0, heard, answer)])
    check_close(ours, found, expected(original(config), heard, answer))

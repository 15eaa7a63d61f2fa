"""Converted encoders compute the hidden states of transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from puna.batch import Batch
from puna.convert import convert
from puna.errors import ConversionError
from puna.gguf import FileType, open_gguf
from puna.model.load import load_model
from tests.convert.checkpoints import save_modules, saved_with_words
from tests.model.models.parity import FLOATS, check_close, original, random_tokens
from tests.tiny import forward
from tests.tiny.bert import TinyBert, randomised, tiny_bert_gguf
from tests.tiny.encoders import (
    SIZES,
    TinyEncoder,
    TinyJinaBertV3,
    TinyModernBert,
    TinyNomicBert,
    TinyNomicBertMoe,
)
from tests.tiny.rerankers import tiny_gte
from tests.tiny.words import VOCABULARY

DISTILLED = {
    "vocab_size": SIZES["vocab_size"], "dim": 64, "hidden_dim": 96, "n_layers": 3, "n_heads": 4,
    "max_position_embeddings": 64, "pad_token_id": 0,
}  # fmt: skip
ENCODERS: dict[str, Any] = {
    "bert": TinyBert(),
    "jina-bert-v3": TinyJinaBertV3(),
    "modern-bert": TinyModernBert(),
    "nomic-bert": TinyNomicBert(),
    "nomic-bert-moe": TinyNomicBertMoe(),
}


def of_transformers(name: str) -> Any:
    """Return a small model of the class `name`, with random weights."""
    torch.default_generator.manual_seed(9)
    kind = getattr(transformers, name)
    sizes = DISTILLED if name.startswith("Distil") else SIZES
    return randomised(kind(kind.config_class(**sizes)).float().eval())


def checkpoint(folder: Path, name: str) -> Path:
    """Save the encoder `name` as it is published; return the folder."""
    tiny = ENCODERS[name]
    return (tiny.save if isinstance(tiny, TinyEncoder) else saved_with_words)(folder, original(tiny))


@pytest.mark.parametrize("name", ["CamembertModel", "DistilBertModel", "RobertaModel", "XLMRobertaModel"])
def test_bert_variants_compute_the_states_of_their_references(name: str, tmp_path: Path) -> None:
    """All other tiny encoders are converted in tests/model/models."""
    theirs = of_transformers(name)
    folder = saved_with_words(tmp_path / "checkpoint", theirs)
    save_modules(folder)
    convert(folder, tmp_path / "m.gguf", FileType.F32)
    ours = load_model(tmp_path / "m.gguf")
    assert ours.pooling == "mean"
    with open_gguf(tmp_path / "m.gguf") as file:
        ids = [file.metadata[f"tokenizer.ggml.{key}_token_id"] for key in ("bos", "eos")]
        assert ids == [VOCABULARY.index(text) for text in ("[CLS]", "[SEP]")]
    cache = ours.make_cache(sequences=1, context=64, types=FLOATS)
    tokens = [token or 1 for token in random_tokens(ours, 40, 3)]  # no padding: RoBERTa skips its positions
    batch = Batch.of(tokens, list(range(40)), [0] * 40, list(range(40)))
    with torch.inference_mode():
        cache.start_forward(batch)
        expected = theirs(torch.tensor([tokens])).last_hidden_state[0]
        check_close(ours, forward.states_of(ours.model, batch, cache), expected)


def test_tensorflow_names_are_mapped_and_pooler_and_language_model_head_skipped(tmp_path: Path) -> None:
    """BERT itself is published like this."""
    theirs = original(TinyBert())
    folder = saved_with_words(tmp_path / "checkpoint", theirs)
    tensors = {"bert.pooler.dense.bias": torch.ones(64), "cls.predictions.bias": torch.ones(9)}
    for name, values in load_file(folder / "model.safetensors").items():
        old = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
        tensors[f"bert.{old}"] = values
    save_file(tensors, folder / "model.safetensors")
    convert(folder, tmp_path / "ours.gguf", FileType.F32)
    check_same_tensors(tmp_path / "ours.gguf", tiny_bert_gguf(tmp_path / "expected.gguf", model=theirs))


def check_same_tensors(ours: Path, expected: Path) -> None:
    """Check that a file has the tensors of `expected`, which other tests compare with transformers."""
    with open_gguf(ours) as found, open_gguf(expected) as wanted:
        assert found.tensors.keys() == wanted.tensors.keys()
        for name in wanted.tensors:
            np.testing.assert_array_equal(found.array(name), wanted.array(name), err_msg=name)


def test_normalised_expert_weights_are_refused(tmp_path: Path) -> None:
    path = checkpoint(tmp_path / "checkpoint", "nomic-bert-moe") / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"moe_normalize_expert_weights": True}))
    with pytest.raises(ConversionError, match="no supported variant has these settings"):
        convert(path.parent, tmp_path / "m.gguf")


def test_masked_language_model_head_of_modern_bert_is_not_a_classifier(tmp_path: Path) -> None:
    from transformers import ModernBertConfig, ModernBertForMaskedLM

    folder = saved_with_words(tmp_path / "checkpoint", ModernBertForMaskedLM(ModernBertConfig(**SIZES)))
    convert(folder, tmp_path / "m.gguf", FileType.F32)
    assert load_model(tmp_path / "m.gguf").pooling == "mean"


def test_pooling_of_a_classifier_is_written(tmp_path: Path) -> None:
    convert(saved_with_words(tmp_path / "gte", tiny_gte("cls")), tmp_path / "m.gguf", FileType.F32)
    with open_gguf(tmp_path / "m.gguf") as file:
        assert file.metadata["modern-bert.classifier.pooling_type"] == 2


def test_pooler_without_a_classifier_is_skipped(tmp_path: Path) -> None:
    theirs = randomised(transformers.BertModel(transformers.BertConfig(**SIZES)).float().eval())
    convert(saved_with_words(tmp_path / "bert", theirs), tmp_path / "m.gguf", FileType.F32)
    assert load_model(tmp_path / "m.gguf").pooling == "mean"
    with open_gguf(tmp_path / "m.gguf") as file:
        assert not [name for name in file.tensors if name.startswith("cls")]


@pytest.mark.parametrize(
    ("architecture", "why"),
    [
        ("DistilBertForSequenceClassification", "GGUF has no classifier with a ReLU"),
        ("DebertaV2ForSequenceClassification", "GGUF has no attention that separates content and position"),
        ("Qwen3ForSequenceClassification", "its folder does not say how to combine a query and a document"),
    ],
)
def test_rerankers_without_a_gguf_layout_are_refused(architecture: str, why: str, tmp_path: Path) -> None:
    path = saved_with_words(tmp_path / "checkpoint", original(TinyBert())) / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"architectures": [architecture]}))
    with pytest.raises(ConversionError, match=f"{architecture}: it cannot be converted: {why}"):
        convert(path.parent, tmp_path / "m.gguf")


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("BertForSequenceClassification", {"hidden_act": "relu"}),
        ("ModernBertForSequenceClassification", {"classifier_activation": "silu"}),
    ],
)
def test_activations_that_files_cannot_express_are_refused(
    name: str, setting: dict[str, Any], tmp_path: Path
) -> None:
    path = saved_with_words(tmp_path / "checkpoint", of_transformers(name)) / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | setting))
    with pytest.raises(ConversionError, match=f"{name}: no supported variant"):
        convert(path.parent, tmp_path / "m.gguf")

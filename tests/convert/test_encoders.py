"""Encoders, converted, compute what transformers computes with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from puna.batch import Batch
from puna.convert import convert
from puna.errors import ConversionError
from puna.gguf import FileType, open_gguf
from puna.model.load import load_model
from tests import forward
from tests.convert.checkpoints import save_modules, save_words, saved
from tests.convert.nomic import save_nomic, save_nomic_moe
from tests.model.models.parity import FLOATS, check_close, original, random_tokens
from tests.tiny_bert import VOCABULARY, TinyBert, tiny_bert_gguf
from tests.tiny_encoders import SIZES, TinyJinaBertV3, TinyModernBert, TinyNomicBert, TinyNomicBertMoe
from tests.tiny_rerankers import tiny_bge, tiny_bge_gguf, tiny_gte, tiny_gte_gguf

ENCODERS: dict[str, Any] = {
    "bert": TinyBert(),
    "jina-bert-v3": TinyJinaBertV3(),
    "modern-bert": TinyModernBert(),
    "nomic-bert": TinyNomicBert(),
    "nomic-bert-moe": TinyNomicBertMoe(),
}


def with_words(folder: Path, theirs: Any) -> Path:
    save_words(saved(folder, theirs, tokenizer=False))
    return folder


def checkpoint(folder: Path, name: str) -> Path:
    """The encoder `name` as it is published."""
    tiny = ENCODERS[name]
    if name == "nomic-bert":
        return save_nomic(folder, original(tiny))
    if name == "nomic-bert-moe":
        return save_nomic_moe(folder, tiny, original(tiny))
    return with_words(folder, original(tiny))


@pytest.mark.parametrize("name", ENCODERS)
def test_an_encoder_computes_what_its_reference_does(name: str, tmp_path: Path) -> None:
    theirs = original(ENCODERS[name])
    folder = checkpoint(tmp_path / "checkpoint", name)
    save_modules(folder)
    convert(folder, tmp_path / "m.gguf", FileType.F32)
    ours = load_model(tmp_path / "m.gguf")
    assert ours.pooling == "mean"
    with open_gguf(tmp_path / "m.gguf") as file:
        ids = [file.metadata[f"tokenizer.ggml.{key}_token_id"] for key in ("bos", "eos")]
        assert ids == [VOCABULARY.index(text) for text in ("[CLS]", "[SEP]")]
    cache = ours.make_cache(sequences=1, context=64, types=FLOATS)
    tokens = random_tokens(ours, 40, 3)
    batch = Batch.of(tokens, list(range(40)), [0] * 40, list(range(40)))
    with torch.inference_mode():
        cache.start_forward(batch)
        expected = theirs(torch.tensor([tokens])).last_hidden_state[0]
        check_close(ours, forward.states_of(ours.model, batch, cache), expected)


def test_names_of_tensorflow_and_what_makes_no_vectors_are_known(tmp_path: Path) -> None:
    """As BERT itself is published."""
    theirs = original(TinyBert())
    folder = with_words(tmp_path / "checkpoint", theirs)
    tensors = {"bert.pooler.dense.bias": torch.ones(64), "cls.predictions.bias": torch.ones(9)}
    for name, values in load_file(folder / "model.safetensors").items():
        old = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
        tensors[f"bert.{old}"] = values
    save_file(tensors, folder / "model.safetensors")
    convert(folder, tmp_path / "ours.gguf", FileType.F32)
    check_same_tensors(tmp_path / "ours.gguf", tiny_bert_gguf(tmp_path / "expected.gguf", model=theirs))


def check_same_tensors(ours: Path, expected: Path) -> None:
    """That a file has the tensors of another, which other tests hold against transformers."""
    with open_gguf(ours) as found, open_gguf(expected) as wanted:
        assert found.tensors.keys() == wanted.tensors.keys()
        for name in wanted.tensors:
            np.testing.assert_array_equal(found.array(name), wanted.array(name), err_msg=name)


def test_experts_whose_shares_are_made_1_are_refused(tmp_path: Path) -> None:
    path = checkpoint(tmp_path / "checkpoint", "nomic-bert-moe") / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"moe_normalize_expert_weights": True}))
    with pytest.raises(ConversionError, match="no kind of it that can be converted has such settings"):
        convert(path.parent, tmp_path / "m.gguf")


def test_the_head_of_a_masked_modern_bert_is_no_classifier(tmp_path: Path) -> None:
    from transformers import ModernBertConfig, ModernBertForMaskedLM

    folder = with_words(tmp_path / "checkpoint", ModernBertForMaskedLM(ModernBertConfig(**SIZES)))
    convert(folder, tmp_path / "m.gguf", FileType.F32)
    assert load_model(tmp_path / "m.gguf").pooling == "mean"


def test_classifiers_are_converted(tmp_path: Path) -> None:
    for name, theirs, write in (
        ("bge", tiny_bge(), tiny_bge_gguf), ("gte", tiny_gte("cls"), tiny_gte_gguf),
    ):  # fmt: skip
        convert(with_words(tmp_path / name, theirs), tmp_path / "ours.gguf", FileType.F32)
        check_same_tensors(tmp_path / "ours.gguf", write(tmp_path / f"{name}.gguf", theirs))
    with open_gguf(tmp_path / "ours.gguf") as file:
        assert file.metadata["modern-bert.classifier.pooling_type"] == 2

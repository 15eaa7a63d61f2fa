"""Modules that sentence-transformers appends to a model become part of the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from puna.convert import convert
from puna.errors import ConversionError
from puna.gguf import FileType, open_gguf
from puna.model.load import load_model
from tests.convert.checkpoints import save_modules, saved, saved_with_words
from tests.model.models.parity import original
from tests.model.models.test_gemma_embedding import check_vectors
from tests.tiny.bert import TinyBert
from tests.tiny.gemma3 import TinyEmbeddingGemma

WIDENING = torch.randn(160, 64, generator=torch.Generator().manual_seed(1)) / 8
NARROWING = torch.randn(64, 160, generator=torch.Generator().manual_seed(2)) / 12


def embedding_gemma(folder: Path) -> Path:
    saved(folder, original(TinyEmbeddingGemma()))
    save_modules(folder, linears=[WIDENING, NARROWING])
    return folder


def test_embedding_gemma_computes_the_vectors_of_its_reference_with_dense_modules(tmp_path: Path) -> None:
    convert(embedding_gemma(tmp_path / "checkpoint"), tmp_path / "m.gguf", FileType.F32)
    ours, body = load_model(tmp_path / "m.gguf"), original(TinyEmbeddingGemma())
    check_vectors(ours, body, [WIDENING, NARROWING])


def test_sizes_and_window_are_written_as_llama_cpp_reads_them(tmp_path: Path) -> None:
    convert(embedding_gemma(tmp_path / "checkpoint"), tmp_path / "m.gguf", FileType.F32)
    with open_gguf(tmp_path / "m.gguf") as file:
        assert file.architecture == "gemma-embedding"
        for key, value in {
            "dense_2_feat_in": 64, "dense_2_feat_out": 160, "dense_3_feat_in": 160, "dense_3_feat_out": 64,
            "attention.sliding_window": 16, "pooling_type": 1,
        }.items():  # fmt: skip
            assert file.metadata[f"gemma-embedding.{key}"] == value


def test_embedding_gemma_without_bidirectional_attention_is_refused(tmp_path: Path) -> None:
    path = embedding_gemma(tmp_path / "checkpoint") / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"use_bidirectional_attention": False}))
    with pytest.raises(ConversionError, match="no supported variant has these settings"):
        convert(path.parent, tmp_path / "m.gguf")


def test_dense_modules_the_architecture_has_no_tensor_for_are_refused(tmp_path: Path) -> None:
    folder = saved_with_words(tmp_path / "checkpoint", original(TinyBert()))
    save_modules(folder, linears=[WIDENING])
    with pytest.raises(ConversionError, match=r"'2_Dense\.linear\.weight' has no place in a file of .* bert"):
        convert(folder, tmp_path / "m.gguf")


def modules_at(path: Any) -> Any:
    return [{"type": "sentence_transformers.models.Dense", "path": path}]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("modules.json", "[", r"modules\.json cannot be read"),
        ("modules.json", json.dumps(modules_at("../2_Dense")), r"'\.\./2_Dense' is not a folder in this one"),
        ("modules.json", json.dumps(modules_at("..")), r"'\.\.' is not a folder in this one"),
        ("modules.json", json.dumps(modules_at("4_Dense")), r"4_Dense.model\.safetensors: does not exist"),
        ("1_Pooling/config.json", '{"pooling_mode_max_tokens": true}', "only mean, cls and lasttoken"),
        ("2_Dense/config.json", '{"activation_function": "torch.nn.Tanh"}', "activation 'torch.nn.Tanh'"),
    ],
)  # fmt: skip
def test_unsupported_modules_are_refused(name: str, content: str, message: str, tmp_path: Path) -> None:
    folder = embedding_gemma(tmp_path / "checkpoint")
    (folder / name).write_text(content)
    with pytest.raises(ConversionError, match=message):
        convert(folder, tmp_path / "m.gguf")

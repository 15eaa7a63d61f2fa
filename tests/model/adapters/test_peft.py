"""PEFT adapters with invalid tensors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from puna.errors import InsufficientMemoryError, ModelError
from puna.gguf import GGUFFile, open_gguf
from puna.model.adapters.peft import CONFIG, WEIGHTS, read_peft_adapter
from tests.model.models.parity import original
from tests.tiny.adapters import TinyAdapter
from tests.tiny.decoders import QWEN2, tiny_decoder_gguf

Q = "base_model.model.model.layers.0.self_attn.q_proj"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GGUFFile]:
    folder = tmp_path_factory.mktemp("model")
    with open_gguf(tiny_decoder_gguf(folder / "m.gguf", QWEN2, model=original(QWEN2))) as file:
        yield file


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return TinyAdapter(("q_proj",)).write_peft(tmp_path / "adapter", original(QWEN2))


def read(folder: Path, model: GGUFFile) -> None:
    read_peft_adapter(folder / CONFIG, folder / WEIGHTS, model)


def change(folder: Path, **tensors: torch.Tensor) -> None:
    weights = folder / WEIGHTS
    save_file(load_file(weights) | tensors, weights)


@pytest.mark.parametrize(
    "name",
    [
        "base_model.model.lm_head.weight",  # modules_to_save
        "base_model.model.model.embed_tokens.token_adapter.trainable_tokens_delta",
        f"{Q}.lora_B.bias",
        f"{Q}.lora_magnitude_vector",
        f"{Q}.lora_diag",
        "base_model.model.model.embed_tokens.lora_embedding_A",
    ],
)
def test_tensors_that_are_not_low_rank_matrices_are_named(folder: Path, model: GGUFFile, name: str) -> None:
    change(folder, **{name: torch.ones(4, 4)})
    with pytest.raises(ModelError, match=rf"tensor '{name}' is not a low-rank matrix.*'modules_to_save'"):
        read(folder, model)


@pytest.mark.parametrize(
    "other", ["model.layers.0.self_attn.q_proj", "language_model.model.layers.00.self_attn.q_proj"]
)
def test_two_tensors_for_one_place_are_refused(folder: Path, model: GGUFFile, other: str) -> None:
    change(folder, **{f"{other}.lora_A.weight": torch.ones(4, 64)})
    with pytest.raises(ModelError, match="changes something that another tensor changes, too"):
        read(folder, model)


def test_a_rank_of_0_is_refused(folder: Path, model: GGUFFile) -> None:
    change(folder, **{f"{Q}.lora_A.weight": torch.ones(0, 64), f"{Q}.lora_B.weight": torch.ones(64, 0)})
    with pytest.raises(ModelError, match=r"attn_q.weight.lora_[ab]' is \["):
        read(folder, model)


def test_values_beyond_float32_are_refused(folder: Path, model: GGUFFile) -> None:
    change(folder, **{f"{Q}.lora_A.weight": torch.full((4, 64), 1e300, dtype=torch.float64)})
    with pytest.raises(ModelError, match=r"attn_q\.weight\.lora_a' has values that are not finite"):
        read(folder, model)


def test_a_very_long_name_is_refused(folder: Path, model: GGUFFile) -> None:
    change(folder, **{f"{'a.' * 5000}layers.0.self_attn.q_proj.lora_A.weight": torch.ones(4, 64)})
    with pytest.raises(ModelError, match="changes something that adapters cannot change here"):
        read(folder, model)


def test_an_adapter_of_too_many_values_is_refused_unread(folder: Path, model: GGUFFile) -> None:
    with (folder / "adapter_model.safetensors").open("r+b") as file:
        file.truncate(2**33 + 1)  # a hole, that takes no space
    with pytest.raises(ModelError, match=f"an adapter of {2**33 + 1} bytes; at most {2**33}"):
        read(folder, model)


def test_an_adapter_that_does_not_fit_into_memory_is_refused(
    folder: Path, model: GGUFFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("puna.model.adapters.pairs.available_memory", lambda: 10)
    with pytest.raises(InsufficientMemoryError, match=r"reading the adapter takes 0\.0 GB"):
        read(folder, model)

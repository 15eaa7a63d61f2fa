"""Errors for models that cannot be loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from puna import machine
from puna.errors import GGUFError, InsufficientMemoryError, ModelError, UnsupportedModelError
from puna.gguf import GGMLType, GGUFWriter, open_gguf
from puna.model.load import LoadedModel, LoadSettings, load_model
from puna.model.memory import Forecast
from puna.model.registry import supported
from tests.tiny.llama import TinyLlama, add_tokenizer, tiny_llama_gguf


def rewritten(
    source: Path, target: Path, *, drop: str = "", tensors: dict[str, Any] | None = None, **metadata: Any
):
    """Return a copy of a model with tensors dropped or replaced and metadata changed (None drops a key)."""
    with open_gguf(source) as file:
        writer = GGUFWriter(target, metadata.pop("architecture", "llama"))
        for key, value in file.metadata.items():
            if key == "general.architecture":
                continue
            value = metadata.pop(key, value)
            if value is not None:
                writer.add(key, value)
        for key, value in metadata.items():
            writer.add(key, value)
        for name in file.tensors:
            if name != drop:
                array = (tensors or {}).get(name, file.array(name).copy())
                writer.add_tensor(name, array, GGMLType.F32)
        writer.write()
    return target


@pytest.fixture
def tiny_file(tmp_path: Path) -> Path:
    return tiny_llama_gguf(tmp_path / "tiny.gguf", TinyLlama(layers=1))


def test_progress_only_grows_and_reaches_the_end(tiny_file: Path) -> None:
    heard: list[tuple[int, int]] = []
    loaded = load_model(tiny_file, progress=lambda done, total: heard.append((done, total)))
    assert loaded.trained_context == 256
    assert heard == sorted(heard)
    assert heard[-1] == (loaded.weight_bytes, loaded.weight_bytes)


def test_an_unknown_architecture_is_named_and_the_supported_ones_listed(tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "new.gguf", "quantumformer")
    add_tokenizer(writer)
    writer.add_tensor("token_embd.weight", np.zeros((4, 32), np.float32))
    writer.write()
    with pytest.raises(UnsupportedModelError, match=r"'quantumformer' is not supported; supported: .*llama"):
        load_model(tmp_path / "new.gguf")
    assert "llama" in supported()


def test_a_missing_file_and_a_file_of_another_kind_are_named(tmp_path: Path) -> None:
    with pytest.raises(GGUFError, match=r"absent\.gguf"):
        load_model(tmp_path / "absent.gguf")
    other = tmp_path / "story.txt"
    other.write_text("Once upon a time there was a file that was no model at all.")
    with pytest.raises(GGUFError, match=r"story\.txt"):
        load_model(other)


def test_a_truncated_file_is_an_error_that_names_it(tiny_file: Path) -> None:
    data = tiny_file.read_bytes()
    tiny_file.write_bytes(data[: len(data) - 5000])
    with pytest.raises(GGUFError, match=r"tiny\.gguf"):
        load_model(tiny_file)


def test_a_missing_tensor_is_named(tiny_file: Path, tmp_path: Path) -> None:
    path = rewritten(tiny_file, tmp_path / "missing.gguf", drop="blk.0.attn_k.weight")
    with pytest.raises(ModelError, match=r"missing\.gguf: tensor 'blk\.0\.attn_k\.weight' is missing"):
        load_model(path)


def test_a_misshapen_tensor_is_named_with_both_shapes(tiny_file: Path, tmp_path: Path) -> None:
    tensors = {"blk.0.ffn_up.weight": np.zeros((64, 64), np.float32)}
    path = rewritten(tiny_file, tmp_path / "bad.gguf", tensors=tensors)
    with pytest.raises(ModelError, match=r"'blk\.0\.ffn_up\.weight' has 64x64 values, expected 96x64"):
        load_model(path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"llama.block_count": None}, "'llama.block_count' is missing"),
        ({"llama.embedding_length": 0}, "'llama.embedding_length' should be positive, but is 0"),
        ({"llama.attention.head_count_kv": 3}, "4 query heads cannot share 3"),
        (
            {"llama.attention.head_count": "four"},
            "'llama.attention.head_count' should be sizes, but has 'four'",
        ),
        ({"llama.rope.freq_base": "big"}, "should be a number, but is 'big'"),
        ({"llama.rope.scaling.type": "stretchy"}, "rope scaling 'stretchy' is not supported"),
        ({"llama.expert_count": 8}, "'llama.expert_used_count' is missing"),
        (
            {"llama.expert_count": 2, "llama.expert_used_count": 3},
            "'llama.expert_used_count' is 3, but there are only 2 experts",
        ),
        (
            {"llama.expert_count": 2, "llama.expert_used_count": 1},
            r"'blk\.0\.ffn_gate_inp\.weight' is missing",
        ),
        ({"general.type": "adapter"}, "this is a file of type 'adapter', not a model"),
    ],
)
def test_bad_metadata_is_named(tiny_file: Path, tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    path = rewritten(tiny_file, tmp_path / "bad.gguf", **changes)
    with pytest.raises(ModelError, match=words):
        load_model(path)


def test_the_error_for_too_little_memory_states_needed_and_available(
    tiny_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "available_memory", lambda: 3 * 2**29)
    load_model(tiny_file)
    with pytest.raises(InsufficientMemoryError, match=r"\(\d+\.\d MiB\) than is available \(6\.0 MiB\)"):
        load_model(tiny_file, LoadSettings(context=256, parallel=4, reserved=1530 * 2**20))


def test_a_draft_model_is_counted_before_anything_is_loaded(
    tiny_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {"context": 256, "parallel": 4, "batch": 512}
    table = Forecast(open_gguf(tiny_file)).table(**sizes)
    alone, both_need = table.total, 2 * table.total - table.process
    monkeypatch.setattr(machine, "available_memory", lambda: both_need - 1)
    steps: list[int] = []

    def load(draft: Path | None) -> LoadedModel:
        settings = LoadSettings(context=256, parallel=4)
        return load_model(tiny_file, settings, draft=draft, progress=lambda done, total: steps.append(done))

    with pytest.raises(InsufficientMemoryError, match=r"MiB beside the draft model's \d+\.") as refused:
        load(tiny_file)
    assert (refused.value.needed, refused.value.available, steps) == (alone, alone - 1, [])
    assert load(None).draft is None
    monkeypatch.setattr(machine, "available_memory", lambda: both_need)
    both = load(tiny_file)
    assert both.draft is not None
    assert both.draft.path == both.path == tiny_file


def test_a_draft_model_that_cannot_be_loaded_is_refused_first(tiny_file: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.gguf").write_bytes(b"GGUF" + bytes(100))
    steps: list[int] = []
    with pytest.raises(GGUFError, match=r"bad\.gguf"):
        load_model(tiny_file, draft=tmp_path / "bad.gguf", progress=lambda done, total: steps.append(done))
    assert steps == []


def test_available_memory_is_a_plausible_number() -> None:
    assert 2**20 < machine.available_memory() < 2**50

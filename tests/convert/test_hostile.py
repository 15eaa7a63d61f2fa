"""Damaged and malicious folders are refused, with an error that says what is wrong."""

from __future__ import annotations

import contextlib
import json
import os
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open

from puna.convert import convert
from puna.convert.checkpoint import LONGEST_HEADER, Checkpoint, SafetensorsFile
from puna.errors import ConversionError
from tests.convert.checkpoints import saved
from tests.model.models.parity import original
from tests.tiny.llama import TinyLlama


def write_safetensors(folder: Path, header: Any, data: bytes = b"", *, length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path = folder / "model.safetensors"
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return path


def entry(shape: list[Any], begin: int, end: int, dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b"[]", "the header is not a JSON object"),
        (b"{", "the header cannot be read"),
        (b"[" * 100_000, "the header cannot be read"),
        (b'{"a":1,"a":2}', "a name appears twice"),
        ({"a": 7}, "'a': this entry of the header is not a tensor's"),
        ({"a" * 600: entry([], 0, 4)}, "this entry of the header is not a tensor's"),
        ({"a": entry([1], 0, 4, "F4")}, "'F4' is not a type"),
        ({"a": entry([-1], 0, 4)}, r"\[-1\] is not a shape"),
        ({"a": entry([True], 0, 4)}, r"\[True\] is not a shape"),
        ({"a": entry([1.0], 0, 4)}, r"\[1.0\] is not a shape"),
        ({"a": entry([1 << 60], 0, 4)}, "is not a shape"),
        ({"a": entry([1] * 9, 0, 4)}, "is not a shape"),
        ({"a": entry([1 << 40, 1 << 40], 0, 4)}, "takes 4835703278458516698824704 bytes, but it has 4"),
        (
            {"a": {"dtype": "F32", "shape": [1], "data_offsets": [0]}},
            "is not where its bytes begin and end",
        ),
        ({"a": entry([1], 4, 0)}, "takes 4 bytes, but it has -4"),
        ({"a": entry([2], 0, 8)}, "it ends at byte .*, but the file has .*; it is incomplete"),
        ({"a": entry([1], 0, 4), "b": entry([1], 2, 6)}, "tensors 'a' and 'b' overlap"),
    ],
)
def test_bad_headers_are_refused_with_the_reason(header: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConversionError, match=message):
        SafetensorsFile(write_safetensors(tmp_path, header, b"\0" * 6))


@pytest.mark.parametrize("length", [1 << 20, 200_000_000, (1 << 63) - 1, (1 << 64) - 1])
def test_header_longer_than_the_file_is_refused_without_allocating_it(length: int, tmp_path: Path) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ConversionError, match=f"the header would have {length} bytes"):
            SafetensorsFile(write_safetensors(tmp_path, {}, length=length))
        assert tracemalloc.get_traced_memory()[1] < 1e6
    finally:
        tracemalloc.stop()


def test_header_of_95_mb_is_refused_and_the_error_names_the_limit(tmp_path: Path) -> None:
    path = write_safetensors(tmp_path, {}, length=95_000_000)
    os.truncate(path, 95_000_008)
    tracemalloc.start()
    try:
        with pytest.raises(ConversionError, match=f"95,000,000 bytes, and the limit is {LONGEST_HEADER:,}"):
            SafetensorsFile(path)
        assert tracemalloc.get_traced_memory()[1] < 1e6
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("dtype", ["BF16", "F8_E4M3", "F8_E5M2"])
def test_types_that_the_safetensors_package_cannot_read_are_read(dtype: str, tmp_path: Path) -> None:
    """The reason for our own reader; drop it when the package can read these."""
    size = 2 if dtype == "BF16" else 1
    path = write_safetensors(tmp_path, {"a": entry([4], 0, 4 * size, dtype)}, bytes(range(4 * size)))
    with safe_open(path, framework="np") as file, pytest.raises((TypeError, AttributeError)):
        file.get_tensor("a")
    ours = SafetensorsFile(path)
    assert ours.tensors["a"].read(size, 3 * size) == bytes(range(size, 3 * size))
    ours.close()


@settings(max_examples=60, deadline=None)
@given(data=st.binary(max_size=200))
def test_any_bytes_parse_or_raise_a_conversion_error(
    data: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("any") / "model.safetensors"
    path.write_bytes(data)
    with contextlib.suppress(ConversionError):
        SafetensorsFile(path).close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return saved(tmp_path / "checkpoint", original(TinyLlama()), max_shard_size="100KB")


def change_json(folder: Path, name: str, **changes: Any) -> None:
    path = folder / name
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize(
    "name", ["../secret.safetensors", "/etc/passwd", "a/b.safetensors", "..", "a\0b", ""]
)
def test_index_cannot_name_files_outside_the_folder(name: str, folder: Path) -> None:
    (folder.parent / "secret.safetensors").write_bytes(b"\2\0\0\0\0\0\0\0{}")
    change_json(folder, "model.safetensors.index.json", weight_map={"lm_head.weight": name})
    with pytest.raises(ConversionError, match="is not the name of a file in this folder"):
        Checkpoint(folder)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            '{"a": [' + "[]," * 4_000_001 + "[]]}",
            "tokenizer.json has more than 8,000,000 commas and opening brackets",
        ),
        ('{"a": ' + "[" * 100_000, "tokenizer.json is nested too deeply"),
        (" " * (1 << 26) + "{}", "tokenizer.json has more than 64 MiB"),
    ],
)
def test_oversized_json_is_refused_with_the_limit_it_exceeds(text: str, message: str, folder: Path) -> None:
    (folder / "tokenizer.json").write_text(text)
    with Checkpoint(folder) as checkpoint, pytest.raises(ConversionError) as refused:
        checkpoint.json("tokenizer.json")
    assert str(refused.value) == message


def test_missing_or_incomplete_file_is_named(folder: Path, tmp_path: Path) -> None:
    first = sorted(folder.glob("*.safetensors"))[0]
    kept = first.read_bytes()
    first.unlink()
    with pytest.raises(ConversionError, match=f"{first.name}, which .*index.json names, is missing"):
        Checkpoint(folder)
    first.write_bytes(kept[:-10])
    with pytest.raises(ConversionError, match=f"{first.name}: tensor .* incomplete"):
        Checkpoint(folder)
    first.write_bytes(kept)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ConversionError, match=r"has neither tokenizer.model nor tokenizer.json"):
        convert(folder, tmp_path / "m.gguf")
    (folder / "config.json").unlink()
    with pytest.raises(ConversionError, match=r"has no config.json"):
        convert(folder, tmp_path / "m.gguf")
    assert not (tmp_path / "m.gguf").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"architectures": None}, "unknown architecture"),
        (
            {"architectures": ["LlamaForCausalL"]},
            "unsupported architecture 'LlamaForCausalL'.* nearest is Llama",
        ),
        ({"num_hidden_layers": None}, "'num_hidden_layers' is None, not a number"),
        ({"num_hidden_layers": "2"}, "'num_hidden_layers' is '2', not a number"),
        ({"num_hidden_layers": 1 << 40}, "'num_hidden_layers' is 1099511627776; the maximum is 4096"),
        ({"num_attention_heads": 7}, "does not fit config.json"),
        ({"num_attention_heads": 0}, "'num_attention_heads' is 0, not a number"),
        ({"rope_parameters": {"rope_type": "spiral"}}, "'rope_type' is 'spiral'; a file of"),
        ({"rope_parameters": 7}, "'rope_parameters' is 7"),
        ({"vocab_size": 1 << 40}, "a vocabulary of 1099511627776 tokens"),
        (
            {"rms_norm_eps": "tiny"},
            "'attention.layer_norm_rms_epsilon' would be 'tiny', which is not a number",
        ),
        ({"head_dim": [1]}, "'head_dim' is \\[1\\], not a number of at least 1"),
        ({"head_dim": 1 << 40}, "'head_dim' is 1099511627776; the maximum is 16384"),
    ],
)
def test_invalid_settings_are_named(
    settings: dict[str, Any], message: str, folder: Path, tmp_path: Path
) -> None:
    change_json(folder, "config.json", **settings)
    with pytest.raises(ConversionError, match=message):
        convert(folder, tmp_path / "m.gguf")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": 7}, "has neither"),
        ({"model": {"type": "Magic"}}, "a vocabulary of type 'Magic' is not supported"),
        ({"model": {"type": "BPE", "vocab": {"a": -1}, "merges": []}}, "does not give each token an id"),
        (
            {"model": {"type": "BPE", "vocab": {"a": 1 << 40}, "merges": []}},
            "does not give each token an id",
        ),
        ({"model": {"type": "BPE", "vocab": {"a": 1}, "merges": [[1, 2]]}}, r"\[1, 2\] is not a merge"),
        ({"model": {"type": "BPE", "vocab": {"a": 1}}}, "'model.merges' is not a list"),
    ],
)
def test_invalid_tokenizers_are_refused_with_the_reason(
    change: dict[str, Any], message: str, folder: Path, tmp_path: Path
) -> None:
    change_json(folder, "tokenizer.json", **change)
    with pytest.raises(ConversionError, match=message):
        convert(folder, tmp_path / "m.gguf")


@pytest.mark.parametrize(
    ("architecture", "merges", "message"),
    [
        ("LlamaForCausalLM", "a b", "no tokenizer.json, which says how texts are split"),
        ("Qwen2ForCausalLM", "#version: 0.2\na b\na b c", r"\['a', 'b', 'c'\] is not a merge"),
    ],
)
def test_a_vocabulary_in_two_files_that_cannot_be_used_is_refused(
    architecture: str, merges: str, message: str, folder: Path, tmp_path: Path
) -> None:
    change_json(folder, "config.json", architectures=[architecture])
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.json").write_text(json.dumps({"a": 0, "b": 1, "ab": 2}))
    (folder / "merges.txt").write_text(merges)
    with pytest.raises(ConversionError, match=message):
        convert(folder, tmp_path / "m.gguf")


def test_unknown_tensor_is_named(folder: Path, tmp_path: Path) -> None:
    (folder / "model.safetensors.index.json").unlink()
    text = json.dumps({"model.layers.0.mystery.weight": entry([1], 0, 4)}).encode()
    (folder / "model-00099.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + b"\0" * 4)
    with pytest.raises(
        ConversionError, match=r"tensor 'model.layers.0.mystery.weight' has no place in a file"
    ):
        convert(folder, tmp_path / "m.gguf")

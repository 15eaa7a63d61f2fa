"""Writing GGUF files, read back with the gguf package, and invalid arguments."""

from __future__ import annotations

import os
import stat
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFReader, GGUFValueType
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from puna.errors import GGUFError
from puna.gguf import GGMLType, GGUFWriter, NumberArray, StringArray, ValueType, open_gguf, quantize


def written(folder: Path, values: dict[str, Any], kinds: dict[str, ValueType] | None = None) -> GGUFReader:
    writer = GGUFWriter(folder / "out.gguf", "llama")
    for key, value in values.items():
        writer.add(key, value, (kinds or {}).get(key))
    writer.write()
    return GGUFReader(folder / "out.gguf")


@pytest.mark.parametrize(
    ("value", "types"),
    [
        (7, [GGUFValueType.UINT32]),
        (-7, [GGUFValueType.INT32]),
        (2**32, [GGUFValueType.INT64]),
        (2**63, [GGUFValueType.UINT64]),
        (0.5, [GGUFValueType.FLOAT32]),
        (True, [GGUFValueType.BOOL]),
        ("text é", [GGUFValueType.STRING]),
        ([1, -2], [GGUFValueType.ARRAY, GGUFValueType.INT32]),
        ([1, 2**31], [GGUFValueType.ARRAY, GGUFValueType.UINT32]),
        ([-1, 2**31], [GGUFValueType.ARRAY, GGUFValueType.INT64]),
        ([0.5, 1], [GGUFValueType.ARRAY, GGUFValueType.FLOAT32]),
        ((True, False), [GGUFValueType.ARRAY, GGUFValueType.BOOL]),
        (["a", "", "é"], [GGUFValueType.ARRAY, GGUFValueType.STRING]),
        (np.array([1, 2], np.uint16), [GGUFValueType.ARRAY, GGUFValueType.UINT16]),
        (np.array([0.5, 2]), [GGUFValueType.ARRAY, GGUFValueType.FLOAT64]),
        (np.float32(0.5), [GGUFValueType.FLOAT32]),
        (np.int8(-3), [GGUFValueType.INT8]),
    ],
)
def test_a_value_gets_the_type_that_fits(tmp_path: Path, value: Any, types: list[GGUFValueType]) -> None:
    field = written(tmp_path, {"key": value}).fields["llama.key"]
    assert field.types == types
    assert field.contents() == (
        value.tolist() if isinstance(value, (np.ndarray, np.generic)) else type(field.contents())(value)
    )


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (200, ValueType.UINT8),
        (-3, ValueType.INT64),
        (3, ValueType.FLOAT32),
        (1, ValueType.BOOL),
        ([1, 2], ValueType.UINT32),
        ([1, 2.5], ValueType.FLOAT64),
        ([1, 0], ValueType.BOOL),
    ],
)
def test_an_explicit_type_is_used(tmp_path: Path, value: Any, kind: ValueType) -> None:
    field = written(tmp_path, {"key": value}, {"key": kind}).fields["llama.key"]
    assert field.types[-1] == GGUFValueType(kind)
    assert field.contents() == value


@pytest.mark.parametrize("kind", [ValueType.STRING, ValueType.INT32, ValueType.FLOAT32])
def test_an_empty_array_has_the_given_type(tmp_path: Path, kind: ValueType) -> None:
    written(tmp_path, {"none": []}, {"none": kind})
    with open_gguf(tmp_path / "out.gguf") as file:
        array = file.get("none")
        assert isinstance(array, StringArray if kind is ValueType.STRING else NumberArray)
        assert array.kind is kind
        assert array.tolist() == []


def test_keys_get_the_prefix_of_the_architecture_unless_they_are_common(tmp_path: Path) -> None:
    values = {
        "block_count": 1,
        "general.name": "x",
        "tokenizer.ggml.model": "gpt2",
        "llama.vocab_size": 8,
    }
    names = [name for name in written(tmp_path, values).fields if not name.startswith("GGUF.")]
    assert names == [
        "general.architecture",
        "llama.block_count",
        "general.name",
        "tokenizer.ggml.model",
        "llama.vocab_size",
    ]


def test_arrays_of_another_file_keep_their_types(tmp_path: Path) -> None:
    written(tmp_path, {"numbers": np.array([1, 2], np.int8), "texts": ["a", "b"]})
    with open_gguf(tmp_path / "out.gguf") as file:
        copy = GGUFWriter(tmp_path / "copy.gguf", "llama")
        copy.add("numbers", file.get("numbers"))
        copy.add("texts", file.get("texts"))
        copy.write()
    assert (tmp_path / "copy.gguf").read_bytes() == (tmp_path / "out.gguf").read_bytes()


@pytest.mark.parametrize("alignment", [1, 32, 4096])
def test_tensors_read_back_as_written(tmp_path: Path, alignment: int) -> None:
    rng = np.random.default_rng(3)
    writer = GGUFWriter(tmp_path / "out.gguf", "llama")
    writer.add("general.alignment", alignment)
    values = {
        "vector": rng.standard_normal(5).astype(np.float32),
        "matrix": rng.standard_normal((3, 256)).astype(np.float32),
        "cube": rng.standard_normal((2, 3, 64)).astype(np.float32),
    }
    writer.add_tensor("vector", values["vector"])
    writer.add_tensor("matrix", values["matrix"], GGMLType.Q4_K)
    writer.add_tensor("transposed", values["matrix"].T, GGMLType.F16)
    writer.add_tensor("cube", values["cube"].astype(np.float64), GGMLType.Q8_0)
    writer.add_tensor("ids", np.array([1, -2], np.int32), GGMLType.I32)
    packed = quantize(values["cube"], GGMLType.Q5_0)
    writer.add_raw_tensor("raw", packed, (2, 3, 64), GGMLType.Q5_0)
    writer.add_raw_tensor("bytes", bytes(range(4)), [4], GGMLType.I8)
    writer.write()

    tensors = {tensor.name: tensor for tensor in GGUFReader(tmp_path / "out.gguf").tensors}
    assert [int(size) for size in tensors["cube"].shape] == [64, 3, 2]
    np.testing.assert_array_equal(tensors["vector"].data, values["vector"])
    np.testing.assert_array_equal(tensors["transposed"].data, values["matrix"].T.astype(np.float16))
    assert tensors["matrix"].data.tobytes() == quantize(values["matrix"], GGMLType.Q4_K).tobytes()
    assert tensors["cube"].data.tobytes() == quantize(values["cube"], GGMLType.Q8_0).tobytes()
    assert tensors["raw"].data.tobytes() == packed.tobytes()
    assert tensors["ids"].data.tolist() == [1, -2]
    assert tensors["bytes"].data.tolist() == [0, 1, 2, 3]
    assert all(tensor.data_offset % alignment == 0 for tensor in tensors.values())
    with open_gguf(tmp_path / "out.gguf") as file:
        np.testing.assert_array_equal(file.array("vector"), values["vector"])
        assert file.tensors["raw"].shape == (2, 3, 64)


def test_a_planned_file_is_read_without_computing_its_tensors(tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "out.gguf", "llama")
    writer.add("block_count", 7)
    writer.add("tokenizer.ggml.tokens", ["a", "b"])

    def pieces() -> Iterator[NDArray[np.uint8]]:
        raise AssertionError("data of a tensor was computed")

    writer.add_stream("blk.0.attn_q.weight", (1 << 20, 1 << 20), GGMLType.Q8_0, pieces)
    with writer.planned() as file:
        assert (file.path, file.architecture, file.get("block_count")) == (writer.path, "llama", 7)
        assert list(file.get("tokenizer.ggml.tokens")) == ["a", "b"]
        assert file.tensor("blk.0.attn_q.weight").shape == (1 << 20, 1 << 20)
    assert not any(tmp_path.iterdir())


def test_a_large_tensor_is_streamed(tmp_path: Path) -> None:
    values = np.lib.format.open_memmap(tmp_path / "big.npy", "w+", np.float32, (4096, 4096))  # 64 MB
    writer = GGUFWriter(tmp_path / "out.gguf", "llama")
    writer.add_tensor("q8", values, GGMLType.Q8_0)
    writer.add_tensor("f32", values)
    tracemalloc.start()
    try:
        writer.write()
        assert tracemalloc.get_traced_memory()[1] < 16_000_000
    finally:
        tracemalloc.stop()
    assert (tmp_path / "out.gguf").stat().st_size > 4096 * 4096 * (4 + 34 / 32)


def test_the_old_file_is_kept_if_writing_fails(tmp_path: Path) -> None:
    path = tmp_path / "out.gguf"
    path.write_bytes(b"old")
    writer = GGUFWriter(path, "llama")
    writer.add_tensor("fine", np.zeros(256, np.float32), GGMLType.Q4_K)
    writer.add_tensor("bad", np.full(256, np.nan, np.float32), GGMLType.Q4_K)
    with pytest.raises(GGUFError, match="not finite"):
        writer.write()
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["out.gguf"]


def test_a_new_file_replaces_the_old_one_and_is_readable_by_others(tmp_path: Path) -> None:
    path = tmp_path / "out.gguf"
    path.write_bytes(b"old")
    old_mask = os.umask(0o022)
    try:
        GGUFWriter(path, "llama").write()
    finally:
        os.umask(old_mask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    with open_gguf(path) as file:
        assert file.architecture == "llama"


def test_a_missing_folder_is_reported(tmp_path: Path) -> None:
    with pytest.raises(GGUFError, match=r"nowhere/out\.gguf: cannot be written"):
        GGUFWriter(tmp_path / "nowhere" / "out.gguf", "llama").write()


@pytest.mark.parametrize(
    ("key", "value", "kind", "message"),
    [
        ("general.architecture", "x", None, r"key 'general\.architecture' was added twice"),
        ("", 1, None, "the name of a key must have 1 to"),
        ("k" * 70_000, 1, None, "the name of a key must have 1 to 512 bytes"),
        ("k", [], None, r"cannot write key 'llama\.k': an empty array needs an explicit element type"),
        ("k", ["a", 1], None, "strings and numbers are mixed"),
        ("k", None, None, "a NoneType is not a metadata value"),
        ("k", [None], None, r"cannot write key 'llama\.k'"),
        ("k", [[1]], None, r"cannot write key 'llama\.k'"),
        ("k", np.zeros((2, 2)), None, "not one-dimensional"),
        ("k", 256, ValueType.UINT8, r"key 'llama\.k' as UINT8: a number is not between 0 and 255"),
        ("k", -1, ValueType.UINT64, "not between 0 and"),
        ("k", 2**64, None, "an integer does not fit in 64 bits"),
        ("k", 1.5, ValueType.INT32, "a number is not an integer"),
        ("k", float("inf"), ValueType.INT32, "cannot write key"),
        ("k", 1e300, None, "a number is too large for FLOAT32"),
        ("k", "text", ValueType.INT32, "the value is a string"),
        ("k", [1], ValueType.STRING, "a value is not a string"),
        ("k", b"bytes", None, "a bytes is not a metadata value"),
        ("k", {"a": 1}, None, "a dict is not a metadata value"),
        ("k", 1, ValueType.STRING, "numbers cannot be written as STRING"),
        ("k", [1], ValueType.ARRAY, "numbers cannot be written as ARRAY"),
        ("k", "\ud800", None, r"cannot write key 'llama\.k'"),
        ("general.alignment", 24, None, "must be a power of two, not 24"),
    ],
)
def test_metadata_that_cannot_be_written_is_refused(
    tmp_path: Path, key: str, value: Any, kind: ValueType | None, message: str
) -> None:
    with pytest.raises(GGUFError, match=message):
        GGUFWriter(tmp_path / "out.gguf", "llama").add(key, value, kind)


def test_tensors_that_cannot_be_written_are_refused(tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "out.gguf", "llama")
    writer.add_tensor("t", np.zeros(4, np.float32))
    with pytest.raises(GGUFError, match="tensor 't' was added twice"):
        writer.add_tensor("t", np.zeros(4, np.float32))
    with pytest.raises(GGUFError, match="the name of a tensor must have 1 to"):
        writer.add_tensor("", np.zeros(4, np.float32))
    row_length = "tensor 'a' of shape 2x40: row length is not a multiple of the Q8_0 block size 32"
    with pytest.raises(GGUFError, match=row_length):
        writer.add_tensor("a", np.zeros((2, 40), np.float32), GGMLType.Q8_0)
    for shape in ((), (0, 2), (1, 1, 1, 1, 1)):
        with pytest.raises(GGUFError, match="must have 1 to 4 dimensions, none of them 0"):
            writer.add_tensor("b", np.zeros(shape, np.float32))
    with pytest.raises(GGUFError, match="tensor 'c' of shape 64: Q8_0 takes 68 bytes, not 67"):
        writer.add_raw_tensor("c", bytes(67), (64,), GGMLType.Q8_0)
    with pytest.raises(GGUFError, match="tensor 'd': complex128 values cannot be written as F32"):
        writer.add_tensor("d", np.zeros(4, np.complex128))
    with pytest.raises(GGUFError, match="tensor 'e': int64 values cannot be written as I32"):
        writer.add_tensor("e", np.zeros(4, np.int64), GGMLType.I32)
    with pytest.raises(GGUFError, match="tensor 'f': quantisation to IQ1_S is not supported"):
        writer.add_tensor("f", np.zeros(256, np.float32), GGMLType.IQ1_S)


scalars = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(width=32, allow_nan=False),
    st.text(max_size=20),
)
arrays = st.one_of(
    st.lists(st.booleans(), min_size=1, max_size=9),
    st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=9),
    st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=9),
    st.lists(st.text(max_size=9), min_size=1, max_size=9),
)
keys = st.text(min_size=1, max_size=12).filter(lambda key: key != "general.alignment")


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(values=st.dictionaries(keys, st.one_of(scalars, arrays), max_size=6))
def test_any_metadata_written_is_read_back(tmp_path: Path, values: dict[str, Any]) -> None:
    writer = GGUFWriter(tmp_path / "out.gguf", "llama")
    for key, value in values.items():
        writer.add(key, value)
    writer.write()
    with open_gguf(tmp_path / "out.gguf") as file:
        assert len(file.metadata) == len(values) + 1
        for key, value in values.items():
            read = file.get(key)
            assert (read.tolist() if isinstance(value, list) else read) == value

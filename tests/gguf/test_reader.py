"""Reading GGUF files: files of the gguf package, all kinds of metadata, lookups, lazy arrays."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter, quants

from puna.errors import GGUFError
from puna.gguf import FileType, GGMLType, NumberArray, StringArray, open_gguf
from tests.gguf import gguf_bytes as raw
from tests.work import calls


@pytest.fixture
def reference_file(tmp_path: Path) -> Path:
    """Write a small model with the gguf package."""
    path = tmp_path / "reference.gguf"
    writer = GGUFWriter(path, "llama")
    writer.add_block_count(2)
    writer.add_rope_freq_base(500000.0)
    writer.add_file_type(15)
    writer.add_bool("llama.flag", True)
    writer.add_int64("llama.big", -(2**40))
    writer.add_array("llama.head_counts", [4, 8, -1])
    writer.add_token_list(["<s>", "héllo", "日本", ""])
    writer.add_token_scores([0.0, -1.5, 2.25, 0.5])
    rng = np.random.default_rng(1)
    for name, kind in (("a.weight", "Q8_0"), ("b.weight", "F16"), ("c.weight", "F32")):
        values = rng.standard_normal((6, 64)).astype(np.float32)
        packed = quants.quantize(values, GGMLQuantizationType[kind])
        writer.add_tensor(name, packed, raw_dtype=GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_file_of_the_reference_writer_is_read_correctly(reference_file: Path) -> None:
    reference = GGUFReader(reference_file)
    with open_gguf(reference_file) as file:
        assert file.version == 3
        assert file.path == reference_file
        assert file.architecture == "llama"
        assert file.file_type is FileType.Q4_K_M
        for key, value in file.metadata.items():
            expected = reference.fields[key].contents()
            plain = value.tolist() if isinstance(value, (NumberArray, StringArray)) else value
            assert plain == expected
            assert type(plain) is type(expected)
        assert len(file.metadata) == len(reference.fields) - 3  # the reader adds version and counts
        assert list(file.tensors) == ["a.weight", "b.weight", "c.weight"]
        assert file.parameter_count == 3 * 6 * 64
        for tensor in reference.tensors:
            info = file.tensors[tensor.name]
            assert info.shape == (6, 64)
            assert (info.offset, info.nbytes) == (tensor.data_offset, tensor.n_bytes)
            assert file.data(tensor.name).tobytes() == tensor.data.tobytes()
            expected_values = quants.dequantize(tensor.data, tensor.tensor_type)
            np.testing.assert_array_equal(file.array(tensor.name), expected_values)


def test_lookups_are_relative_to_the_architecture(reference_file: Path) -> None:
    with open_gguf(reference_file) as file:
        assert file.get("block_count") == 2
        assert file.get("llama.block_count") == 2
        assert file.get("general.architecture") == "llama"
        assert file.get("tokenizer.ggml.tokens")[1] == "héllo"
        assert file.get("rope.scaling.factor") is None
        assert file.get("rope.scaling.factor", 1.0) == 1.0
        assert file.get("general.nothing", 7) == 7


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert-bge", "llama-spm"])  # the reference takes seconds to read larger ones
def test_a_real_vocabulary_is_read_as_by_the_reference(test_data: Path, name: str) -> None:
    path = test_data / "vocab" / f"{name}.gguf"
    reference = GGUFReader(path)
    with open_gguf(path) as file:
        assert len(file.metadata) > 10
        for key, value in file.metadata.items():
            plain = value.tolist() if isinstance(value, (NumberArray, StringArray)) else value
            assert plain == reference.fields[key].contents(), key


NUMBERS = [
    (raw.UINT8, "<B", 200),
    (raw.INT8, "<b", -100),
    (raw.UINT16, "<H", 60000),
    (raw.INT16, "<h", -30000),
    (raw.UINT32, "<I", 2**32 - 1),
    (raw.INT32, "<i", -(2**31)),
    (raw.FLOAT32, "<f", 0.25),
    (raw.UINT64, "<Q", 2**64 - 1),
    (raw.INT64, "<q", -(2**63)),
    (raw.FLOAT64, "<d", 0.1),
]


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize(("kind", "code", "value"), NUMBERS)
def test_numbers_and_arrays_of_every_type(
    tmp_path: Path, version: int, kind: int, code: str, value: float
) -> None:
    packed = struct.pack(code, value)
    keys = [
        raw.text_key("odd", "x"),  # so that the rest is misaligned
        raw.key("one", kind, packed),
        raw.array_key("many", kind, 3, packed + struct.pack(code, 1) + packed),
        raw.array_key("none", kind, 0, b""),
    ]
    with open_gguf(raw.save(tmp_path, raw.gguf(keys, version=version))) as file:
        assert file.version == version
        assert file.metadata["one"] == value
        many = file.metadata["many"]
        assert isinstance(many, NumberArray)
        assert many.tolist() == [value, 1, value]
        assert [many[0], many[-2], many[1:], list(many), len(many)] == [
            value,
            1,
            [1, value],
            [value, 1, value],
            3,
        ]
        assert many.numpy().dtype == np.dtype(code[1:]).newbyteorder("<")
        assert many.numpy().flags.aligned
        assert file.metadata["none"].tolist() == []  # type: ignore[union-attr]
        for index in (3, -4):
            with pytest.raises(IndexError):
                many[index]


def test_booleans_are_python_booleans(tmp_path: Path) -> None:
    keys = [raw.key("yes", raw.BOOL, b"\1"), raw.array_key("pattern", raw.BOOL, 3, b"\0\1\1")]
    with open_gguf(raw.save(tmp_path, raw.gguf(keys))) as file:
        assert file.metadata["yes"] is True
        pattern = file.metadata["pattern"]
        assert isinstance(pattern, NumberArray)
        assert pattern.tolist() == [False, True, True]
        assert pattern[0] is False
        assert pattern.numpy().dtype == np.bool_


def test_string_arrays_are_sequences(tmp_path: Path) -> None:
    texts = ["", "a", "ﬁ", "𝄞 clef", "end"]
    keys = [raw.array_key("t", raw.STRING, len(texts), b"".join(map(raw.string, texts)))]
    with open_gguf(raw.save(tmp_path, raw.gguf([*keys, raw.uint_key("after", 5)]))) as file:
        array = file.metadata["t"]
        assert isinstance(array, StringArray)
        assert array.tolist() == list(array) == texts
        assert [array[i] for i in range(-5, 5)] == texts + texts
        assert array[1:4:2] == texts[1:4:2]
        assert array.raw(2) == "ﬁ".encode()
        assert file.metadata["after"] == 5
        for index in (5, -6):
            with pytest.raises(IndexError):
                array[index]


@pytest.mark.slow
def test_a_large_vocabulary_is_read_only_on_access(tmp_path: Path) -> None:
    tokens = [f"token{i}é" for i in range(128_256)]
    merges = [f"tok{i} en{i}" for i in range(280_147)]
    keys = [
        raw.text_key("general.architecture", "llama"),
        raw.array_key("tokenizer.ggml.tokens", raw.STRING, len(tokens), b"".join(map(raw.string, tokens))),
        raw.array_key("tokenizer.ggml.merges", raw.STRING, len(merges), b"".join(map(raw.string, merges))),
        raw.array_key("tokenizer.ggml.scores", raw.FLOAT32, len(tokens), bytes(4 * len(tokens))),
    ]
    path = raw.save(tmp_path, raw.gguf(keys))

    opened = []
    work = calls(lambda: opened.append(open_gguf(path)))
    assert work["decode"] < 100  # the keys, not 408,403 strings
    with opened[0] as file:
        assert file.metadata["tokenizer.ggml.tokens"][128_255] == tokens[-1]  # type: ignore[index]
        assert file.metadata["tokenizer.ggml.merges"].tolist() == merges  # type: ignore[union-attr]


def test_alignment_moves_the_data(tmp_path: Path) -> None:
    keys = [raw.uint_key("general.alignment", 4096)]
    tensors = [raw.tensor("a", [3], GGMLType.F32, 0), raw.tensor("b", [2], GGMLType.F32, 4096)]
    data = np.float32([1, 2, 3]).tobytes() + bytes(4084) + np.float32([4, 5]).tobytes()
    path = raw.save(tmp_path, raw.gguf(keys, tensors, data, alignment=4096))
    with open_gguf(path) as file:
        assert file.tensors["a"].offset == 4096
        assert file.array("a").tolist() == [1, 2, 3]
        assert file.array("b").tolist() == [4, 5]


def test_shapes_are_row_major(tmp_path: Path) -> None:
    values = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    tensors = [raw.tensor("t", [4, 3, 2], GGMLType.F32, 0)]
    with open_gguf(raw.save(tmp_path, raw.gguf([], tensors, values.tobytes()))) as file:
        np.testing.assert_array_equal(file.array("t"), values)


def test_data_is_a_read_only_view_that_outlives_the_file(reference_file: Path) -> None:
    with open_gguf(reference_file) as file:
        data = file.data("a.weight")
        before = data.tobytes()
    assert not data.flags.writeable
    assert data.base is not None
    assert data.tobytes() == before


def test_a_file_is_mapped_only_for_tensor_data_and_until_closed(reference_file: Path) -> None:
    def is_mapped() -> bool:
        return str(reference_file) in Path("/proc/self/maps").read_text()

    file = open_gguf(reference_file)
    scores = file.get("tokenizer.ggml.scores").numpy()
    assert not is_mapped()
    file.array("a.weight")
    assert is_mapped()
    file.close()
    assert not is_mapped()
    assert scores.tolist() == [0.0, -1.5, 2.25, 0.5]


@pytest.mark.parametrize("left", [0, 100])
def test_truncating_an_open_file_is_an_error(reference_file: Path, left: int) -> None:
    with open_gguf(reference_file) as file:
        os.truncate(reference_file, left)
        for key in ("tokenizer.ggml.tokens", "tokenizer.ggml.scores"):
            with pytest.raises(GGUFError, match=r"reference\.gguf: the file was truncated"):
                file.get(key).tolist()
        with pytest.raises(GGUFError, match=r"reference\.gguf: cannot be mapped"):
            file.data("a.weight")


def test_missing_tensors_and_keys_are_named(reference_file: Path, tmp_path: Path) -> None:
    with open_gguf(reference_file) as file, pytest.raises(GGUFError, match=r"reference.gguf.*no tensor 'x'"):
        file.data("x")
    with open_gguf(raw.save(tmp_path, raw.gguf())) as file:
        assert file.get("general.name") is None
        assert file.file_type is None
        with pytest.raises(GGUFError, match=r"'general\.architecture' is missing"):
            file.get("block_count")

"""Importance matrices: both formats, what they change, and damaged ones."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from puna.errors import GGUFError
from puna.gguf import GGMLType, GGUFWriter, TensorInfo, dequantize, quantize
from puna.quantize import read_importance


def tensor(name: str, *shape: int) -> TensorInfo:
    return TensorInfo(name, shape, GGMLType.F32, 0, 0)


def new_file(path: Path, sums: dict[str, np.ndarray], counts: dict[str, list[float]]) -> Path:
    writer = GGUFWriter(path, "imatrix")
    writer.add("general.type", "imatrix")
    for name, values in sums.items():
        writer.add_tensor(f"{name}.in_sum2", values.astype(np.float32))
        writer.add_tensor(f"{name}.counts", np.array(counts[name], np.float32)[:, None])
    writer.write()
    return path


def old_file(path: Path, entries: dict[str, tuple[int, list[float]]], tail: bytes = b"") -> Path:
    data = struct.pack("<i", len(entries))
    for name, (calls, values) in entries.items():
        data += struct.pack("<i", len(name)) + name.encode() + struct.pack("<ii", calls, len(values))
        data += np.array(values, "<f4").tobytes()
    path.write_bytes(data + tail)
    return path


def test_sums_are_divided_by_their_counts_expert_by_expert(tmp_path: Path) -> None:
    sums = {"w": np.array([[2.0, 4.0], [9.0, 3.0], [5.0, 5.0]])}
    found = read_importance(new_file(tmp_path / "i.gguf", sums, {"w": [2, 3, 0]}))
    rows = found.of(tensor("w", 3, 7, 2))
    assert rows is not None
    np.testing.assert_allclose(
        rows, [[1, 2], [3, 1], [1, 1]]
    )  # all columns of an unused expert count the same
    assert found.of(tensor("other", 7, 2)) is None


def test_the_older_format_is_read_alike(tmp_path: Path) -> None:
    tail = struct.pack("<ii", 12, 4) + b"wiki"
    found = read_importance(old_file(tmp_path / "i.dat", {"w": (4, [4.0, 8.0])}, tail))
    rows = found.of(tensor("w", 7, 2))
    assert rows is not None
    np.testing.assert_allclose(rows, [[1, 2]])
    assert found.chunks == 12


def test_important_columns_have_less_error_and_the_rest_more() -> None:
    random = np.random.default_rng(3)
    values = random.standard_normal((64, 256)).astype(np.float32)
    measured = np.where(np.arange(256) % 4 == 0, 100.0, 1.0).astype(np.float32)
    for kind in (GGMLType.Q4_0, GGMLType.Q4_1, GGMLType.Q2_K, GGMLType.Q4_K, GGMLType.Q6_K, GGMLType.IQ4_XS):
        alone = np.square(dequantize(quantize(values, kind), kind) - values).mean(axis=0)
        guided = np.square(dequantize(quantize(values, kind, measured), kind) - values).mean(axis=0)
        assert guided[::4].mean() < 0.9 * alone[::4].mean(), kind
        assert guided[1::4].mean() > alone[1::4].mean(), kind


def test_an_unused_column_is_not_lost(tmp_path: Path) -> None:
    found = read_importance(old_file(tmp_path / "i.dat", {"w": (1, [0.0] * 31 + [1.0])}))
    rows = found.of(tensor("w", 1, 32))
    values = np.linspace(-1, 1, 32, dtype=np.float32)[None]
    assert rows is not None
    decoded = dequantize(quantize(values, GGMLType.Q8_0, rows[0]), GGMLType.Q8_0)
    assert np.abs(decoded - values).max() < 0.01
    decoded = dequantize(quantize(values, GGMLType.Q4_0, rows[0]), GGMLType.Q4_0)
    assert np.abs(decoded - values).max() < 0.2


def test_a_matrix_of_another_model_is_refused(tmp_path: Path) -> None:
    found = read_importance(old_file(tmp_path / "i.dat", {"w": (1, [1.0, 2.0])}))
    with pytest.raises(GGUFError, match="there are 2 values for tensor 'w', which has 1 x 3 columns"):
        found.of(tensor("w", 7, 3))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (struct.pack("<i", -1), "would have -1 entries"),
        (struct.pack("<ii", 1, 1 << 30), "the name of entry 0 would have 1073741824 bytes"),
        (struct.pack("<ii", 1, 1) + b"w" + struct.pack("<ii", 1, 1 << 30), "would take 4294967296 bytes"),
        (struct.pack("<ii", 1, 1) + b"w" + struct.pack("<ii", 1, 0), "'w' has 0 values"),
        (struct.pack("<ii", 1, 1) + b"w" + struct.pack("<iif", 1, 1, float("nan")), "not all finite"),
        (b"GGUF", "version"),
    ],
)
def test_damaged_files_are_refused(data: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "i.dat").write_bytes(data)
    with pytest.raises(GGUFError, match=message):
        read_importance(tmp_path / "i.dat")


def test_a_model_is_refused_as_importance_matrix(tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_tensor("w", np.zeros(3))
    writer.write()
    with pytest.raises(GGUFError, match="not an importance matrix"):
        read_importance(tmp_path / "m.gguf")

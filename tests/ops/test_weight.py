"""Weights: single rows, packing, and the fate of the file's bytes."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import pytest

from puna.gguf import GGMLType
from puna.ops import Weight, backend_named
from tests.processors import NOT_BUILT

from .block_bytes import ALL_TYPES, random_bytes, reference_values

_native = pytest.importorskip("puna._native", reason=NOT_BUILT)

pytestmark = pytest.mark.kernels_of("linear")


@pytest.mark.parametrize("name", ["cpu", "reference"])
@pytest.mark.parametrize("kind", ALL_TYPES, ids=lambda kind: kind.name)
def test_embedding_gives_the_rows_of_the_file(kind: GGMLType, name: str) -> None:
    data = random_bytes(kind, 50, 256, np.random.default_rng(1))
    tokens = np.array([49, 0, 7, 7, 31], np.int32)
    rows = backend_named(name).embedding(tokens, Weight("token_embd.weight", data, kind, (50, 256)))
    np.testing.assert_array_equal(rows, reference_values(data, kind, 50)[tokens])


@pytest.mark.parametrize("kind", ALL_TYPES, ids=lambda kind: kind.name)
def test_columns_are_cut_between_blocks_only(kind: GGMLType) -> None:
    data = random_bytes(kind, 5, 1024, np.random.default_rng(3))
    weight = Weight("w", data, kind, (5, 1024))
    part = weight.column_range(256, 768)
    assert (part.shape, 2 * part.nbytes) == ((5, 512), weight.nbytes)
    np.testing.assert_array_equal(part.values(), reference_values(data, kind, 5)[:, 256:768])
    if kind.block_size > 1:
        with pytest.raises(ValueError, match=f"columns 0 to 250 are no {kind.name} blocks"):
            weight.column_range(0, 250)


@pytest.mark.parametrize("kind", ALL_TYPES, ids=lambda kind: kind.name)
def test_packing_keeps_every_value_and_frees_the_bytes(kind: GGMLType) -> None:
    data = random_bytes(kind, 19, 512, np.random.default_rng(2))
    expected = reference_values(data, kind, 19)
    weight = Weight("w", data, kind, (19, 512))
    ops = backend_named("cpu")
    ops.pack(weight)
    assert weight.data is None
    values = ops.embedding(np.arange(19, dtype=np.int32), weight)
    np.testing.assert_array_equal(values, expected)
    np.testing.assert_array_equal(ops.embedding(np.array([18, 3], np.int32), weight), values[[18, 3]])


@pytest.mark.parametrize("factor", [1.0, 1e5])
def test_types_without_a_kernel_become_float16_or_float32_where_that_overflows(factor: float) -> None:
    values = np.random.default_rng(3).standard_normal((8, 256)) * factor
    weight = Weight("w", values.reshape(-1).view(np.uint8), GGMLType.F64, (8, 256))
    ops = backend_named("cpu")
    ops.pack(weight)
    kind, number = (GGMLType.F16, np.float16) if factor == 1 else (GGMLType.F32, np.float32)
    expected = values.astype(np.float32).astype(number).astype(np.float32)
    np.testing.assert_array_equal(ops.embedding(np.arange(8, dtype=np.int32), weight), expected)
    assert weight.packed.nbytes == ops.packed_bytes(kind, weight.shape)


def test_the_reference_does_not_pack() -> None:
    weight = Weight.from_values("w", np.ones((3, 4)))
    backend_named("reference").pack(weight)
    assert weight.data is not None


def test_a_weight_packed_by_another_backend_is_refused() -> None:
    weight = Weight.from_values("w", np.ones((3, 4)))
    backend_named("cpu").pack(weight)
    with pytest.raises(ValueError, match="weight 'w' was packed, and its bytes are gone"):
        backend_named("reference").linear(np.ones((1, 4), np.float32), weight)


def test_packing_returns_the_pages_of_a_mapped_file(tmp_path: Path) -> None:
    """Only whole pages of the matrix itself: the bytes before and after it are unchanged."""
    kind, rows, columns = GGMLType.Q8_0, 1024, 1024
    data = random_bytes(kind, rows, columns, np.random.default_rng(4))
    path = tmp_path / "weights"
    path.write_bytes(b"a" * 100 + data.tobytes() + b"z" * 100)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        view = np.frombuffer(mapped, np.uint8)[100:-100]

        def resident_kib() -> int:
            entry = None
            for line in Path("/proc/self/smaps").read_text().splitlines():
                if line.endswith(str(path)):
                    entry = line
                elif entry and line.startswith("Rss:"):
                    return int(line.split()[1])
            return 0

        assert view.sum() > 0  # touches every page
        before = resident_kib()
        weight = Weight("w", view, kind, (rows, columns))
        backend_named("cpu").pack(weight)
        assert before > 1000
        assert resident_kib() < before / 2
        assert bytes(mapped[:100]) == b"a" * 100
        assert bytes(mapped[-100:]) == b"z" * 100
        np.testing.assert_array_equal(view, data)
        del view, weight


def test_indices_out_of_range_are_refused() -> None:
    weight = Weight.from_values("token_embd.weight", np.ones((3, 4)))
    for name in ("cpu", "reference"):
        for bad in (3, -1):
            with pytest.raises(IndexError, match=r"'token_embd\.weight' has 3 rows"):
                backend_named(name).embedding(np.array([0, bad], np.int32), weight)


def test_wrong_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"'w': 33 bytes for shape \[1, 32\], expected 34"):
        Weight("w", np.zeros(33, np.uint8), GGMLType.Q8_0, (1, 32))
    with pytest.raises(ValueError, match="do not fill Q8_0 blocks of 32"):
        Weight("w", np.zeros(34, np.uint8), GGMLType.Q8_0, (1, 33))
    with pytest.raises(ValueError, match=r"expected a shape \[out, in\]"):
        Weight("w", np.zeros(4, np.uint8), GGMLType.F32, (1,))
    data = np.zeros(256, np.uint8)
    with pytest.raises(ValueError, match="takes 256 bytes, not 252"):
        _native.Matrix(data[:252], GGMLType.F32, 8, 8)
    with pytest.raises(ValueError, match="has no kernel"):
        _native.Matrix(data, GGMLType.Q8_K, 8, 8)


@pytest.mark.parametrize("kind", ALL_TYPES, ids=lambda kind: kind.name)
def test_a_packed_matrix_is_about_as_large_as_in_the_file(kind: GGMLType) -> None:
    """The excess is scales in whole bytes, signs in whole bits, and TQ1_0's digits in two bits."""
    most = {GGMLType.TQ1_0: 1.26, GGMLType.Q2_K: 1.2, GGMLType.IQ1_S: 1.08}.get(kind, 1.065)
    shape = (4096, 4096)
    assert backend_named("cpu").packed_bytes(kind, shape) <= most * kind.nbytes(4096 * 4096)


@pytest.mark.parametrize("shape", [(1, 256), (19, 512), (64, 768)], ids=str)
@pytest.mark.parametrize("kind", ALL_TYPES, ids=lambda kind: kind.name)
def test_the_size_of_a_packed_matrix_is_known_in_advance(kind: GGMLType, shape: tuple[int, int]) -> None:
    data = random_bytes(kind, *shape, np.random.default_rng(3))
    weight = Weight("w", data, kind, shape)
    backend_named("cpu").pack(weight)
    assert backend_named("cpu").packed_bytes(kind, shape) == weight.packed.nbytes
    assert backend_named("reference").packed_bytes(kind, shape) == data.nbytes

"""The extension's report of which CPU levels share code, against what is known of the levels."""

from __future__ import annotations

import pytest

from puna.gguf import GGMLType
from tests.processors import NOT_BUILT

_native = pytest.importorskip("puna._native", reason=NOT_BUILT, exc_type=ImportError)

VECTORS = {"avx_vnni": "avx2", "amx": "avx512", "dotprod": "neon"}


@pytest.mark.parametrize(
    "operation", ["attention", "choose_cells", "choose_blocks", "rms_norm", "rope", "store_rows", "choose"]
)
def test_vector_operations_run_the_code_of_their_vector_set(operation: str) -> None:
    for level in _native.cpu_levels():
        assert _native.kernel_set(operation, level) == VECTORS.get(level, level)


def test_operations_without_kernels_run_the_same_code_everywhere() -> None:
    for operation in ("route", "embed", "add"):
        assert {_native.kernel_set(operation, level) for level in _native.cpu_levels()} == {"portable"}


def test_integer_products_differ_at_every_level_and_float_products_do_not() -> None:
    for operation in ("linear", "experts"):
        for level in _native.cpu_levels():
            assert _native.kernel_set(operation, level) == level
            assert _native.kernel_set(operation, level, GGMLType.Q4_K) == level
            assert _native.kernel_set(operation, level, GGMLType.F32) == VECTORS.get(level, level)


def test_unknown_operations_levels_and_types_are_refused() -> None:
    with pytest.raises(ValueError, match="no operation 'lineal'"):
        _native.kernel_set("lineal", "portable")
    with pytest.raises(ValueError, match="cannot run the kernels 'avx1024'"):
        _native.kernel_set("linear", "avx1024")
    with pytest.raises(ValueError, match="type are not packed"):
        _native.kernel_set("linear", "portable", 99)

"""The extension's type stub has the same names as the extension."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import puna
from tests.processors import NOT_BUILT

_native = pytest.importorskip("puna._native", reason=NOT_BUILT, exc_type=ImportError)


def test_stub_and_extension_have_the_same_names() -> None:
    # Written by `python -m nanobind.stubgen -m puna._native -o src/puna/_native.pyi`, then `Array` put for
    # arguments and `NDArray[Any]` for results.
    stub = ast.parse((Path(puna.__file__).parent / "_native.pyi").read_text())
    named = {node.name for node in stub.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    assert named == {name for name in dir(_native) if not name.startswith("_")}

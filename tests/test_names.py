"""Class names have one meaning each."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "puna"


@pytest.mark.slow
def test_no_two_layers_share_a_public_class_name() -> None:
    layers = defaultdict(set)
    for path in SOURCE.rglob("*.py"):
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                layers[node.name].add(path.relative_to(SOURCE).parts[0])
    assert len(layers) > 500
    assert {name: found for name, found in layers.items() if len(found) > 1} == {}

"""Matrices of which `make test` runs a sample."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def sampled(names: Iterable[str], sample: Collection[str]) -> list[Any]:
    """Return cases of all names; those outside `sample` run in `make test-thorough`."""
    return [name if name in sample else pytest.param(name, marks=pytest.mark.thorough) for name in names]

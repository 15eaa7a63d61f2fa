"""Limits of activations of Ling 3 in files, and files with settings that do not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from puna.errors import ModelError
from tests.model.models.parity import original, our_log_probabilities, random_tokens
from tests.model.models.test_deepseek2 import loaded
from tests.tiny.kimi import LIMITED_LING3


def test_limits_are_written_for_each_layer_with_experts() -> None:
    keys = LIMITED_LING3.contents(original(LIMITED_LING3)).keys
    assert keys["swiglu_clamp_exp"] == pytest.approx([0.9, 0.5, 0.0])
    assert keys["swiglu_clamp_shexp"] == pytest.approx([0.0, 0.0, 0.6])


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("swiglu_clamp_exp", None), ("swiglu_clamp_exp", [0.0, 0.5, 0.5]), ("swiglu_clamp_shexp", None),
        ("swiglu_clamp_shexp", [0.2, 0.0, 0.6]), ("swiglu_clamp_shexp", [0.0, 0.3, 0.6]),
    ],
)  # fmt: skip
def test_each_limit_changes_the_result(tmp_path: Path, key: str, value: Any) -> None:
    found = []
    for settings in ({}, {key: value}):
        folder = tmp_path / str(len(settings))
        folder.mkdir()
        ours = loaded(folder, LIMITED_LING3, **settings)
        found.append(our_log_probabilities(ours, random_tokens(ours, 30, 7), [30]))
    assert (found[0] - found[1]).abs().max() > 1e-2


@pytest.mark.parametrize(
    ("key", "value", "complaint"),
    [
        ("swiglu_clamp_exp", [1.0], "should have a limit for each of the 3 layers"),
        ("swiglu_clamp_shexp", [1.0, 1.0, -1.0], "should have a limit for each of the 3 layers"),
        ("rope.dimension_sections", [4, 2, 2, 0], "sections' is not supported"),
    ],
)
def test_settings_that_do_not_fit_are_refused(tmp_path: Path, key: str, value: Any, complaint: str) -> None:
    with pytest.raises(ModelError, match=complaint):
        loaded(tmp_path, LIMITED_LING3, **{key.replace(".", "__"): value})
